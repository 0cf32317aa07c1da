// SPDX-License-Identifier: Apache-2.0
// Ids are types: a stage cannot be passed where a micro-batch is wanted.
#pragma once

#include <compare>
#include <functional>

namespace orthant {

template <class Tag>
struct Id {
  int value = -1;
  friend constexpr auto operator<=>(Id, Id) = default;
};

using RankId = Id<struct RankTag>;              ///< rank in the whole run
using StageId = Id<struct StageTag>;            ///< pipeline stage (a chunk of consecutive layers)
using MicrobatchId = Id<struct MicrobatchTag>;  ///< micro-batch of one data-parallel rank in one step
using LayerId = Id<struct LayerTag>;            ///< global layer index: 0 embedding, 1..L blocks, L+1 head
using UnitId = Id<struct UnitTag>;              ///< flat unit: what is gathered and reduced together

}  // namespace orthant

template <class Tag>
struct std::hash<orthant::Id<Tag>> {
  std::size_t operator()(orthant::Id<Tag> id) const noexcept { return std::hash<int>{}(id.value); }
};
