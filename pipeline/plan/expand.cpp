// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/plan/expand.hpp>

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/plan/weight_buffers.hpp>

namespace orthant::pipeline {
namespace {

using train::LayerUnits;
using train::StageLayout;

/// An operation that reads weights, or the pair that it belongs to: its stages and its layer tasks.
struct ReadingStep {
  std::vector<StageId> stages;
  std::size_t first = 0;
  std::size_t end = 0;
};

/// Weights of a unit from their gather to their last reader; places are numbers of tasks.
struct Stay {
  UnitId unit;
  std::size_t gather_at = 0;  ///< before this task, as soon as all that stand before it are submitted
  std::size_t first_reader = 0;
  std::size_t last_reader = 0;
};

class Expansion {
 public:
  Expansion(std::span<const Op> ops, std::span<const StageLayout> stages, const ResidencyPolicy& policy)
      : stages_(stages),
        policy_(policy),
        buffer_of_(assign_buffers(stages, policy.residency.weights)),
        gradient_of_(assign_buffers(stages, policy.residency.gradients)) {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const std::size_t first = tasks_.size();
      add_layers(ops[i]);
      if (!reads_weights(ops[i].kind)) continue;
      if (i == 0 || !ops[i - 1].joins_next) steps_.push_back({.stages = {}, .first = first});
      auto& of_step = steps_.back().stages;
      if (std::ranges::find(of_step, ops[i].stage) == of_step.end()) of_step.push_back(ops[i].stage);
      steps_.back().end = tasks_.size();
    }
    windows_ = find_windows(steps_, policy.window);
  }

  std::vector<LayerTask> run() {
    std::map<int, std::vector<Stay>> uses;  // per buffer: one stay for each reader
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      if (!reads_weights(tasks_[i].kind)) continue;
      for (const UnitId unit : {tasks_[i].unit, tasks_[i].norms}) {
        if (unit.value >= 0) uses[buffer_of_.at(unit)].push_back({unit, 0, i, i});
      }
    }
    const bool windowed = policy_.window > 0 && policy_.residency.weights == train::Residency::chunk;
    for (const auto& [buffer, readers] : uses) {
      for (const Stay& stay : windowed ? stays_in_window(readers) : stays_in_buffer(readers)) insert(stay);
    }
    place_reductions();
    return merge();
  }

 private:
  void add_layers(const Op& op) {
    if (!is_compute(op.kind)) {
      tasks_.push_back({.kind = op.kind, .stage = op.stage, .microbatch = op.microbatch});
      return;
    }
    const auto stage = std::ranges::find(stages_, op.stage, &StageLayout::stage);
    if (stage == stages_.end() || stage->layers.empty())
      throw InternalError(fmt::format("expand: {} is of a stage without layers on this rank", to_text(op)));
    const std::size_t layers = stage->layers.size();
    for (std::size_t i = 0; i < layers; ++i) {
      const LayerUnits& units = stage->layers[op.kind == OpKind::forward ? i : layers - 1 - i];
      tasks_.push_back({op.kind, op.stage, op.microbatch, units.layer, units.main, units.norms, i == 0, i + 1 == layers,
                        op.joins_next});
    }
  }

  /// A unit stays until another one wants the buffer, which is gathered right after its last reader.
  static std::vector<Stay> stays_in_buffer(const std::vector<Stay>& readers) {
    std::vector<Stay> stays;
    for (Stay stay : readers) {
      if (!stays.empty() && stays.back().unit == stay.unit) {
        stays.back().last_reader = stay.last_reader;
      } else {
        stay.gather_at = stays.empty() ? 0 : stays.back().last_reader + 1;
        stays.push_back(stay);
      }
    }
    return stays;
  }

  /// Of one unit: as long as one of its stages is in the window.
  std::vector<Stay> stays_in_window(const std::vector<Stay>& readers) const {
    std::vector<bool> gathered;  // per step
    for (const auto& window : windows_)
      gathered.push_back(std::ranges::any_of(window, [&](StageId s) { return uses(s, readers[0].unit); }));
    std::vector<Stay> stays;
    std::size_t last = 0;  // step of the reader before
    for (Stay stay : readers) {
      const std::size_t step = step_of(stay.first_reader);
      std::size_t from = step;
      while (from > last && gathered[from - 1]) --from;
      if (!stays.empty() && from == last) {
        stays.back().last_reader = stay.last_reader;
      } else {
        stay.gather_at = from == 0 ? 0 : steps_[from - 1].end;
        stays.push_back(stay);
      }
      last = step;
    }
    return stays;
  }

