// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/v_raster.hpp>

#include <algorithm>
#include <utility>

#include <orthant/pipeline/generate/v_pattern.hpp>

namespace orthant::pipeline {
namespace {

// Places in a block: F of the first and of the second stage of a rank, I of the second and of the first; then W.
constexpr int kPlaces = 4, kWeightPlace = 4;
constexpr int kEmpty = -1;

int stage_at(int place, int rank, int ranks) { return place == 0 || place == 3 ? rank : 2 * ranks - 1 - rank; }
StepKind kind_at(int place) { return place < 2 ? kF : kI; }

/// A rank's operations on a raster of cells.
struct Row {
  std::array<std::vector<int>, kPlaces + 1>
      at;                  ///< cell of each operation, by place and then micro-batch (W: in I's order)
  std::vector<int> cells;  ///< place of the operation in each cell, or kEmpty

  void fill_cells() {
    int last = 0;
    for (const auto& cells_of : at)
      if (!cells_of.empty()) last = std::max(last, cells_of.back());
    cells.assign(static_cast<std::size_t>(last) + 1, kEmpty);
    for (int place = 0; place <= kPlaces; ++place)
      for (const int cell : at[static_cast<std::size_t>(place)]) cells[static_cast<std::size_t>(cell)] = place;
  }

  void drop_weights() {
    at[kWeightPlace].clear();
    fill_cells();
  }

  /// Each W into the first free cell behind an I that has none yet.
  void put_weights() {
    drop_weights();
    int waiting = 0;
    for (std::size_t cell = 0; cell < cells.size() || waiting > 0; ++cell) {
      if (cell < cells.size() && cells[cell] != kEmpty) {
        waiting += kind_at(cells[cell]) == kI ? 1 : 0;
      } else if (waiting > 0) {
        at[kWeightPlace].push_back(static_cast<int>(cell));
        --waiting;
      }
    }
    fill_cells();
  }

  void move(int place, int i, int to) {
    int& cell = at[static_cast<std::size_t>(place)][static_cast<std::size_t>(i)];
    cells[static_cast<std::size_t>(cell)] = kEmpty;
    cells[static_cast<std::size_t>(cell = to)] = place;
  }

  /// Most activations at a time if W is what frees them; without W's, any free cell behind an I does.
  int peak() const {
    const bool has_weights = !at[kWeightPlace].empty();
    int held = 0, waiting = 0, peak = 0;
    for (const int place : cells) {
      if (place == kWeightPlace) {
        --held;
      } else if (place != kEmpty) {
        held += kind_at(place) == kF ? 1 : 0;
        waiting += kind_at(place) == kI ? 1 : 0;
      } else if (!has_weights && waiting > 0) {
        --waiting;
        --held;
      }
      peak = std::max(peak, held);
    }
    return peak;
  }
};

class Raster {
 public:
  Raster(VShape shape, int ranks, int microbatches) : rows_(static_cast<std::size_t>(ranks)) {
    for (int rank = 0; rank < ranks; ++rank) {
      const auto offsets = block_offsets(shape, ranks, rank);
      Row& row = rows_[static_cast<std::size_t>(rank)];
      for (std::size_t place = 0; place < kPlaces; ++place)
        for (int m = 0; m < microbatches; ++m) row.at[place].push_back(offsets[place] + kBlockCells * m);
      row.fill_cells();
    }
  }

  /// What comes before the first I of the first stage, and what comes after its last F, moves to the earliest free cell
  /// that its inputs and the memory of the repeated blocks allow. Between them the blocks fit without gaps.
  void tighten_ends() {
    for (Row& row : rows_) row.put_weights();
    pull_forward(true);
    squeeze();
    for (Row& row : rows_) row.drop_weights();
    pull_forward(false);
    for (Row& row : rows_) row.put_weights();
    squeeze();
    for (Row& row : rows_) row.drop_weights();
  }

  const std::vector<Row>& rows() const { return rows_; }

 private:
  struct Event {
    int cell, rank, place, i;
    friend auto operator<=>(const Event&, const Event&) = default;
  };

  std::vector<Event> events() const {
    std::vector<Event> events;
    for (int rank = 0; rank < static_cast<int>(rows_.size()); ++rank) {
      const auto& at = rows_[static_cast<std::size_t>(rank)].at;
      for (int place = 0; place <= kPlaces; ++place) {
        int i = 0;
        for (const int cell : at[static_cast<std::size_t>(place)]) events.push_back({cell, rank, place, i++});
      }
    }
    std::ranges::sort(events);
    return events;
  }

