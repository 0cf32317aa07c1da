// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/run_config.hpp>

#include <algorithm>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/data/token_file.hpp>
#include <orthant/launch/config_rules.hpp>
#include <orthant/launch/config_tables.hpp>
#include <orthant/launch/frozen_units.hpp>

namespace orthant::launch {
train::Residencies RunConfig::residencies() const {
  using train::Residency;
  if (fsdp.stage < 2) return {};
  if (fsdp.stage == 2) return {.weights = Residency::chunk, .gradients = Residency::layer};
  const bool by_layer = fsdp.residency == "layer" || (fsdp.residency == "auto" && mesh.pp == 1);
  const bool each = fsdp.reduce == "each_microbatch" || (fsdp.reduce == "auto" && by_layer);
  return {.weights = by_layer ? Residency::layer : Residency::chunk,
          .gradients = each ? Residency::layer : Residency::chunk};
}

step::UnitPolicy RunConfig::unit_policy(shard::UnitKind kind, std::int64_t block) const {
  using shard::UnitKind;
  const auto frozen = parse_frozen_units(train.freeze, model.layers, model.tie_embeddings);
  const bool of_frozen_block = block >= 0 && frozen.blocks[static_cast<std::size_t>(block)];
  const bool is_frozen = kind == UnitKind::embedding ? frozen.embedding
                         : kind == UnitKind::head    ? frozen.head
                         : kind == UnitKind::block   ? of_frozen_block
                                                     : frozen.norms || of_frozen_block;
  const auto& group = groups[static_cast<std::size_t>(kind)];
  return {.frozen_steps = !is_frozen                ? 0
                          : train.freeze_steps == 0 ? shard::FlatUnit::kAlways
                                                    : train.freeze_steps,
          .lr_scale = group.lr_scale,
          .weight_decay = group.weight_decay};
}

step::Checkpoint RunConfig::activation_checkpoint() const {
  const auto& mode = train.checkpoint_activations;
  const auto names = [&](const char* op) { return std::ranges::count(train.checkpoint_ops, op) > 0; };
  if (mode == "none") return {};
  if (mode == "selected") return {.recompute = {.attention = names("attention"), .mlp = names("mlp")}};
  step::Checkpoint chosen{.recompute = {.block = true}};
  if (mode == "first") chosen.blocks = static_cast<int>(train.checkpoint_layers);
  if (mode == "auto") chosen.blocks = 0;
  return chosen;
}

mesh::MeshShape RunConfig::mesh_shape() const {
  const int shard = mesh.dp_shard == 0 ? mesh.dp : mesh.dp_shard;
  const int kv_heads = static_cast<int>(std::min<std::int64_t>(model.kv_heads, mesh.tp));
  return {
      .pp = mesh.pp, .dp_replicate = mesh.dp / shard, .dp_shard = shard, .tp = mesh.tp, .tp_share = mesh.tp / kv_heads};
}

RunConfig parse_run_config(config::ConfigDocument document, int world, std::int64_t vocab_of_data) {
  config::ConfigReader in(std::move(document));
  RunConfig run;
  read_tables(in, run, world, vocab_of_data);
  check_rules(in, run);
  in.finish();
  in.throw_if_errors();
  run.resolved = in.resolved_toml();
  return run;
}

RunConfig read_run_config(const std::filesystem::path& path, const std::vector<std::string>& overrides, int world) {
  auto document = config::ConfigDocument::read(path, overrides);
  // The vocabulary is the data's: look at the headers first, but let a config that is wrong say so before the data
  // does.
  std::int64_t vocab = 0;
  std::string data_error;
  for (const char* key : {"data.train", "data.validation"}) {
    const auto entry = document.entries.find(key);
    if (entry == document.entries.end()) continue;
    const auto* file = std::get_if<std::string>(&entry->second.value);
    if (file == nullptr || file->empty()) continue;
    try {
      vocab = std::max(vocab, data::TokenFile(*file).vocab_size());
    } catch (const DataError& error) {
      data_error = error.what();
    }
  }
  auto run = parse_run_config(std::move(document), world, vocab);
  if (!data_error.empty()) throw DataError(data_error);
  if (run.data.train.empty() && run.device != "emulated")
    throw ConfigError(
        fmt::format("{}: data.train is missing: a token file made by 'orthant data prepare'", path.string()));
  return run;
}

}  // namespace orthant::launch
