// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/schedule/csv.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/base/split.hpp>
#include <orthant/pipeline/schedule/message.hpp>

namespace orthant::pipeline {
namespace {

constexpr int kLargestNumber = 1'000'000;
constexpr std::string_view kOverlap = "OVERLAP_F_B";
constexpr std::string_view kAllowed =
    "a cell is <stage><type><micro-batch> with type F, B, I, W, SEND_F, RECV_F, SEND_B or RECV_B, <stage> with "
    "UNSHARD, "
    "RESHARD or REDUCE_GRAD, or a pair as (0F7;7B3)OVERLAP_F_B";

constexpr std::array kTypes{
    std::pair{std::string_view("F"), OpKind::forward},
    std::pair{std::string_view("B"), OpKind::backward},
    std::pair{std::string_view("I"), OpKind::backward_input},
    std::pair{std::string_view("W"), OpKind::backward_weight},
    std::pair{std::string_view("SEND_F"), OpKind::send_activation},
    std::pair{std::string_view("RECV_F"), OpKind::receive_activation},
    std::pair{std::string_view("SEND_B"), OpKind::send_gradient},
    std::pair{std::string_view("RECV_B"), OpKind::receive_gradient},
    std::pair{std::string_view("UNSHARD"), OpKind::unshard},
    std::pair{std::string_view("RESHARD"), OpKind::reshard},
    std::pair{std::string_view("REDUCE_GRAD"), OpKind::reduce},
};

constexpr bool is_message(OpKind kind) { return is_send(kind) || is_receive(kind); }
constexpr bool is_for_units(OpKind kind) {
  return kind == OpKind::unshard || kind == OpKind::reshard || kind == OpKind::reduce;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const auto first = text.find_first_not_of(kBlank);
  return first == text.npos ? std::string_view() : text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

/// A number at the beginning, taken off the text.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number > kLargestNumber) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

struct Cell {
  int row = 0;     ///< from 0: the rank
  int column = 0;  ///< from 0
  std::string_view text;
};

class Reader {
 public:
  Reader(std::string_view text, std::string name) : name_(std::move(name)), text_(text) {}

  CsvSchedule run() {
    read_rows();
    reject_older_dialect();
    place_stages();
    check_computations();
    if (has_messages_) check_messages();
    if (has_messages_ || left_out_ > 0) reject_idle_cells();
    if (has_messages_) finish_lowered();
    CsvSchedule result{std::move(schedule_)};
    if (left_out_ > 0) {
      result.notes.push_back(fmt::format(
          "{}: {} cells UNSHARD, RESHARD and REDUCE_GRAD are left out; weights are gathered and gradients reduced as "
          "fsdp.* says",
          name_, left_out_));
    }
    return result;
  }

 private:
  template <class... Args>
  [[noreturn]] void reject(const Cell& cell, fmt::format_string<Args...> format, Args&&... args) const {
    throw ConfigError(fmt::format("{}: row {} (rank {}), column {}: \"{}\": {}", name_, cell.row + 1, cell.row,
                                  cell.column + 1, cell.text, fmt::format(format, std::forward<Args>(args)...)));
  }
  template <class... Args>
  [[noreturn]] void reject_file(fmt::format_string<Args...> format, Args&&... args) const {
    throw ConfigError(fmt::format("{}: {}", name_, fmt::format(format, std::forward<Args>(args)...)));
  }

  void read_rows() {
    auto lines = split(text_, '\n');
    while (!lines.empty() && trimmed(lines.back()).empty()) lines.pop_back();
    if (lines.empty()) reject_file("the file is empty; wanted a row of cells for each rank");
    for (int row = 0; row < static_cast<int>(lines.size()); ++row) {
      schedule_.ranks.emplace_back();
      const auto cells = split(lines[static_cast<std::size_t>(row)], ',');
      for (int column = 0; column < static_cast<int>(cells.size()); ++column)
        read({row, column, trimmed(cells[static_cast<std::size_t>(column)])});
      if (schedule_.ranks.back().empty())
        reject_file("row {} (rank {}) has no operation; each rank has a row with its stages", row + 1, row);
    }
  }

  void read(const Cell& cell) {
    if (cell.text.empty()) {
      if (!idle_) idle_ = cell;
    } else if (cell.text.starts_with('(')) {
      read_pair(cell);
    } else {
      append(cell, parse(cell, cell.text));
    }
  }

  void read_pair(const Cell& cell) {
    const auto end = cell.text.find(')');
    if (end == cell.text.npos || cell.text.substr(end + 1) != kOverlap) reject(cell, "is no operation; {}", kAllowed);
    const auto parts = split(cell.text.substr(1, end - 1), ';');
    if (parts.size() != 2) reject(cell, "holds {} operations; an overlapped pair holds two", parts.size());
    Op forward = parse(cell, parts[0]);
    const Op backward = parse(cell, parts[1]);
    if (forward.kind != OpKind::forward || backward.kind != OpKind::backward)
      reject(cell, "an overlapped pair is an F and a B, in this order");
    forward.joins_next = true;
    append(cell, forward);
    append(cell, backward);
  }

  Op parse(const Cell& cell, std::string_view text) const {
    const auto stage = take_number(text);
    if (!stage) reject(cell, "does not begin with a stage; {}", kAllowed);
    const auto letters_end = std::min(text.find_first_of("0123456789"), text.size());
    const std::string_view type = text.substr(0, letters_end);
    text.remove_prefix(letters_end);
    if (type == "BW") reject(cell, "{}", older_dialect());
    const auto* known = std::ranges::find(kTypes, type, &std::pair<std::string_view, OpKind>::first);
    if (known == kTypes.end()) reject(cell, "has the unknown type \"{}\"; {}", type, kAllowed);
    const auto microbatch = take_number(text);
    if (!text.empty() || (!microbatch && !is_for_units(known->second)))
      reject(cell, "does not end with a micro-batch; {}", kAllowed);
    return {known->second, StageId{*stage}, MicrobatchId{microbatch.value_or(0)}};
  }

  void append(const Cell& cell, const Op& op) {
    if (is_for_units(op.kind)) {
      ++left_out_;
      return;
    }
    const auto [first, is_new] = cells_.try_emplace(op, cell);
    if (!is_new)
      reject(cell, "stands in row {}, column {} already; each operation runs once", first->second.row + 1,
             first->second.column + 1);
    has_messages_ |= is_message(op.kind);
    schedule_.ranks.back().push_back(op);
  }

  static std::string older_dialect() {
    return "the file is in an older dialect, in which BW is the whole backward and B the gradient of the input; "
           "write I for its B, then B for its BW";
  }

  /// The older dialect without a BW: W stands beside B.
  void reject_older_dialect() const {
    const auto find = [&](OpKind kind) {
      return std::ranges::find_if(cells_, [&](const auto& entry) { return entry.first.kind == kind; });
    };
    const auto weight = find(OpKind::backward_weight);
    if (weight != cells_.end() && find(OpKind::backward_input) == cells_.end())
      reject(weight->second, "is a W, but the file has no I: {}", older_dialect());
  }

  /// Numbers of stages and micro-batches, and the rank of each stage.
  void place_stages() {
    std::map<StageId, Cell> placed;
    for (const auto& [op, cell] : cells_) {
      if (!is_compute(op.kind)) continue;
      const auto [first, is_new] = placed.try_emplace(op.stage, cell);
      if (first->second.row != cell.row)
        reject(cell, "stage {} is in row {}, too (\"{}\"); a stage is on one rank", op.stage.value,
               first->second.row + 1, first->second.text);
      schedule_.stages = std::max(schedule_.stages, op.stage.value + 1);
      schedule_.microbatches = std::max(schedule_.microbatches, op.microbatch.value + 1);
    }
    for (StageId stage{0}; stage.value < schedule_.stages; ++stage.value) {
      if (!placed.contains(stage))
        reject_file("stage {} is missing; there are cells up to stage {}", stage.value, schedule_.stages - 1);
      schedule_.placement.push_back(placed.at(stage).row);
    }
    schedule_.name = name_;
  }

  const Cell* find(OpKind kind, StageId stage, MicrobatchId m) const {
    const auto cell = cells_.find({kind, stage, m});
    return cell == cells_.end() ? nullptr : &cell->second;
  }

  /// Each stage runs F, and then B or I and W, of each micro-batch.
  void check_computations() const {
    for (StageId stage{0}; stage.value < schedule_.stages; ++stage.value) {
      for (MicrobatchId m{0}; m.value < schedule_.microbatches; ++m.value) {
        const Cell *forward = find(OpKind::forward, stage, m), *backward = find(OpKind::backward, stage, m),
                   *input = find(OpKind::backward_input, stage, m), *weight = find(OpKind::backward_weight, stage, m);
        const std::string where =
            fmt::format("stage {}, micro-batch {} of {}", stage.value, m.value, schedule_.microbatches);
        if (forward == nullptr) reject_file("F is missing: {}", where);
        if (backward != nullptr && (input != nullptr || weight != nullptr))
          reject(*backward, "B stands beside I or W ({}); wanted either B, or I and W", where);
        if (backward == nullptr && (input == nullptr || weight == nullptr))
          reject_file("{} is missing: {}", input != nullptr ? "W" : weight != nullptr ? "I" : "B (or I and W)", where);
        const auto in_order = [&](const Cell& first, const Cell& second) {
          if (first.column >= second.column)  // equal: both of one pair
            reject(second, "stands before \"{}\", which it needs", first.text);
        };
        in_order(*forward, backward != nullptr ? *backward : *input);
        if (input != nullptr) in_order(*input, *weight);
      }
    }
  }

  /// What the placement needs, and nothing else.
  void check_messages() const {
    std::set<Op> needed;
    for (const auto& [op, cell] : cells_) {
      if (const auto receive = receive_before(schedule_, op)) needed.insert(*receive);
      if (const auto send = send_after(schedule_, op)) needed.insert(*send);
    }
    for (const auto& [op, cell] : cells_) {
      if (is_message(op.kind) && !needed.contains(op))
        reject(cell, "no stage needs this message: its neighbour is on the same rank, or there is none");
      if (is_message(op.kind) && schedule_.rank_of(op.stage) != cell.row)
        reject(cell, "stage {} is on rank {}", op.stage.value, schedule_.rank_of(op.stage));
    }
    for (const Op& op : needed) {
      if (!cells_.contains(op)) reject_file("the message {} is missing", to_text(op));
    }
  }

  void reject_idle_cells() const {
    if (idle_)
      reject(*idle_, "an empty cell is idle time, which stands in files of computations only; this one has {}",
             has_messages_ ? "messages" : "UNSHARD, RESHARD or REDUCE_GRAD");
  }

  void finish_lowered() {
    for (auto& ops : schedule_.ranks) {
      schedule_.slots = std::max(schedule_.slots, slots_of(ops));
      for (const OpKind kind : {OpKind::norm_units, OpKind::tie, OpKind::norm, OpKind::step})
        ops.push_back({kind, {}, {}});
    }
  }

  /// Slots are taken in turn: at a RECV, there must be as many as messages since the oldest that is not read yet.
  int slots_of(const std::vector<Op>& ops) const {
    int slots = 1;
    std::map<ChannelKey, std::vector<Op>> unread;  // and what came after the oldest of them
    std::set<Op> read;
    for (const Op& op : ops) {
      if (const auto receive = receive_before(schedule_, op)) read.insert(*receive);
      if (!is_receive(op.kind)) continue;
      auto& messages = unread[channel_of(schedule_, op)];
      messages.erase(messages.begin(), std::ranges::find_if(messages, [&](const Op& m) { return !read.contains(m); }));
      messages.push_back(op);
      slots = std::max(slots, static_cast<int>(messages.size()));
    }
    return slots;
  }

  std::string name_;
  std::string_view text_;
  Schedule schedule_;
  std::map<Op, Cell> cells_;
  std::optional<Cell> idle_;  ///< the first empty cell
  bool has_messages_ = false;
  int left_out_ = 0;
};

std::string cell_of(const Op& op) {
  const auto* type = std::ranges::find(kTypes, op.kind, &std::pair<std::string_view, OpKind>::second);
  const std::string microbatch = is_for_units(op.kind) ? "" : std::to_string(op.microbatch.value);
  return fmt::format("{}{}{}", op.stage.value, type->first, microbatch);
}

}  // namespace

CsvSchedule read_csv(std::string_view text, std::string name) { return Reader(text, std::move(name)).run(); }

CsvSchedule read_csv_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw ConfigError(fmt::format("schedule file {} cannot be read", path.string()));
  return read_csv(text, "file:" + path.string());
}

std::string write_csv(const Schedule& schedule) {
  if (schedule.copies != 1) {
    throw ConfigError(fmt::format(
        "schedule {} cannot be written as CSV: it runs two copies of the pipeline, and the format has one, whose every "
        "stage takes every micro-batch",
        schedule.name));
  }
  std::string text;
  for (const auto& ops : schedule.ranks) {
    std::vector<std::string> cells;
    bool joined = false;
    for (const Op& op : ops) {
      if (is_tail(op.kind)) continue;
      if (joined) {
        cells.back() = fmt::format("({};{}){}", cells.back(), cell_of(op), kOverlap);
      } else {
        cells.push_back(cell_of(op));
      }
      joined = op.joins_next;
    }
    text += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return text;
}

}  // namespace orthant::pipeline
