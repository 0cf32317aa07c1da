// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/cost/draw.hpp>

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::pipeline {
namespace {

constexpr double kMostColumns = 400;

/// The time from `begin`, of all ranks, in columns of `unit`.
struct Scale {
  double begin = 0;
  double end = 0;
  double unit = 1;
  std::size_t column(double time) const { return static_cast<std::size_t>(std::lround((time - begin) / unit)); }
};

Scale scale_of(const std::vector<std::vector<Interval>>& ops) {
  Scale scale;
  double shortest = 0;
  bool any = false;
  for (const auto& rank : ops) {
    for (const Interval& at : rank) {
      scale.begin = any ? std::min(scale.begin, at.begin) : at.begin;
      scale.end = any ? std::max(scale.end, at.end) : at.end;
      any = true;
      const double length = at.end - at.begin;
      if (length > 0 && (shortest == 0 || length < shortest)) shortest = length;
    }
  }
  scale.unit = std::max(shortest, (scale.end - scale.begin) / kMostColumns);
  if (scale.unit == 0) scale.unit = 1;
  return scale;
}

using Cells = std::vector<std::string>;

Cells cells_of(const Schedule& compute, std::size_t rank, const std::vector<Interval>& at, const Scale& scale) {
  Cells cells(scale.column(scale.end), ".");
  const auto& list = compute.ranks[rank];
  for (std::size_t i = 0; i < list.size(); ++i) {
    std::size_t first = scale.column(at[i].begin);
    const std::size_t last = scale.column(at[i].end);
    if (i > 0 && list[i - 1].joins_next) first += (last - first + 2) / 3;  // F takes about a third of a pair
    const std::string name = short_text(compute, list[i]) + (list[i].joins_next ? "&" : "");
    for (std::size_t column = first; column < last; ++column) cells[column] = name;
  }
  return cells;
}

}  // namespace

std::string draw(const Schedule& compute, const std::vector<std::vector<Interval>>& ops) {
  invariant(ops.size() == compute.ranks.size(), "draw: a timeline of another schedule");
  const Scale scale = scale_of(ops);
  std::vector<Cells> rows;
  std::size_t width = 0;
  for (std::size_t rank = 0; rank < ops.size(); ++rank) {
    rows.push_back(cells_of(compute, rank, ops[rank], scale));
    for (const std::string& cell : rows.back()) width = std::max(width, cell.size() + 1);
  }
  width = std::max<std::size_t>(width, 4);  // pictures of few and of many micro-batches have the same columns
  std::string picture;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    picture += fmt::format("rank {:<{}}  ", rank, std::to_string(rows.size() - 1).size());
    for (const std::string& cell : rows[rank]) picture += fmt::format("{:<{}}", cell, width);
    picture.erase(picture.find_last_not_of(' ') + 1);
    picture += '\n';
  }
  return picture;
}

}  // namespace orthant::pipeline