  /// Per step: its own stages, and of the next ones as many as there is room for.
  static std::vector<std::vector<StageId>> find_windows(std::span<const ReadingStep> steps, int room) {
    std::vector<std::vector<StageId>> windows(steps.size());
    std::vector<StageId> upcoming;  // stages in the order of their next steps
    for (std::size_t step = steps.size(); step-- > 0;) {
      const auto& own = steps[step].stages;
      std::erase_if(upcoming, [&](StageId stage) { return std::ranges::find(own, stage) != own.end(); });
      upcoming.insert(upcoming.begin(), own.begin(), own.end());
      const std::size_t size = std::max(own.size(), static_cast<std::size_t>(room));
      windows[step].assign(upcoming.begin(),
                           upcoming.begin() + static_cast<std::ptrdiff_t>(std::min(size, upcoming.size())));
    }
    return windows;
  }

  bool uses(StageId stage, UnitId unit) const {
    const auto& layout = *std::ranges::find(stages_, stage, &StageLayout::stage);
    return std::ranges::any_of(layout.layers, [&](const LayerUnits& l) { return l.main == unit || l.norms == unit; });
  }

  std::size_t step_of(std::size_t task) const {
    const auto after = std::ranges::upper_bound(steps_, task, {}, &ReadingStep::first);
    return static_cast<std::size_t>(after - steps_.begin()) - 1;
  }

  void insert(const Stay& stay) {
    insert(stay.gather_at, stay.first_reader, OpKind::unshard, tasks_[stay.first_reader].stage, stay.unit);
    insert(stay.last_reader + 1, 0, OpKind::reshard, tasks_[stay.last_reader].stage, stay.unit);
  }

  void insert(std::size_t at, std::size_t first_reader, OpKind kind, StageId stage, UnitId unit) {
    inserted_.push_back({at, first_reader, {.kind = kind, .stage = stage, .unit = unit}});
  }

  void place_reductions() {
    std::map<UnitId, std::size_t> last_contribution;
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      if (makes_weight_gradient(tasks_[i].kind)) last_contribution[tasks_[i].unit] = i;
    }
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      if (!makes_weight_gradient(tasks_[i].kind)) continue;
      const UnitId unit = tasks_[i].unit;
      const bool is_last = last_contribution.at(unit) == i;
      if (!is_last && !is_shared(gradient_of_.at(unit))) continue;
      insert(i + 1, 0, OpKind::reduce, tasks_[i].stage, unit);
      inserted_.back().task.closes = is_last;
    }
  }

  /// At one place frees come first, then gathers in the order of their first readers, then reductions.
  std::vector<LayerTask> merge() {
    const auto order = [](OpKind kind) { return kind == OpKind::reshard ? 0 : kind == OpKind::unshard ? 1 : 2; };
    std::ranges::sort(inserted_, {}, [&](const Inserted& i) {
      return std::tuple(i.at, order(i.task.kind), i.first_reader, i.task.unit);
    });
    std::vector<LayerTask> result;
    auto next = inserted_.begin();
    for (std::size_t i = 0; i <= tasks_.size(); ++i) {
      for (; next != inserted_.end() && next->at == i; ++next) result.push_back(next->task);
      if (i < tasks_.size()) result.push_back(tasks_[i]);
    }
    return result;
  }

  struct Inserted {
    std::size_t at = 0;  ///< before this task
    std::size_t first_reader = 0;
    LayerTask task;
  };

  const std::span<const StageLayout> stages_;
  const ResidencyPolicy policy_;
  const std::map<UnitId, int> buffer_of_;    ///< for weights
  const std::map<UnitId, int> gradient_of_;  ///< buffer for gradients
  std::vector<LayerTask> tasks_;             ///< layer by layer; everything else as it stands
  std::vector<ReadingStep> steps_;
  std::vector<std::vector<StageId>> windows_;  ///< per step
  std::vector<Inserted> inserted_;
};

}  // namespace

std::vector<LayerTask> expand(std::span<const Op> ops, std::span<const StageLayout> stages,
                              const ResidencyPolicy& policy) {
  return Expansion(ops, stages, policy).run();
}

int count_gathers(std::span<const LayerTask> tasks) {
  return static_cast<int>(std::ranges::count(tasks, OpKind::unshard, &LayerTask::kind));
}

}  // namespace orthant::pipeline
