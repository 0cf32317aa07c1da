// SPDX-License-Identifier: Apache-2.0
#include <orthant/tp/row_exchange.hpp>

#include <algorithm>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/model/tensor_span.hpp>
#include <orthant/core/shard/placement.hpp>

namespace orthant::tp {
namespace {

/// body(first, count) for nearly equal parts of [0, rows), as many as there are to be and rows allow.
template <class Body>
void for_pieces(std::int64_t rows, int pieces, const Body& body) {
  const int parts = static_cast<int>(std::clamp<std::int64_t>(rows, 1, pieces));
  for (int i = 0; i < parts; ++i) {
    const auto range = shard::balanced_range(rows, i, parts);
    body(range.begin, range.length());
  }
}

/// What a ring sends a rank for one pass over `bytes`; an all_reduce makes two.
double ring_bytes(std::int64_t bytes, int size) { return static_cast<double>(bytes) * (size - 1) / size; }

}  // namespace

using comm::Collectives;
using model::LayerPass;
using model::span_of;

RowExchange::RowExchange(comm::Lane lane, const TpOptions& options) : lane_(lane), options_(options) {
  invariant(lane_.collectives != nullptr, "every rank is a member of its tp communicator, if only of one rank");
}

// The operation holds its tensors until it is complete, whatever becomes of the body that posted it.
Arriving RowExchange::start(at::Tensor result, std::function<comm::Work(Collectives&)> operation,
                            LayerPass& pass) const {
  const int posted =
      pass.post([group = lane_.collectives, operation = std::move(operation)] { return operation(*group); });
  Arriving arriving(std::move(result), posted);
  return options_.overlap ? arriving : Arriving(arriving.wait(pass));
}

Arriving RowExchange::gather(const at::Tensor& rows_NC, LayerPass& pass) const {
  auto shard = rows_NC.contiguous();
  if (!options_.sequence_parallel) return Arriving(std::move(shard));
  auto full = at::empty({shard.size(0) * size(), shard.size(1)}, shard.options());
  return start(
      full, [shard, full](Collectives& group) { return group.all_gather(span_of(shard), span_of(full)); }, pass);
}

std::vector<ArrivingPiece> RowExchange::gather_pieces(const at::Tensor& rows_NC, LayerPass& pass) const {
  std::vector<ArrivingPiece> pieces;
  for_pieces(rows_NC.size(0), options_.gather_pieces, [&](std::int64_t first, std::int64_t count) {
    pieces.push_back({first, count, gather(rows_NC.narrow(0, first, count), pass)});
  });
  return pieces;
}

Arriving RowExchange::gather_kept(const at::Tensor& kept, LayerPass& pass) const {
  return options_.keep_gathered ? Arriving(kept) : gather(kept, pass);
}

Arriving RowExchange::sum(at::Tensor partial_TC, LayerPass& pass) const {
  if (!options_.sequence_parallel) return all_reduce(std::move(partial_TC), comm::Reduction::sum, pass);
  const auto rows = partial_TC.size(0);
  if (rows % size() != 0) {
    throw ShapeError(
        fmt::format("{} rows cannot be cut into {} equal sequence shards; the sequence length must be a multiple of tp",
                    rows, size()));
  }
  auto shard = at::empty({rows / size(), partial_TC.size(1)}, partial_TC.options());
  return start(
      shard,
      [partial_TC = std::move(partial_TC), shard](Collectives& group) {
        return group.reduce_scatter(span_of(partial_TC), span_of(shard), comm::Into::replace);
      },
      pass);
}

Arriving RowExchange::all_reduce(at::Tensor values, comm::Reduction op, LayerPass& pass) const {
  return start(
      values, [values, op](Collectives& group) { return group.all_reduce(span_of(values), op); }, pass);
}

RowOutline::Move RowOutline::post(const char* operation, double bytes) {
  const auto& options = exchange_.options_;
  Move move;
  move.posted = out_.post(fmt::format("{} {}", operation, what_), exchange_.lane_.stream, bytes / options.bytes_per_us);
  if (!options.overlap) wait(std::exchange(move, {}));
  return move;
}

double RowOutline::row_bytes(std::int64_t columns) const {
  return ring_bytes(rows_ * columns * exchange_.options_.element_bytes, exchange_.size());
}

RowOutline::Move RowOutline::gather(std::int64_t columns) {
  if (!exchange_.options_.sequence_parallel) return {};
  return post("AG", row_bytes(columns));
}

RowOutline::Move RowOutline::gather_kept(std::int64_t columns) {
  return exchange_.options_.keep_gathered ? Move{} : gather(columns);
}

void RowOutline::products_by_pieces(std::int64_t columns, std::int64_t inner) {
  std::vector<std::pair<RowOutline, Move>> pieces;
  for_pieces(rows_ / exchange_.size(), exchange_.options_.gather_pieces, [&](std::int64_t, std::int64_t count) {
    RowOutline piece(exchange_, what_, count * exchange_.size(), out_);
    const Move move = piece.gather(inner);
    pieces.emplace_back(std::move(piece), move);
  });
  for (auto& [piece, move] : pieces) {
    wait(move);
    piece.product(columns, inner);
  }
}

RowOutline::Move RowOutline::sum(std::int64_t columns) {
  if (exchange_.options_.sequence_parallel) return post("RS", row_bytes(columns));
  return post("AR", 2 * row_bytes(columns));
}

RowOutline::Move RowOutline::all_reduce(const char* name, std::int64_t values_per_row) {
  return post(name, 2 * ring_bytes(rows_ * values_per_row * sizeof(float), exchange_.size()));
}

void RowOutline::wait(Move move) {
  if (move.posted >= 0) out_.wait(move.posted);
}

void RowOutline::product(std::int64_t columns, std::int64_t inner) {
  out_.compute(2.0 * static_cast<double>(rows_ * columns * inner) / exchange_.options_.flops_per_us);
}

}  // namespace orthant::tp
