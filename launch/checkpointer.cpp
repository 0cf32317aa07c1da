// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/checkpointer.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>

namespace orthant::launch {
namespace {

constexpr std::int64_t kStepsBeforeFirstSave = 10;  ///< interval = "auto": then it is measured what a save takes

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// What went wrong, or nothing.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

}  // namespace

Checkpointer::Checkpointer(ParallelModel& model, ckpt::CheckpointFolder folder, CheckpointerOptions options)
    : model_(model), folder_(std::move(folder)), options_(std::move(options)) {}

Checkpointer::~Checkpointer() {
  if (writer_.joinable()) writer_.join();
}

bool Checkpointer::is_due(std::int64_t done) const {
  return options_.config.interval > 0 && done % options_.config.interval == 0;
}

bool Checkpointer::wants_save() {
  if (!options_.config.automatic || !is_first() || under_way_) return false;
  if (++asked_ <= kStepsBeforeFirstSave) return false;
  if (seconds_since(made_) < next_due_s_) return false;
  next_due_s_ = std::numeric_limits<double>::infinity();  // until the one that this asks for is done
  return true;
}

void Checkpointer::begin(std::int64_t done, bool trains_on) {
  commit();
  const auto start = Clock::now();
  step_ = done;
  options_.state.step = done;
  options_.state.samples = done * model_.run().train.global_batch;
  const auto made = is_first() ? error_of([&] { folder_.begin(done); }) : "";
  if (!all_well(made, "begin")) return choose_interval(seconds_since(start));

  const bool in_background = options_.config.background && trains_on;
  pieces_ = owned_pieces(model_);
  if (in_background) take_snapshot();
  for (auto& [piece, elements] : pieces_)
    piece.bytes = {static_cast<const std::byte*>(elements.const_data_ptr()), elements.nbytes()};
  under_way_ = true;
  if (in_background) {
    writer_ = std::thread([this] { write(); });
  } else {
    write();
  }
  this_stall_s_ = seconds_since(start);
  times_.stall_s += this_stall_s_;
  if (!in_background) commit();
}

/// Which elements a rank owns does not change, so the memory of the last one is used again.
void Checkpointer::take_snapshot() {
  const bool fresh = snapshot_.empty();
  if (fresh) snapshot_ = pieces_;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    auto& copy = snapshot_[i].elements;
    if (fresh) copy = at::empty_like(pieces_[i].elements);
    copy.copy_(pieces_[i].elements);
    pieces_[i].elements = copy;
  }
}

/// On its own thread: no message, no tensor operation.
void Checkpointer::write() {
  const auto start = Clock::now();
  error_ = error_of([&] {
    options_.on_write(step_);
    std::vector<ckpt::StatePiece> pieces;
    for (const auto& [piece, elements] : pieces_) pieces.push_back(piece);
    part_ = ckpt::part_text(ckpt::write_shard(folder_.pending(step_), model_.mesh().rank(), options_.state, pieces));
    options_.progress();
  });
  times_.write_s = seconds_since(start);
  written_ = true;
}

void Checkpointer::commit() {
  if (!under_way_) return;
  const auto start = Clock::now();
  if (writer_.joinable()) writer_.join();
  under_way_ = false;
  written_ = false;
  if (all_well(error_, "write")) {
    const auto parts = comm::gather_strings(control(), part_, model_.context().timeout);
    const auto outcome = is_first() ? error_of([&] { commit_on_first(parts); }) : "";
    if (all_well(outcome, "commit")) {
      committed_ = step_;
      ++times_.saves;
      failures_in_a_row_ = 0;
    }
  }
  const double stall = seconds_since(start);
  times_.stall_s += stall;
  choose_interval(this_stall_s_ + stall);
}

/// Whether all ranks had success; if not, all have failed.
bool Checkpointer::all_well(const std::string& mine, const char* what) {
  const auto errors = comm::gather_strings(control(), mine, model_.context().timeout);
  std::string text;
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    if (!errors[rank].empty()) text += fmt::format("\n  rank {}: {}", rank, errors[rank]);
  }
  if (text.empty()) return true;
  ++times_.failures;
  ++failures_in_a_row_;
  text = fmt::format("the checkpoint of step {} failed ({}); {}:{}", step_, what,
                     committed_ >= 0 ? fmt::format("that of step {} stays", committed_) : "what was there before stays",
                     text);
  if (is_first()) {
    folder_.abandon(step_);
    options_.say(text);
  }
  if (failures_in_a_row_ >= options_.config.max_failures)
    throw CheckpointError(
        fmt::format("{}\n  {} failures in a row are too many (checkpoint.max_failures)", text, failures_in_a_row_));
  return false;
}

void Checkpointer::commit_on_first(const std::vector<std::string>& parts) {
  if (std::exchange(sets_aside_, false)) {
    for (const auto newer : folder_.set_aside_above(options_.resumed_step))
      options_.say(fmt::format("the checkpoint of step {} was set aside: this run went on from step {}", newer,
                               options_.resumed_step));
  }
  const auto index = ckpt::merge_parts(options_.state, parts);
  for (const auto& fault : folder_.commit(index)) options_.say("WARNING: " + fault);
  const ckpt::CheckpointReader again(folder_.committed(step_));  // what is deleted next must not be the last sound one
  if (const auto fault = error_of([&] { folder_.retain(options_.config.keep); }); !fault.empty())
    options_.say("WARNING: older checkpoints stay: " + fault);
  std::uint64_t bytes = 0;
  for (const auto& file : index.files) bytes += file.bytes;
  options_.say(fmt::format("checkpoint of step {}: {:.1f} MiB, training stood still for {:.0f} ms, index {:016x}",
                           step_, static_cast<double>(bytes) / (1 << 20), this_stall_s_ * 1e3, again.identity()));
}

/// Source  Young 1974, "A first order approximation to the optimum checkpoint interval": sqrt(2 C M) for a stall C and
/// a
///         mean time between failures M; never more often than one can be written.
void Checkpointer::choose_interval(double stall_s) {
  if (!options_.config.automatic) return;
  const double mtbf_s = options_.config.mtbf_hours * 3600;
  const bool is_new = interval_s_ == 0;
  interval_s_ = std::max(std::sqrt(2 * std::max(stall_s, 1e-4) * mtbf_s), 2 * times_.write_s);
  next_due_s_ = seconds_since(made_) + interval_s_;
  if (is_new && is_first())
    options_.say(fmt::format(
        "checkpoint.interval: every {:.1f} s, for a stall of {:.3f} s and a failure every {:.3g} h: "
        "{:.2f} % of the time is lost by it",
        interval_s_, stall_s, options_.config.mtbf_hours, 100 * (stall_s / interval_s_ + interval_s_ / (2 * mtbf_s))));
}

}  // namespace orthant::launch
