// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/plan/warm_up.hpp>

#include <algorithm>

#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline {
namespace {

bool is_backward(const Op& op) { return is_compute(op.kind) && op.kind != OpKind::forward; }

/// Whether `op` stands among the first `count` operations.
bool is_within(const std::vector<Op>& ops, std::size_t count, const Op& op) {
  return std::find(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(count), op) !=
         ops.begin() + static_cast<std::ptrdiff_t>(count);
}

/// The first operation of the rank's warm-up that does not belong there: an F whose message is sent later or is
/// received later at the other end, or a RECV of what is sent later. `count` if there is none.
std::size_t first_unfit(const Schedule& lowered, const std::vector<std::size_t>& counts, std::size_t rank) {
  const auto& ops = lowered.ranks[rank];
  const auto inside = [&](const Op& message) {
    const Op send = is_send(message.kind) ? message : matching_send(message);
    const int owner = lowered.rank_of(message.stage);
    return is_within(lowered.ranks[static_cast<std::size_t>(owner)], counts[static_cast<std::size_t>(owner)],
                     message) &&
           send.kind == OpKind::send_activation;
  };
  for (std::size_t i = 0; i < counts[rank]; ++i) {
    if (is_receive(ops[i].kind) && !inside(matching_send(ops[i]))) return i;
    const auto target = target_stage(lowered, ops[i]);
    const bool handed_over = target && lowered.rank_of(*target) == static_cast<int>(rank);
    if (handed_over && !is_within(ops, counts[rank], {OpKind::forward, *target, ops[i].microbatch})) return i;
    const auto send = send_after(lowered, ops[i]);
    if (send && !(inside(*send) && inside(matching_receive(*send)))) return i;
  }
  return counts[rank];
}

}  // namespace

std::vector<std::size_t> warm_up_ops(const Schedule& lowered) {
  std::vector<std::size_t> counts;
  for (const auto& ops : lowered.ranks) {
    const auto end =
        std::ranges::find_if(ops, [](const Op& op) { return is_backward(op) || is_tail(op.kind) || op.joins_next; });
    counts.push_back(static_cast<std::size_t>(end - ops.begin()));
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t rank = 0; rank < counts.size(); ++rank) {
      const std::size_t fit = first_unfit(lowered, counts, rank);
      changed |= fit != counts[rank];
      counts[rank] = fit;
    }
  }
  return counts;
}

SplitTasks split_warm_up(std::span<const LayerTask> tasks, std::size_t ops) {
  std::size_t end = 0;
  for (std::size_t done = 0; done < ops; ++end) {
    const LayerTask& task = tasks[end];
    done += is_compute(task.kind) ? task.closes : is_send(task.kind) || is_receive(task.kind);
  }
  SplitTasks split;
  for (std::size_t i = 0; i < end; ++i) {
    const LayerTask& task = tasks[i];
    const auto reads_it = [&](const LayerTask& later) {
      return reads_weights(later.kind) && (later.unit == task.unit || later.norms == task.unit);
    };
    const bool early = task.kind == OpKind::unshard && std::ranges::none_of(tasks.subspan(i, end - i), reads_it);
    (early ? split.rest : split.warm_up).push_back(task);
  }
  split.rest.insert(split.rest.end(), tasks.begin() + static_cast<std::ptrdiff_t>(end), tasks.end());
  return split;
}

}  // namespace orthant::pipeline
