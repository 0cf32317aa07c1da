// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/bench/fsdp_step.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace orthant::launch {
namespace {

using stream::TaskRecord;
using Records = std::span<const TaskRecord>;

bool is_computation(FsdpTask task) {
  return task == FsdpTask::forward || task == FsdpTask::backward || task == FsdpTask::step;
}

int layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "layers.";
  int layer = -1;
  if (const auto at = name.find(kPrefix); at != std::string_view::npos) {
    std::from_chars(name.data() + at + kPrefix.size(), name.data() + name.size(), layer);
  }
  return layer;
}

double& waited_for(FsdpStep& step, FsdpTask task) {
  switch (task) {
    case FsdpTask::gather:
      return step.gather_ms;
    case FsdpTask::reduce:
      return step.reduce_ms;
    case FsdpTask::copy:
      return step.copy_ms;
    default:
      return step.other_ms;
  }
}

/// What it waited for last; null where that is a computation, or nothing.
const TaskRecord* last_communication_before(const TaskRecord& task, Records records) {
  const TaskRecord* last = nullptr;
  for (const auto id : task.waits_for) {
    const TaskRecord& earlier = records[static_cast<std::size_t>(id.value)];
    if (last == nullptr || earlier.end_us > last->end_us) last = &earlier;
  }
  return last != nullptr && is_computation(task_of(last->name)) ? nullptr : last;
}

/// Divides the time from `begin_us` to the begin of `waiter` among the tasks that led to it.
void divide_wait(FsdpStep& step, Records records, const TaskRecord& waiter, double begin_us) {
  double end_us = waiter.begin_us;
  for (auto* task = last_communication_before(waiter, records); task != nullptr && end_us > begin_us;
       task = last_communication_before(*task, records)) {
    const double from_us = std::clamp(task->begin_us, begin_us, end_us);
    waited_for(step, task_of(task->name)) += (end_us - from_us) / 1e3;
    end_us = from_us;
  }
  step.other_ms += (end_us - begin_us) / 1e3;
}

}  // namespace

FsdpTask task_of(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, FsdpTask>, 7> kNames{{{"F", FsdpTask::forward},
                                                                         {"B", FsdpTask::backward},
                                                                         {"AG", FsdpTask::gather},
                                                                         {"RS", FsdpTask::reduce},
                                                                         {"OUT", FsdpTask::copy},
                                                                         {"IN", FsdpTask::copy},
                                                                         {"STEP", FsdpTask::step}}};
  const auto found = std::ranges::find(kNames, name.substr(0, name.find(' ')), [](const auto& n) { return n.first; });
  return found == kNames.end() ? FsdpTask::other : found->second;
}

std::vector<FsdpStep> steps_of(Records records) {
  std::vector<FsdpStep> steps;
  FsdpStep step;
  double step_begin_us = 0, free_us = 0;  // free_us: the end of the last computation
  for (const TaskRecord& record : records) {
    const FsdpTask task = task_of(record.name);
    if (task == FsdpTask::other) continue;
    step.boxes.push_back({task, layer_of(record.name), record.stream, (record.begin_us - step_begin_us) / 1e3,
                          (record.end_us - step_begin_us) / 1e3});
    if (!is_computation(task)) continue;
    divide_wait(step, records, record, free_us);
    free_us = record.end_us;
    const double ms = (record.end_us - record.begin_us) / 1e3;
    if (task != FsdpTask::step) {
      step.compute_ms += ms;
      continue;
    }
    step.other_ms += ms;
    step.step_ms = (record.end_us - step_begin_us) / 1e3;
    steps.push_back(std::exchange(step, {}));
    step_begin_us = record.end_us;
  }
  return steps;
}

const FsdpStep& median(const std::vector<FsdpStep>& steps) {
  std::vector<const FsdpStep*> sorted;
  for (const auto& step : steps) sorted.push_back(&step);
  std::ranges::sort(sorted, {}, [](const FsdpStep* step) { return step->step_ms; });
  return *sorted.at(sorted.size() / 2);
}

}  // namespace orthant::launch
