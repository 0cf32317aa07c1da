// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/modules/data_rank.hpp>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::fsdp {
namespace {

/// Splits all ranks into groups of `size` that are `stride` apart; returns this rank's.
std::unique_ptr<comm::Collectives> split(comm::Fabric& fabric, const std::string& name, int size, int stride) {
  std::unique_ptr<comm::Collectives> mine;
  for (int first = 0; first < fabric.size(); ++first) {
    if (first / stride % size != 0) continue;
    std::vector<int> members;
    for (int i = 0; i < size; ++i) members.push_back(first + i * stride);
    auto group = fabric.make_collectives(fmt::format("{} {}", name, first), members);
    if (group) mine = std::move(group);
  }
  return mine;
}

int shard_degree(const comm::Fabric& fabric, const DataRankOptions& options) {
  if (options.shard_degree == 0) return fabric.size();
  if (options.shard_degree < 0 || fabric.size() % options.shard_degree != 0) {
    throw ConfigError(fmt::format("shard degree {} does not divide {} ranks; use 0 for all of them",
                                  options.shard_degree, fabric.size()));
  }
  return options.shard_degree;
}

stream::CpuSchedulerOptions aborting(comm::Fabric& fabric, stream::CpuSchedulerOptions options) {
  options.on_failure = [&fabric](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& e) {
      fabric.abort(e.what());
    } catch (...) {
      fabric.abort("an exception without a message");
    }
  };
  return options;
}

}  // namespace

DataRank::DataRank(comm::Fabric& fabric, DataRankOptions options)
    : gather_(split(fabric, "dp gather", shard_degree(fabric, options), 1)),
      reduce_(split(fabric, "dp reduce", gather_->size(), 1)),
      scheduler_(aborting(fabric, std::move(options.scheduler))) {
  const auto request = [this](const char* name) { return scheduler_.add_stream(name, stream::StreamKind::request); };
  lanes_.gather = {gather_.get(), request("gather")};
  lanes_.reduce = {reduce_.get(), request("reduce")};
  lanes_.compute = scheduler_.add_stream("compute", stream::StreamKind::compute);
  const int replicas = fabric.size() / gather_->size();
  if (replicas == 1) return;
  replica_ = split(fabric, "dp replica", replicas, gather_->size());
  lanes_.replica = {replica_.get(), request("replica")};
}

}  // namespace orthant::fsdp
