// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the mesh: ranks to coordinates and back, and the ranks of a group along an axis. Ranks count pp
// outermost, then dp_replicate, dp_shard, and tp innermost, so that neighbours in tp are neighbours in rank (the same
// node). All constexpr.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace orthant::mesh {

/// dp is dp_replicate x dp_shard seen as one axis.
enum class Axis : std::uint8_t { pp, dp, dp_replicate, dp_shard, tp };

struct Coordinate {
  int pp = 0;
  int dp_replicate = 0;
  int dp_shard = 0;
  int tp = 0;
  friend constexpr bool operator==(const Coordinate&, const Coordinate&) = default;
};

/// Degrees, each at least 1.
struct MeshShape {
  int pp = 1;
  int dp_replicate = 1;  ///< groups of ranks that hold the same shards
  int dp_shard = 1;      ///< ranks that share one copy of the optimizer state
  int tp = 1;
  int tp_share = 1;  ///< neighbours along tp that hold the same key/value heads; divides tp

  constexpr int dp() const { return dp_replicate * dp_shard; }
  constexpr int size() const { return pp * dp() * tp; }
  constexpr int degree(Axis axis) const {
    switch (axis) {
      case Axis::pp:
        return pp;
      case Axis::dp:
        return dp();
      case Axis::dp_replicate:
        return dp_replicate;
      case Axis::dp_shard:
        return dp_shard;
      case Axis::tp:
        return tp;
    }
    return 0;
  }

  constexpr int rank_of(const Coordinate& c) const {
    return ((c.pp * dp_replicate + c.dp_replicate) * dp_shard + c.dp_shard) * tp + c.tp;
  }
  constexpr Coordinate coordinate_of(int rank) const {
    return {rank / (dp() * tp), rank / (dp_shard * tp) % dp_replicate, rank / tp % dp_shard, rank % tp};
  }
  /// Position of a coordinate along dp: replicate outer, shard inner.
  constexpr int dp_of(const Coordinate& c) const { return c.dp_replicate * dp_shard + c.dp_shard; }

  /// The ranks that differ from `rank` along `axis` only, itself among them, ascending.
  constexpr std::vector<int> group(Axis axis, int rank) const {
    std::vector<int> ranks;
    const Coordinate here = coordinate_of(rank);
    for (int i = 0; i < degree(axis); ++i) {
      Coordinate c = here;
      switch (axis) {
        case Axis::pp:
          c.pp = i;
          break;
        case Axis::dp:
          c.dp_replicate = i / dp_shard;
          c.dp_shard = i % dp_shard;
          break;
        case Axis::dp_replicate:
          c.dp_replicate = i;
          break;
        case Axis::dp_shard:
          c.dp_shard = i;
          break;
        case Axis::tp:
          c.tp = i;
          break;
      }
      ranks.push_back(rank_of(c));
    }
    return ranks;
  }

  /// All groups along `axis`, ordered by their first rank: they tile the mesh.
  constexpr std::vector<std::vector<int>> groups(Axis axis) const {
    std::vector<std::vector<int>> all;
    for (int rank = 0; rank < size(); ++rank) {
      auto members = group(axis, rank);
      if (members.front() == rank) all.push_back(std::move(members));
    }
    return all;
  }

  friend constexpr bool operator==(const MeshShape&, const MeshShape&) = default;
};

namespace detail {

/// Whether rank -> coordinate -> rank is the identity and the groups of every axis tile the mesh.
constexpr bool is_consistent(const MeshShape& shape) {
  for (int rank = 0; rank < shape.size(); ++rank) {
    if (shape.rank_of(shape.coordinate_of(rank)) != rank) return false;
  }
  for (const Axis axis : {Axis::pp, Axis::dp, Axis::dp_replicate, Axis::dp_shard, Axis::tp}) {
    std::vector<int> seen(static_cast<std::size_t>(shape.size()), 0);
    for (const auto& members : shape.groups(axis)) {
      if (static_cast<int>(members.size()) != shape.degree(axis)) return false;
      for (const int rank : members) ++seen[static_cast<std::size_t>(rank)];
    }
    for (const int times : seen) {
      if (times != 1) return false;
    }
  }
  return true;
}

static_assert(is_consistent({}));
static_assert(is_consistent({.pp = 2, .dp_shard = 2, .tp = 2}));
static_assert(is_consistent({.pp = 2, .dp_replicate = 3, .dp_shard = 2, .tp = 2}));
static_assert(MeshShape{.pp = 2, .dp_shard = 2, .tp = 2}.rank_of({.pp = 1, .dp_shard = 0, .tp = 1}) == 5);

}  // namespace detail
}  // namespace orthant::mesh
