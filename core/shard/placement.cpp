// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/shard/placement.hpp>

#include <algorithm>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::shard {

Range balanced_range(std::int64_t total, int index, int degree) {
  invariant(total >= 0 && degree >= 1 && index >= 0 && index < degree, "balanced_range wants 0 <= index < degree");
  const std::int64_t base = total / degree;
  const std::int64_t longer = total % degree;
  const std::int64_t begin = index * base + std::min<std::int64_t>(index, longer);
  return {begin, begin + base + (index < longer ? 1 : 0)};
}

std::int64_t numel(const Shape& shape) {
  std::int64_t product = 1;
  for (std::int64_t size : shape) product *= size;
  return product;
}

Shape Placement::local_shape() const {
  Shape local = global_shape;
  if (dim >= 0) local[dim] = range.length();
  return local;
}

std::vector<Run> Placement::runs() const { return runs_within(0, numel(local_shape())); }

/// The local tensor as rows of `width` elements, taken from row and column on of rows of `global_width` elements.
struct Placement::Window {
  std::int64_t global_width, width, row, column;
};

Placement::Window Placement::window() const {
  const std::int64_t global_width = global_shape.back();
  if (dim == static_cast<int>(global_shape.size()) - 1) return {global_width, range.length(), 0, range.begin};
  return {global_width, global_width, dim == 0 ? range.begin : 0, 0};
}

std::vector<Run> Placement::runs_within(std::int64_t begin, std::int64_t end) const {
  const auto [global_width, local_width, first_row, first_column] = window();
  begin = std::max<std::int64_t>(begin, 0);
  end = std::min(end, numel(local_shape()));
  if (begin >= end) return {};
  if (local_width == global_width) return {{first_row * global_width + begin, begin, end - begin}};

  std::vector<Run> runs;
  for (std::int64_t local = begin; local < end;) {
    const std::int64_t row = local / local_width;
    const std::int64_t column = local % local_width;
    const std::int64_t length = std::min(local_width - column, end - local);
    runs.push_back({(first_row + row) * global_width + first_column + column, local, length});
    local += length;
  }
  return runs;
}

std::vector<Block> Placement::blocks_within(std::int64_t begin, std::int64_t end) const {
  const auto [global_width, width, first_row, first_column] = window();
  begin = std::max<std::int64_t>(begin, 0);
  end = std::min(end, numel(local_shape()));
  std::vector<Block> blocks;
  while (begin < end) {
    const std::int64_t row = begin / width, column = begin % width;
    const bool whole_rows = column == 0 && end - begin >= width;
    const std::int64_t rows = whole_rows ? (end - begin) / width : 1;
    const std::int64_t columns = whole_rows ? width : std::min(width - column, end - begin);
    blocks.push_back({.rows = {first_row + row, first_row + row + rows},
                      .columns = {first_column + column, first_column + column + columns},
                      .local = begin});
    begin += rows * columns;
  }
  return blocks;
}

Placement replicate(Shape global_shape, int copy, int copies) {
  return {.global_shape = std::move(global_shape), .dim = -1, .range = {}, .copies = copies, .copy = copy};
}

Placement shard(Shape global_shape, int dim, int index, int degree) {
  if (dim < 0 || dim >= static_cast<int>(global_shape.size())) {
    throw ShapeError(fmt::format("shard: dim {} of a tensor of {} dims", dim, global_shape.size()));
  }
  const Range range = balanced_range(global_shape[dim], index, degree);
  return {.global_shape = std::move(global_shape), .dim = dim, .range = range};
}

Placement shard_pieces(Shape global_shape, int dim, std::int64_t pieces, int index, int degree) {
  if (pieces % degree != 0 && degree % pieces != 0) {
    throw ShapeError(fmt::format("{} pieces over {} ranks: neither divides the other", pieces, degree));
  }
  if (pieces >= degree) return shard(std::move(global_shape), dim, index, degree);
  const int copies = degree / static_cast<int>(pieces);
  auto placement = shard(std::move(global_shape), dim, index / copies, static_cast<int>(pieces));
  placement.copies = copies;
  placement.copy = index % copies;
  return placement;
}

}  // namespace orthant::shard
