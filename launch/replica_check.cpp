// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/replica_check.hpp>

#include <algorithm>

#include <fmt/format.h>
#include <xxhash.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/shard/slice_ranges.hpp>

namespace orthant::launch {
namespace {

struct Replica {
  const shard::LogicalParameter& parameter;
  at::Tensor elements;  ///< of this rank's slice
};

/// In an order that the ranks share: they hold the same slices of the same units.
std::vector<Replica> replicas_of(ParallelModel& model) {
  std::vector<Replica> replicas;
  for (auto& shard : model.shards().shards()) {
    for (const int index : model.table().unit(shard.unit).parameters) {
      const auto& parameter = model.table().parameters()[static_cast<std::size_t>(index)];
      if (parameter.placement.copies == 1) continue;
      const auto [begin, end] =
          shard::common({shard.begin, shard.begin + shard.master.numel()}, shard::elements_of(parameter));
      if (begin < end) replicas.push_back({parameter, shard.master.narrow(0, begin - shard.begin, end - begin)});
    }
  }
  return replicas;
}

std::int64_t hash_of(const at::Tensor& elements) {
  return static_cast<std::int64_t>(XXH64(elements.const_data_ptr(), elements.nbytes(), 0));
}

}  // namespace

void check_replicas(ParallelModel& model) {
  auto& group = *model.mesh().tp().collectives;
  if (group.size() == 1) return;
  const auto replicas = replicas_of(model);
  const auto count = replicas.size();
  std::vector<std::int64_t> mine(count), all(count * static_cast<std::size_t>(group.size()));
  std::ranges::transform(replicas, mine.begin(), [](const Replica& replica) { return hash_of(replica.elements); });
  group
      .all_gather({mine.data(), static_cast<std::int64_t>(count), DType::i64},
                  {all.data(), static_cast<std::int64_t>(all.size()), DType::i64})
      .wait(model.context().timeout);

  const auto ranks = model.mesh().shape().group(mesh::Axis::tp, model.mesh().rank());
  std::string differences;
  for (std::size_t i = 0; i < count; ++i) {
    const auto& [parameter, elements] = replicas[i];
    for (int rank = 0; rank < group.size(); ++rank) {
      const int owner = rank - rank % parameter.placement.copies;
      const auto hash = [&](int of) { return all[static_cast<std::size_t>(of) * count + i]; };
      if (hash(rank) == hash(owner)) continue;
      differences += fmt::format("\n  {} on rank {} is not what rank {} holds", parameter.name,
                                 ranks[static_cast<std::size_t>(rank)], ranks[static_cast<std::size_t>(owner)]);
    }
  }
  if (!differences.empty())
    throw ReplicaError("weights that tensor-parallel ranks hold alike have become different:" + differences);
}

void make_replicas_differ(ParallelModel& model) {
  const auto replicas = replicas_of(model);
  if (!replicas.empty()) replicas.front().elements.narrow(0, 0, 1).add_(1);
}

}  // namespace orthant::launch
