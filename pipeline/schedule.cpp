// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/schedule.hpp>

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>

namespace orthant::pipeline {
namespace {

struct Generator {
  std::string_view name;
  Schedule (*make)(int stages, int microbatches);
};

constexpr std::array<Generator, 3> kGenerators{{{"gpipe", gpipe}, {"1f1b", one_f_one_b}, {"zb_h1", zb_h1}}};

constexpr auto kNames = [] {
  std::array<std::string_view, kGenerators.size()> names;
  std::ranges::transform(kGenerators, names.begin(), &Generator::name);
  return names;
}();

/// Appends the operations of one rank's stage.
class RankWriter {
 public:
  RankWriter(int stage, int microbatches) : stage_(stage), microbatches_(microbatches) {}

  void add(OpKind kind, int microbatch) { ops_.push_back({kind, StageId{stage_}, MicrobatchId{microbatch}}); }
  void add_all(OpKind kind) {
    for (int m = 0; m < microbatches_; ++m) add(kind, m);
  }

  /// `warm_up` forwards, then one forward and one backward(m) in turn, then the backwards that are left.
  template <class Backward>
  void one_forward_one_backward(int warm_up, Backward backward) {
    for (int m = 0; m < std::min(warm_up, microbatches_); ++m) add(OpKind::forward, m);
    for (int m = 0; m < microbatches_; ++m) {
      if (m + warm_up < microbatches_) add(OpKind::forward, m + warm_up);
      backward(m);
    }
  }

  std::vector<Op> take() { return std::move(ops_); }

 private:
  int stage_;
  int microbatches_;
  std::vector<Op> ops_;
};

template <class Write>
Schedule generate(std::string_view name, int stages, int microbatches, Write write) {
  if (stages < 1 || microbatches < 1) {
    throw ConfigError(fmt::format("schedule {} with {} stages and {} micro-batches; both must be at least 1", name,
                                  stages, microbatches));
  }
  Schedule schedule{.name = std::string(name),
                    .stages = stages,
                    .microbatches = microbatches,
                    .slots = 0,
                    .rank_of = loop_placement(stages),
                    .ranks = {}};
  for (int stage = 0; stage < stages; ++stage) {
    RankWriter rank(stage, microbatches);
    write(rank, stage);
    schedule.ranks.push_back(rank.take());
  }
  return schedule;
}

}  // namespace

Placement loop_placement(int ranks) {
  return [ranks](StageId stage) { return stage.value % ranks; };
}

Schedule gpipe(int stages, int microbatches) {
  return generate("gpipe", stages, microbatches, [](RankWriter& rank, int) {
    rank.add_all(OpKind::forward);
    rank.add_all(OpKind::backward);
  });
}

Schedule one_f_one_b(int stages, int microbatches) {
  return generate("1f1b", stages, microbatches, [=](RankWriter& rank, int stage) {
    rank.one_forward_one_backward(stages - 1 - stage, [&](int m) { rank.add(OpKind::backward, m); });
  });
}

Schedule zb_h1(int stages, int microbatches) {
  return generate("zb_h1", stages, microbatches, [=](RankWriter& rank, int stage) {
    const int lag = stage;
    rank.one_forward_one_backward(stages - 1 - stage, [&](int m) {
      rank.add(OpKind::backward_input, m);
      if (m >= lag) rank.add(OpKind::backward_weight, m - lag);
    });
    for (int m = std::max(0, microbatches - lag); m < microbatches; ++m) rank.add(OpKind::backward_weight, m);
  });
}

Schedule forward_only(int stages, int microbatches) {
  return generate("forward_only", stages, microbatches, [](RankWriter& rank, int) { rank.add_all(OpKind::forward); });
}

std::span<const std::string_view> schedule_names() { return kNames; }

Schedule make_schedule(std::string_view name, int stages, int microbatches) {
  const auto* generator = std::ranges::find(kGenerators, name, &Generator::name);
  if (generator == kGenerators.end()) {
    throw ConfigError(fmt::format("schedule = \"{}\" is not known; use one of {}", name, fmt::join(kNames, ", ")));
  }
  return generator->make(stages, microbatches);
}

std::string_view letters(OpKind kind) {
  switch (kind) {
    case OpKind::forward:
      return "F";
    case OpKind::backward:
      return "B";
    case OpKind::backward_input:
      return "I";
    case OpKind::backward_weight:
      return "W";
    case OpKind::send_activation:
      return "SEND a";
    case OpKind::receive_activation:
      return "RECV a";
    case OpKind::send_gradient:
      return "SEND g";
    case OpKind::receive_gradient:
      return "RECV g";
    case OpKind::unshard:
      return "UNSHARD";
    case OpKind::reshard:
      return "RESHARD";
    case OpKind::reduce:
      return "REDUCE";
    case OpKind::norm_units:
      return "NORM_UNITS";
    case OpKind::tie:
      return "TIE";
    case OpKind::norm:
      return "NORM";
    case OpKind::step:
      return "STEP";
  }
  return "?";
}

std::string to_text(const Op& op) {
  if (is_tail(op.kind)) return std::string(letters(op.kind));
  return fmt::format("{} s{} m{}", letters(op.kind), op.stage.value, op.microbatch.value);
}

std::string to_text(const Schedule& schedule) {
  std::string text;
  for (std::size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    text += fmt::format("rank {}:", rank);
    for (const Op& op : schedule.ranks[rank]) {
      text += is_tail(op.kind) ? fmt::format(" {}", letters(op.kind))
                               : fmt::format(" {}{}", letters(op.kind), op.microbatch.value);
    }
    text += '\n';
  }
  return text;
}

}  // namespace orthant::pipeline
