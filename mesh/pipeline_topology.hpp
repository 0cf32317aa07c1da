// SPDX-License-Identifier: Apache-2.0
// Which ranks of the pipeline axis talk to each other: follows from where a schedule places its stages. All numbers are
// coordinates on the pp axis.
#pragma once

#include <compare>
#include <vector>

namespace orthant::mesh {

/// One direction between two ranks, for activations or for gradients: a channel of its own.
struct PipelineEdge {
  int source = 0;
  int destination = 0;
  bool gradient = false;
  friend constexpr auto operator<=>(const PipelineEdge&, const PipelineEdge&) = default;
};

struct PipelineTopology {
  std::vector<PipelineEdge> edges;     ///< without repetition
  std::vector<std::vector<int>> ties;  ///< ranks that hold the same weights, ascending; a rank is in one group at most
};

/// One stage a rank: each with its neighbours, and the two ends together.
inline PipelineTopology chain_topology(int pp) {
  PipelineTopology topology;
  for (int rank = 0; rank + 1 < pp; ++rank) {
    topology.edges.push_back({rank, rank + 1, false});
    topology.edges.push_back({rank + 1, rank, true});
  }
  topology.ties.push_back({0});
  if (pp > 1) topology.ties.front().push_back(pp - 1);
  return topology;
}

}  // namespace orthant::mesh
