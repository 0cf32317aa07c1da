// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/plan/op_index.hpp>

namespace orthant::pipeline {
namespace {

constexpr int kKinds = static_cast<int>(OpKind::receive_gradient) + 1;

}  // namespace

OpIndex::OpIndex(const Schedule& schedule)
    : schedule_(schedule), positions_(static_cast<std::size_t>(kKinds * schedule.stages * schedule.microbatches), -1) {
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (std::size_t i = schedule.ranks[rank].size(); i-- > 0;) {
      const Op& op = schedule.ranks[rank][i];
      if (in_range(op) && schedule.rank_of(op.stage) == static_cast<int>(rank))
        positions_[slot(op)] = static_cast<int>(i);
    }
  }
}

bool OpIndex::in_range(const Op& op) const {
  if (static_cast<int>(op.kind) >= kKinds || op.stage.value < 0 || op.stage.value >= schedule_.stages) return false;
  const auto [first, end] = schedule_.microbatches_of(op.stage);
  return op.microbatch.value >= first && op.microbatch.value < end;
}

std::size_t OpIndex::slot(const Op& op) const {
  const int row = static_cast<int>(op.kind) * schedule_.stages + op.stage.value;
  return static_cast<std::size_t>(row * schedule_.microbatches + op.microbatch.value);
}

Op OpIndex::backward_of(StageId stage, MicrobatchId microbatch) const {
  const Op input{OpKind::backward_input, stage, microbatch};
  return has(input) ? input : Op{OpKind::backward, stage, microbatch};
}

Op OpIndex::producer_of(const Op& send) const {
  if (send.kind == OpKind::send_activation) return {OpKind::forward, send.stage, send.microbatch};
  return backward_of(send.stage, send.microbatch);
}

Op OpIndex::reader_of(const Op& receive) const {
  if (receive.kind == OpKind::receive_activation) return {OpKind::forward, receive.stage, receive.microbatch};
  return backward_of(receive.stage, receive.microbatch);
}

}  // namespace orthant::pipeline
