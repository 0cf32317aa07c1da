// SPDX-License-Identifier: Apache-2.0
// Which units' gradients are reduced together, and where they lie in the one gradient allocation: a pure function of
// the table, so that all ranks of the axis cut it alike.
#pragma once

#include <vector>

#include <orthant/core/shard/parameter_table.hpp>

namespace orthant::dp {

struct Bucket {
  struct Member {
    UnitId unit;
    shard::Range elements;  ///< of the gradient allocation
  };
  std::vector<Member> members;  ///< in the order in which their gradients become complete

  shard::Range elements() const { return {members.front().elements.begin, members.back().elements.end}; }
};

/// Units that train, in the order of backward: the table's reversed, and norms last, because every layer's backward
/// adds to them. A bucket is closed before it would exceed `capacity` elements; it holds at least one unit.
std::vector<Bucket> make_buckets(const shard::ParameterTable& table, std::int64_t capacity);

}  // namespace orthant::dp
