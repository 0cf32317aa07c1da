// SPDX-License-Identifier: Apache-2.0
// Placement: which part of a global tensor a rank of one axis holds, where each element of it lies locally, and how
// many ranks hold that part, too. Constructors replicate() and shard(). Uneven shards are legal, empty ones too:
// nothing is padded.
#pragma once

#include <cstdint>
#include <vector>

namespace orthant::shard {

using Shape = std::vector<std::int64_t>;

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t length() const { return end - begin; }
  friend bool operator==(Range, Range) = default;
};

/// Part `index` of `degree` nearly equal parts of [0, total); the first total % degree parts are one longer.
Range balanced_range(std::int64_t total, int index, int degree);

std::int64_t numel(const Shape&);

/// Elements that are contiguous both in the global tensor and locally, as flat (row-major) indices.
struct Run {
  std::int64_t global = 0;
  std::int64_t local = 0;
  std::int64_t length = 0;
  friend bool operator==(Run, Run) = default;
};

/// Elements that lie one after the other locally and fill a rectangle of the global tensor, whose one row a tensor of
/// one dim is.
struct Block {
  Range rows;
  Range columns;
  std::int64_t local = 0;  ///< first element
  std::int64_t numel() const { return rows.length() * columns.length(); }
  friend bool operator==(const Block&, const Block&) = default;
};

struct Placement {
  Shape global_shape;  ///< one or two dims
  int dim = -1;        ///< sharded dim, -1 when replicated
  Range range;         ///< this rank's part of that dim
  int copies = 1;      ///< ranks of the axis that hold this very part
  int copy = 0;        ///< which of them this rank is

  bool is_replicated() const { return dim < 0; }
  /// Of the ranks that hold the part, one owns it: counts it in norms and writes it to files.
  bool is_owned() const { return copy == 0; }
  Shape local_shape() const;
  /// In local order; they tile the local tensor, and over all owners the global one, exactly once.
  std::vector<Run> runs() const;
  /// The runs, cut to local elements [begin, end); `local` stays relative to the whole local tensor.
  std::vector<Run> runs_within(std::int64_t begin, std::int64_t end) const;
  /// The same elements as at most three blocks, in local order: what is left of a row, whole rows, part of a row.
  std::vector<Block> blocks_within(std::int64_t begin, std::int64_t end) const;

 private:
  struct Window;
  Window window() const;
};

/// Whole on each of `copies` ranks.
Placement replicate(Shape global_shape, int copy = 0, int copies = 1);
Placement shard(Shape global_shape, int dim, int index, int degree);
/// On `degree` ranks, of a dim that can be cut into so many equal pieces only. Where there are fewer of those than
/// ranks, neighbours hold the same one. `pieces` and `degree`: one divides the other.
Placement shard_pieces(Shape global_shape, int dim, std::int64_t pieces, int index, int degree);

}  // namespace orthant::shard
