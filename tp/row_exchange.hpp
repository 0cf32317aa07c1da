// SPDX-License-Identifier: Apache-2.0
// RowExchange: how rows of activations travel between the ranks of the tp axis. Two moves make up every sharded layer
// and its gradient: gather() and sum(). With sequence parallelism they are all_gather and reduce_scatter over ranges of
// rows, without it nothing and all_reduce. RowOutline says the same moves to a Declaration, so that declare() reads
// like the body. Source: Shoeybi et al. 2019 (Megatron-LM), section 3; Korthikanti et al. 2022, section 4.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <orthant/core/comm/lane.hpp>
#include <orthant/core/model/layer_pass.hpp>
#include <orthant/tp/tp_options.hpp>

namespace orthant::tp {

// N rows on this rank  T rows of the whole sequence, sequence-major (row s B + b): rank r of t has rows [r T/t, (r+1)
// T/t) under sequence parallelism, all of them (N = T) without it  C columns

/// A tensor that may still be under way.
class [[nodiscard]] Arriving {
 public:
  /// Waits for the collective that fills the tensor. Once.
  at::Tensor wait(model::LayerPass& pass) {
    if (posted_ != kHere) pass.wait(std::exchange(posted_, kHere));
    return std::move(tensor_);
  }

 private:
  friend class RowExchange;
  static constexpr int kHere = -1;
  explicit Arriving(at::Tensor tensor, int posted = kHere) : tensor_(std::move(tensor)), posted_(posted) {}
  at::Tensor tensor_;
  int posted_;
};

/// Rows [first, first + rows) of every rank, one rank under the other.
struct ArrivingPiece {
  std::int64_t first = 0;
  std::int64_t rows = 0;
  Arriving tensor;
};

/// Every move posts on the lane, through the pass; all ranks of the lane make the same moves in the same order.
class RowExchange {
 public:
  RowExchange(comm::Lane lane, const TpOptions& options);

  int rank() const { return lane_.collectives->rank(); }
  int size() const { return lane_.collectives->size(); }
  int sequence_shards() const { return options_.sequence_parallel ? size() : 1; }
  bool keeps_gathered() const { return options_.keep_gathered; }
  bool gathers_in_pieces() const { return options_.sequence_parallel && options_.gather_pieces > 1; }

  /// [N, C] -> [T, C]: the rows of all ranks.
  Arriving gather(const at::Tensor& rows_NC, model::LayerPass& pass) const;
  /// The same in pieces, all posted: each has rows of every rank.
  std::vector<ArrivingPiece> gather_pieces(const at::Tensor& rows_NC, model::LayerPass& pass) const;
  /// gather() of what a layer kept of its input, unless it kept all rows.
  Arriving gather_kept(const at::Tensor& kept, model::LayerPass& pass) const;
  /// [T, C] partial -> [N, C]: this rank's rows of the sum over ranks. `partial` is consumed.
  /// Throws  ShapeError if T is not a multiple of the number of sequence shards.
  Arriving sum(at::Tensor partial_TC, model::LayerPass& pass) const;
  /// In place over all ranks.
  Arriving all_reduce(at::Tensor values, comm::Reduction op, model::LayerPass& pass) const;

 private:
  friend class RowOutline;
  Arriving start(at::Tensor result, std::function<comm::Work(comm::Collectives&)> operation,
                 model::LayerPass& pass) const;

  comm::Lane lane_;
  TpOptions options_;
};

class RowOutline {
 public:
  /// what  stands in the timeline behind the operation: "AG q_proj".
  RowOutline(const RowExchange& exchange, std::string what, std::int64_t rows, model::Declaration& out)
      : exchange_(exchange), what_(std::move(what)), rows_(rows), out_(out) {}

  /// A collective to wait for once, or nothing where nothing travels.
  class [[nodiscard]] Move {
    friend class RowOutline;
    int posted = -1;
  };
  Move gather(std::int64_t columns);
  Move gather_kept(std::int64_t columns);
  /// gather_pieces(), and the products [rows, inner] x [inner, columns] with what has arrived.
  void products_by_pieces(std::int64_t columns, std::int64_t inner);
  Move sum(std::int64_t columns);
  /// values_per_row  of the type in which statistics are kept.
  Move all_reduce(const char* name, std::int64_t values_per_row);
  void wait(Move move);
  /// A product of [rows, inner] with [inner, columns], or one of the two of its gradient.
  void product(std::int64_t columns, std::int64_t inner);

 private:
  double row_bytes(std::int64_t columns) const;
  Move post(const char* operation, double bytes);

  const RowExchange& exchange_;
  std::string what_;
  std::int64_t rows_;
  model::Declaration& out_;
};

}  // namespace orthant::tp
