// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/config_tables.hpp>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/launch/byte_size.hpp>
#include <orthant/launch/config_rules.hpp>
#include <orthant/launch/fault_injector.hpp>
#include <orthant/pipeline/generate/catalog.hpp>

namespace orthant::launch {
namespace {

using config::ConfigReader;

constexpr std::int64_t kMany = 1'000'000'000;

void read_model(ConfigReader& in, model::ModelConfig& m, std::int64_t vocab_of_data) {
  m.layers = in.integer("model.layers", m.layers, {.min = 1, .max = 10'000});
  m.hidden = in.integer("model.hidden", m.hidden, {.min = 1, .max = 1 << 20});
  m.heads = in.integer("model.heads", m.heads, {.min = 1, .max = 1 << 16});
  m.kv_heads = in.integer("model.kv_heads", m.heads, {.min = 1, .max = 1 << 16});
  m.head_dim = in.integer("model.head_dim", std::max<std::int64_t>(m.hidden / m.heads, 1), {.min = 1, .max = 1 << 16});
  m.ffn = in.integer("model.ffn", m.hidden * 3, {.min = 1, .max = 1 << 22});
  const auto vocab = in.integer("model.vocab", 0, {.min = 0, .max = 1 << 30});
  m.rope_theta = in.number("model.rope_theta", m.rope_theta, {.min = 1.0});
  m.norm_eps = in.number("model.norm_eps", m.norm_eps, {.min = 0.0, .max = 1.0});
  m.init_std = in.number("model.init_std", m.init_std, {.min = 0.0, .max = 10.0});
  m.tie_embeddings = in.boolean("model.tie_embeddings", m.tie_embeddings);
  m.dropout = in.number("model.dropout", m.dropout, {.min = 0.0, .max = 0.99});
  m.z_loss = in.number("train.z_loss", m.z_loss, {.min = 0.0, .max = 1e6});
  m.loss_rows = in.integer("train.loss_rows", m.loss_rows, {.min = 0, .max = kMany});
  m.qk_norm = in.boolean("model.qk_norm", m.qk_norm);

  m.vocab = vocab != 0 ? vocab : vocab_of_data;
  in.settle("model.vocab", m.vocab);
  if (vocab != 0 && vocab < vocab_of_data) {
    in.reject("model.vocab",
              fmt::format("the token files have a vocabulary of {}; use at least that, or 0 to take it from them",
                          vocab_of_data));
  }
  if (m.heads % m.kv_heads != 0) {
    in.reject("model.kv_heads",
              fmt::format("heads = {} is not divisible by kv_heads = {}; use kv_heads in {}", m.heads, m.kv_heads,
                          legal_degrees(m.heads, [&m](int count) { return m.heads % count == 0; })),
              {"model.heads"});
  }
  if (!in.is_set("model.head_dim") && m.hidden % m.heads != 0) {
    in.reject("model.hidden",
              fmt::format("hidden = {} is not divisible by heads = {}; use a multiple of heads, or set model.head_dim",
                          m.hidden, m.heads),
              {"model.heads"});
  } else if (m.head_dim % 2 != 0) {
    in.reject("model.head_dim", fmt::format("head_dim = {} is odd; rotary embedding turns pairs", m.head_dim),
              {"model.hidden", "model.heads"});
  }
}

void read_mesh(ConfigReader& in, MeshConfig& mesh, int world) {
  const char* keys[] = {"mesh.pp", "mesh.dp", "mesh.tp"};
  int* axes[] = {&mesh.pp, &mesh.dp, &mesh.tp};
  std::int64_t known = 1;
  int inferred = -1, zeros = 0;
  for (int i = 0; i < 3; ++i) {
    *axes[i] = static_cast<int>(in.integer(keys[i], 1, {.min = 0, .max = 1 << 20}));
    if (*axes[i] == 0) {
      inferred = i;
      ++zeros;
    } else {
      known *= *axes[i];
    }
  }
  if (zeros > 1) {
    in.reject(keys[inferred], "one axis at most may be 0 (inferred from the number of ranks)",
              {"mesh.pp", "mesh.dp", "mesh.tp"});
    for (auto* axis : axes) *axis = std::max(*axis, 1);
    return;
  }
  if (zeros == 1) {
    if (world % known != 0) {
      in.reject(keys[inferred],
                fmt::format("{} ranks are not divisible by the other axes' product {}; start a multiple of {} ranks",
                            world, known, known),
                {"mesh.pp", "mesh.dp", "mesh.tp"});
    }
    *axes[inferred] = static_cast<int>(std::max<std::int64_t>(world / known, 1));
    in.settle(keys[inferred], static_cast<std::int64_t>(*axes[inferred]));
  } else if (mesh.world() != world) {
    in.reject("mesh.dp",
              fmt::format("pp * dp * tp = {} * {} * {} = {} but {} ranks were started; start {} ranks, or set one axis "
                          "to 0 to infer it",
                          mesh.pp, mesh.dp, mesh.tp, mesh.world(), world, mesh.world()),
              {"mesh.pp", "mesh.tp"});
  }
}

void read_dp_shard(ConfigReader& in, RunConfig& run) {
  auto& mesh = run.mesh;
  mesh.dp_shard = static_cast<int>(in.integer("mesh.dp_shard", 0, {.min = 0, .max = 1 << 20}));
  if (mesh.dp_shard == 0) mesh.dp_shard = mesh.dp;
  in.settle("mesh.dp_shard", std::int64_t{mesh.dp_shard});
  if (mesh.dp % mesh.dp_shard != 0) {
    in.reject("mesh.dp_shard",
              fmt::format("dp = {} is not divisible by it; use a divisor of dp, or leave it out", mesh.dp),
              {"mesh.pp", "mesh.dp", "mesh.tp"});
  } else if (run.fsdp.stage == 0 && mesh.dp_shard != mesh.dp) {
    in.reject("mesh.dp_shard", "stage = 0 shards nothing; leave it out, or use stage 1, 2 or 3",
              {"fsdp.stage", "mesh.dp"});
  }
}

constexpr const char* kCheckpointOps[] = {"attention", "mlp"};

void read_checkpointing(ConfigReader& in, TrainConfig& t) {
  auto& mode = t.checkpoint_activations;
  mode = in.choice("train.checkpoint_activations", mode, {"none", "full", "first", "selected", "auto"});
  t.checkpoint_layers = in.integer("train.checkpoint_layers", t.checkpoint_layers, {.min = 1, .max = kMany});
  t.checkpoint_ops = in.texts("train.checkpoint_ops");
  const std::string names = fmt::format("\"{}\"", fmt::join(kCheckpointOps, "\", \""));
  for (const auto& op : t.checkpoint_ops) {
    if (std::ranges::find(kCheckpointOps, op) != std::end(kCheckpointOps)) continue;
    const auto nearest = config::nearest_name(op, {std::begin(kCheckpointOps), std::end(kCheckpointOps)});
    in.reject("train.checkpoint_ops",
              fmt::format("\"{}\" is none of {}{}", op, names,
                          nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest)));
  }
  if (mode == "selected" && t.checkpoint_ops.empty()) {
    in.reject("train.checkpoint_ops", fmt::format("checkpoint_activations = \"selected\" wants some of {}", names),
              {"train.checkpoint_activations"});
  } else if (mode != "selected" && !t.checkpoint_ops.empty()) {
    in.reject("train.checkpoint_ops",
              "only checkpoint_activations = \"selected\" looks at it; set that, or leave it out",
              {"train.checkpoint_activations"});
  }
  if (mode != "first" && in.is_set("train.checkpoint_layers") && t.checkpoint_layers != 1) {
    in.reject("train.checkpoint_layers",
              "only checkpoint_activations = \"first\" looks at it; set that, or leave it out",
              {"train.checkpoint_activations"});
  }
}

void read_memory(ConfigReader& in, RunConfig& run) {
  const auto limit = in.text("memory.limit", "");
  if (limit.empty()) return;
  const auto bytes = parse_byte_size(limit);
  run.memory_limit = bytes.value_or(0);
  if (!bytes) in.reject("memory.limit", fmt::format("a number with one of {} is wanted, as \"2GiB\"", byte_units()));
}

void read_train(ConfigReader& in, TrainConfig& t) {
  t.steps = in.integer("train.steps", t.steps, {.min = 0, .max = kMany});
  t.global_batch = in.integer("train.global_batch", t.global_batch, {.min = 1, .max = kMany});
  t.micro_batch = in.integer("train.micro_batch", t.micro_batch, {.min = 1, .max = kMany});
  t.seq_len = in.integer("train.seq_len", t.seq_len, {.min = 1, .max = kMany});
  t.seed = static_cast<std::uint64_t>(in.integer("train.seed", static_cast<std::int64_t>(t.seed), {.min = 0}));
  const auto precision = in.choice("train.precision", "fp32", {"fp32", "bf16", "fp64"});
  t.precision = precision == "bf16" ? DType::bf16 : precision == "fp64" ? DType::f64 : DType::f32;
  t.grad_clip = in.number("train.grad_clip", t.grad_clip, {.min = 0.0});
  t.validate_every = in.integer("train.validate_every", t.validate_every, {.min = 0, .max = kMany});
  t.log_every = in.integer("train.log_every", t.log_every, {.min = 1, .max = kMany});
  read_checkpointing(in, t);
  t.freeze = in.texts("train.freeze");
  t.freeze_steps = in.integer("train.freeze_steps", t.freeze_steps, {.min = 0, .max = kMany});
  t.max_skipped_steps = in.integer("train.max_skipped_steps", t.max_skipped_steps, {.min = 0, .max = kMany});
}

constexpr std::pair<const char*, shard::UnitKind> kGroups[] = {{"embedding", shard::UnitKind::embedding},
                                                               {"blocks", shard::UnitKind::block},
                                                               {"head", shard::UnitKind::head},
                                                               {"norms", shard::UnitKind::norms}};

void read_optimizer(ConfigReader& in, RunConfig& run) {
  auto& o = run.optimizer;
  o.kind = in.choice("optimizer.kind", "adamw", {"adamw", "sgd"}) == "sgd" ? optim::OptimizerKind::sgd
                                                                           : optim::OptimizerKind::adamw;
  run.lr.peak = in.number("optimizer.lr", run.lr.peak, {.min = 0.0, .max = 1e6});
  const auto betas = in.numbers("optimizer.betas", {0.9, 0.95}, {.size = 2, .min = 0.0, .max = 0.999999999});
  o.adamw.beta1 = betas[0];
  o.adamw.beta2 = betas[1];
  o.adamw.eps = in.number("optimizer.eps", o.adamw.eps, {.min = 0.0, .max = 1.0});
  o.adamw.weight_decay = in.number("optimizer.weight_decay", 0.1, {.min = 0.0, .max = 1e3});
  o.sgd.weight_decay = o.adamw.weight_decay;
  o.sgd.momentum = in.number("optimizer.momentum", 0.0, {.min = 0.0, .max = 1.0});
  run.moments = in.choice("optimizer.moments", "fp32", {"fp32", "bf16"}) == "bf16" ? DType::bf16 : DType::f32;
  if (run.moments == DType::bf16 && run.train.precision == DType::f64)
    in.reject("optimizer.moments", "moments of fp64 weights are fp64; use \"fp32\" (the master's type)",
              {"train.precision"});
  for (const auto& [name, kind] : kGroups) {
    auto& group = run.groups[static_cast<std::size_t>(kind)];
    const std::string table = fmt::format("optimizer.{}.", name);
    group.lr_scale = in.number(table + "lr_scale", 1.0, {.min = 0.0, .max = 1e6});
    const double decay = kind == shard::UnitKind::norms ? 0.0 : o.adamw.weight_decay;
    group.weight_decay = in.number(table + "weight_decay", decay, {.min = 0.0, .max = 1e3});
    if (kind == shard::UnitKind::head && run.model.tie_embeddings &&
        (group.lr_scale != 1.0 || group.weight_decay != decay))
      in.reject(table + "lr_scale",
                "embeddings are tied, so the head's weight is the embedding's; use optimizer.embedding",
                {"model.tie_embeddings"});
  }

  auto& s = run.lr;
  const auto kind = in.choice("lr_schedule.kind", "cosine", {"constant", "linear", "cosine", "wsd"});
  s.kind = kind == "constant" ? optim::LrKind::constant
           : kind == "linear" ? optim::LrKind::linear
           : kind == "wsd"    ? optim::LrKind::wsd
                              : optim::LrKind::cosine;
  s.warmup = in.integer("lr_schedule.warmup", 0, {.min = 0, .max = kMany});
  s.decay = in.integer("lr_schedule.decay", 0, {.min = 0, .max = kMany});
  s.min_ratio = in.number("lr_schedule.min_ratio", 0.1, {.min = 0.0, .max = 1.0});
}

void read_fsdp(ConfigReader& in, FsdpConfig& fsdp, DType precision) {
  fsdp.stage = static_cast<int>(in.integer("fsdp.stage", 3, {.min = 0, .max = 3}));
  fsdp.residency = in.choice("fsdp.residency", fsdp.residency, {"auto", "layer", "chunk"});
  if (fsdp.stage != 3 && fsdp.residency == "layer")
    in.reject("fsdp.residency", fmt::format("stage {} keeps weights whole; use \"chunk\" or stage = 3", fsdp.stage),
              {"fsdp.stage"});
  fsdp.reduce = in.choice("fsdp.reduce", fsdp.reduce, {"auto", "each_microbatch", "last_microbatch"});
  if (fsdp.stage < 2 && fsdp.reduce == "each_microbatch")
    in.reject("fsdp.reduce",
              fmt::format("stage {} keeps gradients until the last micro-batch; use \"last_microbatch\" or stage = 2",
                          fsdp.stage),
              {"fsdp.stage"});
  if (fsdp.stage == 2 && fsdp.reduce == "last_microbatch")
    in.reject("fsdp.reduce",
              "stage 2 with gradients that stay until the last micro-batch is stage 1; use stage = 1, or "
              "\"each_microbatch\"",
              {"fsdp.stage"});
  const bool narrow = in.choice("fsdp.reduce_dtype", "fp32", {"fp32", "bf16"}) == "bf16";
  fsdp.reduce_dtype = narrow ? DType::bf16 : DType::f32;
  if (narrow && (fsdp.stage == 0 || precision == DType::f64))
    in.reject("fsdp.reduce_dtype", "stage = 0 and fp64 reduce in the gradient's own type; use \"fp32\"",
              {"fsdp.stage", "train.precision"});
  fsdp.shared_stream = in.choice("fsdp.streams", "separate", {"separate", "shared"}) == "shared";
  fsdp.reshard_after_forward = in.boolean("fsdp.reshard_after_forward", false);
  fsdp.resident_stages = static_cast<int>(in.integer("fsdp.resident_stages", 2, {.min = 1, .max = 1 << 16}));
  if (fsdp.reshard_after_forward && fsdp.stage != 3) {
    in.reject("fsdp.reshard_after_forward", "only stage = 3 gathers weights again within a step", {"fsdp.stage"});
  }
}

void read_device(ConfigReader& in, RunConfig& run) {
  run.device = in.choice("device.kind", "cpu", {"cpu", "cuda", "emulated"});
  if (run.device == "cuda") {
    in.reject(
        "device.kind",
        "the CUDA and NCCL back ends have not been run on a GPU yet, so training on them is refused; use \"cpu\"");
  }
  auto& e = run.emulated;
  e.costs_ms = in.numbers("device.costs_ms", e.costs_ms, {.size = 3, .min = 0, .max = 1e6});
  e.latency_ms = in.number("device.latency_ms", e.latency_ms, {.min = 0, .max = 1e6});
  e.megabytes_per_s = in.number("device.megabytes_per_s", e.megabytes_per_s, {.min = 0, .max = 1e9});
  if (run.device == "emulated" && run.mesh.dp * run.mesh.tp > 1) {
    in.reject("device.kind",
              fmt::format("dp * tp = {}; emulated devices stand on the pipeline axis alone, use dp = tp = 1",
                          run.mesh.dp * run.mesh.tp),
              {"mesh.dp", "mesh.tp"});
  }
}

void read_pipeline(ConfigReader& in, PipelineConfig& p) {
  p.schedule = in.text("pipeline.schedule", p.schedule);
  if (!is_known_schedule(p.schedule)) {
    const auto names = pipeline::schedule_names();
    const auto nearest = config::nearest_name(p.schedule, {names.begin(), names.end()});
    in.reject("pipeline.schedule",
              fmt::format("one of {}, \"auto\", \"file:PATH.csv\" is wanted{}", fmt::join(names, ", "),
                          nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest)));
  }
  p.profile = in.text("pipeline.profile", "");
  p.chunks = static_cast<int>(in.integer("pipeline.chunks", 0, {.min = 0, .max = 1 << 16}));
  for (const double blocks : in.numbers("pipeline.layers_per_stage", {}, {.min = 0, .max = 1 << 20})) {
    if (blocks != std::floor(blocks)) {
      in.reject("pipeline.layers_per_stage", "whole numbers of blocks, one for each stage");
      break;
    }
    p.layers_per_stage.push_back(static_cast<int>(blocks));
  }
  p.memory_limit = in.number("pipeline.memory_limit", 0, {.min = 0, .max = 1e9});
  p.post_validation = in.choice("pipeline.post_validation", p.post_validation, {"auto", "on", "off"});
}

void read_checkpoint(ConfigReader& in, CheckpointConfig& c) {
  c.dir = in.text("checkpoint.dir", "");
  const auto interval =
      in.integer_or_choice("checkpoint.interval", std::int64_t{0}, {.min = 0, .max = kMany}, {"auto"});
  c.automatic = std::holds_alternative<std::string>(interval);
  c.interval = c.automatic ? 0 : std::get<std::int64_t>(interval);
  c.mtbf_hours = in.number("checkpoint.mtbf_hours", c.mtbf_hours, {.min = 1e-6, .max = 1e9});
  c.keep = in.integer("checkpoint.keep", c.keep, {.min = 1, .max = kMany});
  const auto resume =
      in.integer_or_choice("checkpoint.resume", std::string("auto"), {.min = 0, .max = kMany}, {"auto", "never"});
  if (const auto* step = std::get_if<std::int64_t>(&resume)) c.resume.step = *step;
  if (const auto* name = std::get_if<std::string>(&resume)) c.resume.never = *name == "never";
  c.background = in.boolean("checkpoint.background", c.background);
  c.max_failures = in.integer("checkpoint.max_failures", c.max_failures, {.min = 1, .max = kMany});
  c.accept_changes = in.texts("checkpoint.accept_changes");
}

void read_fault(ConfigReader& in, FaultConfig& f) {
  f.kind = in.choice("fault.kind", "none", fault_kinds());
  f.rank = static_cast<int>(in.integer("fault.rank", 0, {.min = -1, .max = 1 << 20}));
  f.step = in.integer("fault.step", 1, {.min = 0, .max = kMany});
  f.phase = in.choice("fault.phase", f.phase, run_phase_names());
  f.times = in.integer("fault.times", f.times, {.min = 0, .max = kMany});
  f.seed = in.integer("fault.seed", f.seed, {.min = 0, .max = kMany});
  f.delay_ms = in.integer("fault.delay_ms", f.delay_ms, {.min = 0, .max = 1'000'000'000});
  f.group = in.text("fault.group", f.group);
}

void read_timeouts(ConfigReader& in, RunConfig& run) {
  constexpr config::IntegerRange kSeconds{.min = 0, .max = 1'000'000};
  run.timeout_s = in.integer("comm.timeout_s", run.timeout_s, {.min = 1, .max = 1'000'000});
  auto& t = run.timeouts;
  t.init_s = in.integer("comm.init_timeout_s", 0, kSeconds);
  t.load_s = in.integer("comm.load_timeout_s", 0, kSeconds);
  t.step_s = in.integer("comm.step_timeout_s", 0, kSeconds);
  t.evaluation_s = in.integer("comm.evaluation_timeout_s", 0, kSeconds);
  t.save_s = in.integer("comm.save_timeout_s", 0, kSeconds);
  t.exit_s = in.integer("comm.exit_timeout_s", 0, kSeconds);
}

}  // namespace

void read_tables(ConfigReader& in, RunConfig& run, int world, std::int64_t vocab_of_data) {
  read_model(in, run.model, vocab_of_data);
  read_mesh(in, run.mesh, world);
  read_train(in, run.train);
  read_fsdp(in, run.fsdp, run.train.precision);
  read_dp_shard(in, run);
  run.sequence_parallel = in.boolean("tp.sequence_parallel", true);
  run.keep_gathered = in.boolean("tp.keep_gathered", run.keep_gathered);
  run.gather_pieces = static_cast<int>(in.integer("tp.gather_pieces", run.gather_pieces, {.min = 1, .max = 256}));
  run.check_replicas_every = in.integer("tp.check_replicas_every", run.check_replicas_every, {.min = 0, .max = kMany});
  read_pipeline(in, run.pipeline);
  run.bucket_bytes = in.integer("dp.bucket_mib", 25, {.min = 1, .max = 1 << 16}) << 20;
  read_optimizer(in, run);
  run.data.train = in.text("data.train", "");
  run.data.validation = in.text("data.validation", "");
  run.data.shuffle = in.boolean("data.shuffle", true);
  run.trace.first_step = in.integer("trace.first_step", 2, {.min = 0, .max = kMany});
  run.trace.steps = in.integer("trace.steps", 3, {.min = 0, .max = 1000});
  read_checkpoint(in, run.checkpoint);
  read_fault(in, run.fault);
  read_device(in, run);
  read_memory(in, run);
  read_timeouts(in, run);
  run.run_dir = in.text("run.dir", run.run_dir);
}

}  // namespace orthant::launch
