// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/plan/validate.hpp>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/pipeline/plan/hang.hpp>
#include <orthant/pipeline/plan/op_index.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline {
namespace {

constexpr std::array kTail{OpKind::norm_units, OpKind::tie, OpKind::norm, OpKind::step};

class Validator {
 public:
  Validator(const Schedule& schedule, const MemoryBound& bound)
      : schedule_(schedule), bound_(bound), index_(schedule), trains_(trains(schedule)) {}

  Proof run() {
    if (schedule_.slots < 1) {
      proof_.problems.push_back(
          fmt::format("slots = {}, wanted at least 1; lower() the schedule first", schedule_.slots));
      return std::move(proof_);
    }
    for (rank_ = 0; rank_ < static_cast<int>(schedule_.ranks.size()); ++rank_) {
      check_present();
      check_nothing_missing();
      proof_.peak_activations.push_back(count_activations());
    }
    if (collect()) return std::move(proof_);

    for (rank_ = 0; rank_ < static_cast<int>(schedule_.ranks.size()); ++rank_) {
      check_order();
      check_tail();
      check_sums();
    }
    collect();
    for (rank_ = 0; rank_ < static_cast<int>(schedule_.ranks.size()); ++rank_) {
      check_slots();
      check_memory();
    }
    collect();
    check_hangs();
    return std::move(proof_);
  }

 private:
  const std::vector<Op>& ops() const { return schedule_.ranks[static_cast<std::size_t>(rank_)]; }

  template <class... Args>
  void report(std::size_t position, fmt::format_string<Args...> format, Args&&... args) {
    found_.emplace_back(position, rank_,
                        fmt::format("rank {}: {}", rank_, fmt::format(format, std::forward<Args>(args)...)));
  }

  /// Moves what was reported into the proof, in the order of the lists; false if there was nothing.
  bool collect() {
    std::ranges::stable_sort(found_, {}, [](const auto& f) { return std::pair(std::get<0>(f), std::get<1>(f)); });
    for (auto& [position, rank, text] : found_) proof_.problems.push_back(std::move(text));
    return !std::exchange(found_, {}).empty();
  }

  /// What stands on the rank must belong there, once.
  void check_present() {
    std::map<Op, int> count;
    for (std::size_t i = 0; i < ops().size(); ++i) {
      const Op& op = ops()[i];
      if (const std::string why = why_foreign(op); !why.empty()) {
        report(i, "{} does not belong there: {}", to_text(op), why);
      } else if (++count[op] == 2) {
        report(i, "{} stands there {} times", to_text(op), std::ranges::count(ops(), op));
      }
    }
  }

  std::string why_foreign(const Op& op) const {
    if (is_tail(op.kind)) return trains_ ? "" : "nothing is trained";
    if (op.kind > OpKind::receive_gradient) return "units are gathered and reduced by layer tasks";
    if (op.stage.value < 0 || op.stage.value >= schedule_.stages)
      return fmt::format("there are {} stages", schedule_.stages);
    if (schedule_.rank_of(op.stage) != rank_)
      return fmt::format("stage {} is on rank {}", op.stage.value, schedule_.rank_of(op.stage));
    if (!index_.in_range(op)) {
      const auto [first, end] = schedule_.microbatches_of(op.stage);
      return fmt::format("micro-batches {} to {} go through stage {}", first, end - 1, op.stage.value);
    }
    if (op.kind == OpKind::backward && (has(OpKind::backward_input, op) || has(OpKind::backward_weight, op)))
      return "I or W stands for it";
    if (is_send(op.kind) && send_after(schedule_, index_.producer_of(op)) != op)
      return "no neighbour on another rank takes it";
    if (is_receive(op.kind) && receive_before(schedule_, index_.reader_of(op)) != op)
      return "no neighbour on another rank gives it";
    return {};
  }

  bool has(OpKind kind, const Op& like) const { return index_.has({kind, like.stage, like.microbatch}); }

  /// Whether B is split is each stage's and micro-batch's own choice.
  void check_nothing_missing() {
    for (const StageId stage : schedule_.stages_of(rank_)) {
      const auto [first, end] = schedule_.microbatches_of(stage);
      for (MicrobatchId m{first}; m.value < end; ++m.value) {
        want({OpKind::forward, stage, m});
        if (!trains_) continue;
        const Op input{OpKind::backward_input, stage, m}, weight{OpKind::backward_weight, stage, m};
        const bool split = index_.has(input) || index_.has(weight);
        want(split ? input : Op{OpKind::backward, stage, m});
        if (split) want(weight);
      }
    }
    for (const OpKind kind : kTail) {
      if (trains_ && std::ranges::find(ops(), kind, &Op::kind) == ops().end())
        report(ops().size(), "{} is missing", letters(kind));
    }
  }

  void want(const Op& op) {
    const auto want_one = [&](const Op& one) {
      if (!index_.has(one)) report(ops().size(), "{} is missing", to_text(one));
    };
    if (const auto receive = receive_before(schedule_, op)) want_one(*receive);
    want_one(op);
    if (const auto send = send_after(schedule_, op)) want_one(*send);
  }

