// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/config_rules.hpp>

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/frozen_units.hpp>
#include <orthant/launch/pipeline_plan.hpp>
#include <orthant/pipeline/generate/catalog.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace orthant::launch {
namespace {

using config::ConfigReader;

void check_divisions(ConfigReader& in, const RunConfig& run) {
  const auto& m = run.model;
  const auto tp = run.mesh.tp;
  const auto is_legal = [&m](int degree) { return tp::cuts_heads(m.heads, m.kv_heads, degree) && m.ffn % degree == 0; };
  const auto reject = [&](const std::string& what) {
    in.reject("mesh.tp", fmt::format("{} tp = {}; use tp in {}", what, tp, legal_degrees(m.heads, is_legal)),
              {"model.heads", "model.kv_heads", "model.ffn", "model.hidden"});
  };
  if (m.heads % tp != 0) {
    reject(fmt::format("heads = {} is not divisible by", m.heads));
  } else if (!tp::cuts_heads(m.heads, m.kv_heads, tp)) {
    reject(fmt::format("kv_heads = {} is neither divisible by nor a divisor of", m.kv_heads));
  }
  if (m.ffn % tp != 0) reject(fmt::format("ffn = {} is not divisible by", m.ffn));
  if (run.sequence_parallel && run.train.seq_len % tp != 0) {
    in.reject("train.seq_len",
              fmt::format("seq_len = {} is not divisible by tp = {}, as sequence parallelism needs; use a multiple of "
                          "tp, or tp.sequence_parallel = false",
                          run.train.seq_len, tp),
              {"mesh.tp", "tp.sequence_parallel"});
  }
}

void check_frozen(ConfigReader& in, const RunConfig& run) {
  const auto& m = run.model;
  try {
    if (parse_frozen_units(run.train.freeze, m.layers, m.tie_embeddings).all(m.tie_embeddings))
      in.reject("train.freeze", "every unit is frozen, so nothing would train; leave one out", {"model.layers"});
  } catch (const ConfigError& error) {
    in.reject("train.freeze", error.what(), {"model.layers", "model.tie_embeddings"});
  }
  if (run.train.freeze.empty() && run.train.freeze_steps > 0)
    in.reject("train.freeze_steps", "nothing is frozen; name units in train.freeze, or leave it out", {"train.freeze"});
}

}  // namespace

std::string legal_degrees(std::int64_t most, const std::function<bool(int degree)>& is_legal) {
  std::vector<int> degrees;
  for (int degree = 1; degree <= most; ++degree) {
    if (is_legal(degree)) degrees.push_back(degree);
  }
  return fmt::format("{{{}}}", fmt::join(degrees, ", "));
}

bool is_known_schedule(const std::string& schedule) {
  const auto names = pipeline::schedule_names();
  return schedule == "auto" || schedule.starts_with("file:") ||
         std::find(names.begin(), names.end(), schedule) != names.end();
}

void check_rules(ConfigReader& in, const RunConfig& run) {
  check_divisions(in, run);
  if (run.fault.rank >= run.mesh.world()) {
    in.reject("fault.rank", fmt::format("the run has {} ranks, counted from 0", run.mesh.world()), {"mesh.dp"});
  }
  if (run.checkpoint.automatic && run.device == "emulated")
    in.reject("checkpoint.interval", "emulated devices have nothing to save", {"device.kind"});
  check_frozen(in, run);
  const bool fills = !run.pipeline.layers_per_stage.empty() || run.model.layers >= run.mesh.pp;
  if (!fills) {
    in.reject("mesh.pp",
              fmt::format("{} layers cannot fill {} pipeline stages; use pp <= {}", run.model.layers, run.mesh.pp,
                          run.model.layers),
              {"model.layers"});
  }
  const auto per_step = run.mesh.dp * run.train.micro_batch;
  const bool divides = run.train.global_batch % per_step == 0;
  if (!divides) {
    in.reject("train.global_batch",
              fmt::format("global_batch = {} is not divisible by dp * micro_batch = {} * {}; use a multiple of {}",
                          run.train.global_batch, run.mesh.dp, run.train.micro_batch, per_step),
              {"mesh.dp", "train.micro_batch"});
  }
  if (!fills || !divides || !is_known_schedule(run.pipeline.schedule)) return;
  try {
    plan_pipeline(run);
  } catch (const ConfigError& error) {
    in.reject("pipeline.schedule", error.what(),
              {"pipeline.chunks", "pipeline.layers_per_stage", "pipeline.profile", "model.layers", "mesh.pp"});
  }
}

}  // namespace orthant::launch
