// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline {

std::optional<StageId> source_stage(const Schedule& schedule, const Op& op) {
  if (op.kind == OpKind::forward && !schedule.is_first(op.stage)) return StageId{op.stage.value - 1};
  if (makes_input_gradient(op.kind) && !schedule.is_last(op.stage)) return StageId{op.stage.value + 1};
  return std::nullopt;
}

std::optional<StageId> target_stage(const Schedule& schedule, const Op& op) {
  if (op.kind == OpKind::forward && !schedule.is_last(op.stage)) return StageId{op.stage.value + 1};
  if (makes_input_gradient(op.kind) && !schedule.is_first(op.stage)) return StageId{op.stage.value - 1};
  return std::nullopt;
}

std::optional<Op> receive_before(const Schedule& schedule, const Op& op) {
  const auto source = source_stage(schedule, op);
  if (!source || schedule.rank_of(*source) == schedule.rank_of(op.stage)) return std::nullopt;
  const bool forward = op.kind == OpKind::forward;
  return Op{forward ? OpKind::receive_activation : OpKind::receive_gradient, op.stage, op.microbatch};
}

std::optional<Op> send_after(const Schedule& schedule, const Op& op) {
  const auto target = target_stage(schedule, op);
  if (!target || schedule.rank_of(*target) == schedule.rank_of(op.stage)) return std::nullopt;
  const bool forward = op.kind == OpKind::forward;
  return Op{forward ? OpKind::send_activation : OpKind::send_gradient, op.stage, op.microbatch};
}

Op matching_receive(const Op& send) {
  return send.kind == OpKind::send_activation
             ? Op{OpKind::receive_activation, StageId{send.stage.value + 1}, send.microbatch}
             : Op{OpKind::receive_gradient, StageId{send.stage.value - 1}, send.microbatch};
}

Op matching_send(const Op& receive) {
  return receive.kind == OpKind::receive_activation
             ? Op{OpKind::send_activation, StageId{receive.stage.value - 1}, receive.microbatch}
             : Op{OpKind::send_gradient, StageId{receive.stage.value + 1}, receive.microbatch};
}

ChannelKey channel_of(const Schedule& schedule, const Op& message) {
  const Op send = is_send(message.kind) ? message : matching_send(message);
  return {schedule.rank_of(send.stage), schedule.rank_of(matching_receive(send).stage),
          send.kind == OpKind::send_gradient};
}

}  // namespace orthant::pipeline