  /// What an operation takes stands before it; the two of a pair stand together.
  void check_order() {
    for (std::size_t i = 0; i < ops().size(); ++i) {
      const Op& op = ops()[i];
      if (is_send(op.kind)) require_before(index_.producer_of(op), op);
      if (op.joins_next) check_pair(i);
      if (!is_compute(op.kind)) continue;
      if (const auto receive = receive_before(schedule_, op)) {
        require_before(*receive, op);
      } else if (const auto source = source_stage(schedule_, op)) {  // of this rank: handed over
        const bool forward = op.kind == OpKind::forward;
        require_before(
            forward ? Op{OpKind::forward, *source, op.microbatch} : index_.backward_of(*source, op.microbatch), op);
      }
      if (makes_input_gradient(op.kind)) require_before({OpKind::forward, op.stage, op.microbatch}, op);
      if (op.kind == OpKind::backward_weight) require_before({OpKind::backward_input, op.stage, op.microbatch}, op);
    }
  }

  void require_before(const Op& first, const Op& second) {
    const int position = index_.position(second);
    if (index_.position(first) > position)
      report(static_cast<std::size_t>(position), "{} stands before {}", to_text(second), to_text(first));
  }

  void check_pair(std::size_t i) {
    const Op& op = ops()[i];
    const bool joins_b = i + 1 < ops().size() && ops()[i + 1].kind == OpKind::backward;
    if (op.kind != OpKind::forward || !joins_b) {
      report(i, "{} is joined with what follows: only an F can be, and with a B", to_text(op));
    } else if (ops()[i + 1].stage == op.stage && ops()[i + 1].microbatch == op.microbatch) {
      report(i, "{} is joined with {}, which needs its result", to_text(op), to_text(ops()[i + 1]));
    }
  }

  void check_tail() {
    const auto tail = std::ranges::find_if(ops(), is_tail, &Op::kind);
    for (auto op = tail; op != ops().end(); ++op) {
      const auto i = static_cast<std::size_t>(op - ops().begin());
      if (!is_tail(op->kind)) report(i, "{} stands after {}", to_text(*op), to_text(*tail));
      if (op != tail && is_tail(op->kind) && op->kind < std::prev(op)->kind)
        report(i - 1, "{} stands before {}", to_text(*std::prev(op)), to_text(*op));
    }
  }

  void check_sums() {
    enum class Sum { loss, norm_gradients, weight_gradients };
    std::map<std::pair<StageId, Sum>, MicrobatchId> last;
    const auto add = [&](const Op& op, Sum sum) {
      MicrobatchId& before = last[{op.stage, sum}];
      if (op.microbatch < before) proof_.sums_in_order = false;
      before = op.microbatch;
    };
    for (const Op& op : ops()) {
      if (op.kind == OpKind::forward) add(op, Sum::loss);
      if (makes_input_gradient(op.kind)) add(op, Sum::norm_gradients);
      if (makes_weight_gradient(op.kind)) add(op, Sum::weight_gradients);
    }
  }

  void check_slots() {
    std::map<ChannelKey, std::vector<Op>> received;
    for (std::size_t i = 0; i < ops().size(); ++i) {
      if (!is_receive(ops()[i].kind)) continue;
      auto& before = received[channel_of(schedule_, ops()[i])];
      before.push_back(ops()[i]);
      const int oldest = static_cast<int>(before.size()) - 1 - schedule_.slots;
      if (oldest < 0) continue;
      const Op holder = index_.reader_of(before[oldest]);
      if (index_.position(holder) > static_cast<int>(i))
        report(i, "{} finds no free slot ({} in all): {} comes later", to_text(ops()[i]), schedule_.slots,
               to_text(holder));
    }
  }

  void check_memory() {
    if (bound_.limit == 0) return;
    constexpr double kRounding = 1e-9;
    double held = 0;
    for (std::size_t i = 0; i < ops().size(); ++i) {
      held += memory_delta(ops()[i].kind, bound_.memory);
      if (held <= bound_.limit * (1 + kRounding)) continue;
      report(i, "{} brings activation memory to {}, over the limit of {}", to_text(ops()[i]), held, bound_.limit);
      return;
    }
  }

  int count_activations() const {
    int held = 0, peak = 0;
    for (const Op& op : ops()) {
      if (op.kind == OpKind::forward) peak = std::max(peak, ++held);
      if (makes_input_gradient(op.kind)) --held;
    }
    return peak;
  }

  void check_hangs() {
    proof_.hang_on_streams = fmt::format("{}", fmt::join(check_joint_graph(plan_on_streams(schedule_)), "; "));
    proof_.hang_in_line = pipeline::hang_in_line(schedule_);
    if (!proof_.hang_on_streams.empty()) proof_.problems.push_back("on streams: " + proof_.hang_on_streams);
    if (!proof_.hang_in_line.empty())
      proof_.problems.push_back("in line, with unbuffered sends, it stands still: " + proof_.hang_in_line);
  }

  const Schedule& schedule_;
  const MemoryBound& bound_;
  const OpIndex index_;
  const bool trains_;
  int rank_ = 0;                                                  ///< that is looked at
  std::vector<std::tuple<std::size_t, int, std::string>> found_;  ///< problems: position, rank, text
  Proof proof_;
};

}  // namespace

Proof validate(const Schedule& lowered, const MemoryBound& bound) { return Validator(lowered, bound).run(); }

}  // namespace orthant::pipeline