  int cell_of(int rank, int place, int i) const {
    return rows_[static_cast<std::size_t>(rank)].at[static_cast<std::size_t>(place)][static_cast<std::size_t>(i)];
  }

  /// The first cell behind what F or I needs from this and other ranks.
  int after_inputs(const Event& event) const {
    int after = 0;
    const auto wait_for = [&](int rank, int place) { after = std::max(after, cell_of(rank, place, event.i) + 1); };
    const bool down = event.place == 0 || event.place == 2;
    if (down && event.rank > 0) wait_for(event.rank - 1, event.place);
    if (!down && event.rank + 1 < static_cast<int>(rows_.size())) wait_for(event.rank + 1, event.place);
    if (event.place > 0) wait_for(event.rank, event.place - 1);
    return after;
  }

  /// The first cell behind the I that W belongs to.
  int after_its_input(const Event& event) const {
    const auto& at = rows_[static_cast<std::size_t>(event.rank)].at;
    std::vector<int> inputs(at[2]);
    inputs.insert(inputs.end(), at[3].begin(), at[3].end());
    std::ranges::sort(inputs);
    return inputs[static_cast<std::size_t>(event.i)] + 1;
  }

  void pull_forward(bool warm_up_too) {
    int most = 0;
    for (const Row& row : rows_) most = std::max(most, row.peak());
    const int last = static_cast<int>(rows_.front().at[0].size()) - 1;
    enum { warm_up, steady, cool_down } phase = warm_up;
    for (const Event& event : events()) {
      if (phase == warm_up && event.rank == 0 && event.place == 3) phase = steady;
      if (phase == steady || (phase == warm_up && !warm_up_too)) {
        if (event.rank == 0 && event.place == 0 && event.i == last) phase = cool_down;
        continue;
      }
      pull(event, most);
    }
  }

  void pull(const Event& event, int most) {
    Row& row = rows_[static_cast<std::size_t>(event.rank)];
    int from = event.place == kWeightPlace ? after_its_input(event) : after_inputs(event);
    if (event.i > 0) from = std::max(from, cell_of(event.rank, event.place, event.i - 1) + 1);
    for (int cell = from; cell < event.cell; ++cell) {
      if (row.cells[static_cast<std::size_t>(cell)] != kEmpty) continue;
      row.move(event.place, event.i, cell);
      if (row.peak() <= most) return;
      row.move(event.place, event.i, event.cell);
    }
  }

  /// Every operation begins as soon as its rank and its inputs allow, in unchanged order.
  void squeeze() {
    std::vector<int> free(rows_.size());
    for (const Event& event : events()) {
      const auto rank = static_cast<std::size_t>(event.rank);
      int cell = free[rank];
      if (event.place != kWeightPlace) cell = std::max(cell, after_inputs(event));
      rows_[rank].at[static_cast<std::size_t>(event.place)][static_cast<std::size_t>(event.i)] = cell;
      free[rank] = cell + 1;
    }
    for (Row& row : rows_) row.fill_cells();
  }

  std::vector<Row> rows_;
};

/// F and I as on the raster; a free cell runs a W, of the second stage if one waits.
std::vector<Step> read_row(const OrderProblem& problem, const Row& row, int rank) {
  std::vector<Step> steps;
  std::array<int, kPlaces> done{};
  std::array<int, 2> weights{};  // of the second stage, of the first
  const auto weight_waits = [&](int i) {
    return weights[static_cast<std::size_t>(i)] < done[static_cast<std::size_t>(2 + i)];
  };
  for (std::size_t cell = 0; cell < row.cells.size() || weight_waits(0) || weight_waits(1); ++cell) {
    const int place = cell < row.cells.size() ? row.cells[cell] : kEmpty;
    if (place != kEmpty) {
      steps.push_back(
          problem.step(kind_at(place), stage_at(place, rank, problem.ranks), done[static_cast<std::size_t>(place)]++));
    } else if (weight_waits(0) || weight_waits(1)) {
      const int i = weight_waits(0) ? 0 : 1;
      steps.push_back(problem.step(kW, stage_at(2 + i, rank, problem.ranks), weights[static_cast<std::size_t>(i)]++));
    }
  }
  return steps;
}

}  // namespace

Order tightened_blocks(const OrderProblem& problem, VShape shape) {
  Raster raster(shape, problem.ranks, problem.microbatches);
  raster.tighten_ends();
  Order order;
  for (const Row& row : raster.rows()) order.push_back(read_row(problem, row, static_cast<int>(order.size())));
  return order;
}

}  // namespace orthant::pipeline
