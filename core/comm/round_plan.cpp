// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/round_plan.hpp>

#include <algorithm>
#include <cstring>

#include <orthant/core/comm/rank_sum.hpp>

namespace orthant::comm {

using Kind = Operation::Kind;
using Direction = Flow::Direction;

RoundPlan::RoundPlan(const Operation& op, int rank, int size, std::vector<std::byte>& scratch)
    : op_(op), rank_(rank), size_(size), element_bytes_(size_of(op.in.type)) {
  piece_count_ = static_cast<std::int64_t>(kPieceBytes / element_bytes_);
  total_ = op.kind == Kind::all_gather ? op.out.count : op.in.count;
  blocked_ = op.kind != Kind::broadcast && op.kind != Kind::transfer &&
             !(op.kind == Kind::all_reduce && op.in.bytes() < kSmallReduceBytes);

  const int pieces =
      static_cast<int>((block_count(0) + piece_count_ - 1) / piece_count_);  // block 0 is never the shorter one
  const bool reduces = op.kind == Kind::reduce_scatter || op.kind == Kind::all_reduce;
  const bool gathers_sums = op.kind == Kind::all_reduce && blocked_;
  gather_from_ = reduces ? pieces : 0;
  rounds_ = gathers_sums ? 2 * pieces : pieces;

  if (reduces) {
    piece_count_ = std::min(piece_count_, block_count(0));  // also the stride of scratch
    scratch.resize(static_cast<std::size_t>(std::min(kInFlight, pieces)) * static_cast<std::size_t>(size) *
                   static_cast<std::size_t>(piece_count_) * element_bytes_);
    scratch_ = scratch.data();
  }
}

std::int64_t RoundPlan::block_count(int r) const {
  return blocked_ ? total_ / size_ + (r < total_ % size_ ? 1 : 0) : total_;
}

std::int64_t RoundPlan::block_begin(int r) const {
  return blocked_ ? r * (total_ / size_) + std::min<std::int64_t>(r, total_ % size_) : 0;
}

RoundPlan::Piece RoundPlan::piece_of(int r, int index) const {
  const std::int64_t begin = index * piece_count_;
  return {begin, std::clamp<std::int64_t>(block_count(r) - begin, 0, piece_count_)};
}

std::byte* RoundPlan::received(int round, int peer) const {
  return scratch_ + static_cast<std::size_t>((round % kInFlight) * size_ + peer) *
                        static_cast<std::size_t>(piece_count_) * element_bytes_;
}
std::byte* RoundPlan::at_in(std::int64_t element) const {
  return static_cast<std::byte*>(const_cast<void*>(op_.in.data)) + static_cast<std::size_t>(element) * element_bytes_;
}
std::byte* RoundPlan::at_out(std::int64_t element) const {
  return static_cast<std::byte*>(op_.out.data) + static_cast<std::size_t>(element) * size_of(op_.out.type);
}

std::vector<Flow> RoundPlan::flows(int round) const {
  std::vector<Flow> flows;
  const auto add = [&](int peer, Direction direction, std::byte* data, std::int64_t count) {
    if (count > 0) flows.push_back({peer, direction, data, static_cast<std::size_t>(count) * element_bytes_});
  };
  const int index = reduces(round) ? round : round - gather_from_;

  if (op_.kind == Kind::transfer) {
    const Piece piece = piece_of(0, index);
    if (op_.in.data != nullptr)
      add(1 - rank_, Direction::out, at_in(piece.begin), piece.count);
    else
      add(1 - rank_, Direction::in, at_out(piece.begin), piece.count);
    return flows;
  }

  // Everyone starts with its next rank, so that no rank is written to by all at once. Receives first: a message that
  // finds its receive posted is copied once.
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ - step + size_) % size_;
    if (op_.kind == Kind::broadcast) {
      const Piece piece = piece_of(0, index);
      if (peer == op_.root) add(peer, Direction::in, at_out(piece.begin), piece.count);
    } else if (reduces(round)) {
      add(peer, Direction::in, received(round, peer), piece_of(rank_, index).count);
    } else {
      const Piece piece = piece_of(peer, index);
      add(peer, Direction::in, at_out(block_begin(peer) + piece.begin), piece.count);
    }
  }
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    const Piece mine = piece_of(rank_, index);
    const Piece theirs = piece_of(peer, index);
    if (op_.kind == Kind::broadcast) {
      if (rank_ == op_.root) add(peer, Direction::out, at_in(mine.begin), mine.count);
    } else if (reduces(round) || op_.kind == Kind::all_to_all) {
      add(peer, Direction::out, at_in(block_begin(peer) + theirs.begin), theirs.count);
    } else if (op_.kind == Kind::all_gather) {
      add(peer, Direction::out, at_in(mine.begin), mine.count);
    } else {  // all_reduce, second half
      add(peer, Direction::out, at_out(block_begin(rank_) + mine.begin), mine.count);
    }
  }
  return flows;
}

void RoundPlan::finish(int round) const {
  const int index = reduces(round) ? round : round - gather_from_;
  const Piece mine = piece_of(rank_, index);
  if (mine.count == 0) return;
  if (reduces(round)) {
    std::vector<const void*> rows(static_cast<std::size_t>(size_));
    for (int r = 0; r < size_; ++r) {
      rows[static_cast<std::size_t>(r)] = r == rank_ ? at_in(block_begin(rank_) + mine.begin) : received(round, r);
    }
    const std::int64_t to = op_.kind == Kind::all_reduce ? block_begin(rank_) + mine.begin : mine.begin;
    reduce_rows(rows, op_.in.type, {at_out(to), mine.count, op_.out.type}, op_.reduction, op_.into);
  } else if (op_.kind == Kind::all_gather || op_.kind == Kind::all_to_all) {
    const std::byte* from = at_in(op_.kind == Kind::all_gather ? mine.begin : block_begin(rank_) + mine.begin);
    std::byte* to = at_out(block_begin(rank_) + mine.begin);
    if (from != to) std::memcpy(to, from, static_cast<std::size_t>(mine.count) * element_bytes_);
  }
}

}  // namespace orthant::comm
