// SPDX-License-Identifier: Apache-2.0
// Replays layer tasks on the buffers: what is read is there, what is added is reduced.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include <orthant/pipeline/plan/expand.hpp>
#include <orthant/pipeline/plan/weight_buffers.hpp>

namespace orthant::pipeline {
namespace {

std::string text_of(const LayerTask& task) {
  return fmt::format("{} layer {}", to_text(Op{task.kind, task.stage, task.microbatch}), task.layer.value);
}

bool reads(const LayerTask& task, UnitId unit) {
  return reads_weights(task.kind) && (task.unit == unit || task.norms == unit);
}

class Replay {
 public:
  Replay(std::span<const LayerTask> tasks, std::map<UnitId, int> buffer_of, std::map<UnitId, int> gradient_of)
      : tasks_(tasks), buffer_of_(std::move(buffer_of)), gradient_of_(std::move(gradient_of)) {
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (makes_weight_gradient(tasks[i].kind)) last_contribution_[tasks[i].unit] = i;
    }
  }

  std::vector<std::string> run() {
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      const LayerTask& task = tasks_[i];
      if (is_known(task)) step(task, i);
    }
    for (const auto& [buffer, task] : unreduced_)
      report("unit {} is not reduced after {}", task->unit.value, text_of(*task));
    return std::move(problems_);
  }

 private:
  template <class... Args>
  void report(fmt::format_string<Args...> format, Args&&... args) {
    problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  /// Messages and the tail have no unit.
  bool is_known(const LayerTask& task) {
    const bool has_unit = is_compute(task.kind) || task.kind == OpKind::unshard || task.kind == OpKind::reshard ||
                          task.kind == OpKind::reduce;
    if (!has_unit || buffer_of_.contains(task.unit)) return has_unit;
    report("{}: unit {} is not on this rank", letters(task.kind), task.unit.value);
    return false;
  }

  void step(const LayerTask& task, std::size_t i) {
    if (task.kind == OpKind::unshard) unshard(task.unit, i);
    if (task.kind == OpKind::reshard && !held_.erase(task.unit))
      report("RESHARD of unit {}, which is not gathered", task.unit.value);
    if (task.kind == OpKind::reduce) reduce(task.unit, i);
    for (const UnitId unit : {task.unit, task.norms}) {
      if (unit.value >= 0 && reads(task, unit) && !held_.contains(unit))
        report("{} reads unit {}, which is not gathered", text_of(task), unit.value);
    }
    if (makes_weight_gradient(task.kind)) contribute(task);
  }

  void unshard(UnitId unit, std::size_t i) {
    if (held_.contains(unit)) report("UNSHARD of unit {}, which is gathered", unit.value);
    const int buffer = buffer_of_.at(unit);
    const auto other = std::ranges::find_if(held_, [&](const auto& entry) { return entry.second == buffer; });
    if (other != held_.end() && other->first != unit) {
      if (const LayerTask* reader = next_reader(other->first, i))
        report("UNSHARD of unit {} before {} has read unit {} in the same buffer", unit.value, text_of(*reader),
               other->first.value);
      held_.erase(other);
    }
    held_.emplace(unit, buffer);
  }

  /// Of what is gathered at task i; null if it is gathered anew before it is read, or not read.
  const LayerTask* next_reader(UnitId unit, std::size_t i) const {
    for (const LayerTask& task : tasks_.subspan(i)) {
      if (reads(task, unit)) return &task;
      if (task.kind == OpKind::unshard && task.unit == unit) break;
    }
    return nullptr;
  }

  void contribute(const LayerTask& task) {
    const int buffer = gradient_of_.at(task.unit);
    if (const auto before = unreduced_.find(buffer); before != unreduced_.end() && is_shared(buffer))
      report("unit {} is not reduced after {}, before {} takes the buffer", before->second->unit.value,
             text_of(*before->second), text_of(task));
    unreduced_[buffer] = &task;
  }

  void reduce(UnitId unit, std::size_t i) {
    const int buffer = gradient_of_.at(unit);
    const auto last = last_contribution_.find(unit);
    if (last != last_contribution_.end() && last->second > i && !is_shared(buffer)) {
      report("REDUCE of unit {} before its last contribution, {}", unit.value, text_of(tasks_[last->second]));
    } else if (const auto added = unreduced_.find(buffer); added == unreduced_.end() || added->second->unit != unit) {
      report("REDUCE of unit {}, to which nothing was added since the last", unit.value);
    } else {
      unreduced_.erase(added);
      if (tasks_[i].closes != (last->second < i))
        report("REDUCE of unit {} is {}marked as its last", unit.value, tasks_[i].closes ? "" : "not ");
    }
  }

  const std::span<const LayerTask> tasks_;
  const std::map<UnitId, int> buffer_of_;    ///< for weights
  const std::map<UnitId, int> gradient_of_;  ///< buffer for gradients
  std::map<UnitId, std::size_t> last_contribution_;
  std::map<UnitId, int> held_;                 ///< gathered units, with their buffers
  std::map<int, const LayerTask*> unreduced_;  ///< per gradient buffer: the last contribution since its reduction
  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> check_layer_tasks(std::span<const LayerTask> tasks, std::span<const train::StageLayout> stages,
                                           const ResidencyPolicy& policy) {
  return Replay(tasks, assign_buffers(stages, policy.residency.weights),
                assign_buffers(stages, policy.residency.gradients))
      .run();
}

}  // namespace orthant::pipeline
