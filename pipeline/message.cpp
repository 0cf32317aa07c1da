// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/message.hpp>

namespace orthant::pipeline {

std::optional<Op> receive_before(const Schedule& schedule, const Op& op) {
  const bool is_first = op.stage.value == 0, is_last = op.stage.value == schedule.stages - 1;
  if (op.kind == OpKind::forward && !is_first) return Op{OpKind::receive_activation, op.stage, op.microbatch};
  if (makes_input_gradient(op.kind) && !is_last) return Op{OpKind::receive_gradient, op.stage, op.microbatch};
  return std::nullopt;
}

std::optional<Op> send_after(const Schedule& schedule, const Op& op) {
  const bool is_first = op.stage.value == 0, is_last = op.stage.value == schedule.stages - 1;
  if (op.kind == OpKind::forward && !is_last) return Op{OpKind::send_activation, op.stage, op.microbatch};
  if (makes_input_gradient(op.kind) && !is_first) return Op{OpKind::send_gradient, op.stage, op.microbatch};
  return std::nullopt;
}

Op matching_receive(const Op& send) {
  return send.kind == OpKind::send_activation
             ? Op{OpKind::receive_activation, StageId{send.stage.value + 1}, send.microbatch}
             : Op{OpKind::receive_gradient, StageId{send.stage.value - 1}, send.microbatch};
}

}  // namespace orthant::pipeline
