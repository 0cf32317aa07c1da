// SPDX-License-Identifier: Apache-2.0
// What one rank sends and receives for one operation, as data: rounds of pieces of at most 1 MiB. The MPI back end
// carries them out, a few rounds at a time. Pure arithmetic over addresses, so it is tested without MPI.
#pragma once

#include <cstddef>
#include <vector>

#include <orthant/core/comm/operation.hpp>

namespace orthant::comm {

/// One message. Both ends make the same flows in the same order, so messages between two ranks match first to first.
struct Flow {
  enum class Direction : std::uint8_t { out, in };
  int peer = 0;  ///< position in the group
  Direction direction = Direction::out;
  std::byte* data = nullptr;  ///< only read where the direction is out
  std::size_t bytes = 0;      ///< never 0
};

class RoundPlan {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  /// Rounds that may be under way at once: the second travels while the first is added up.
  static constexpr int kInFlight = 2;
  /// all_reduce: below this every rank gets everything and adds for itself, above it each adds one block and shares it.
  static constexpr std::size_t kSmallReduceBytes = std::size_t{64} << 10;

  /// scratch  storage for what arrives only to be added, kept by the caller from one operation to the next
  RoundPlan(const Operation&, int rank, int size, std::vector<std::byte>& scratch);

  int rounds() const { return rounds_; }
  /// Whether all rounds before `round` must be finished before it starts (it sends what they have added up).
  bool starts_afresh(int round) const { return round == gather_from_; }
  std::vector<Flow> flows(int round) const;
  /// Local work after all flows of the round are done: sums, and the copy from this rank to itself. In order of rounds.
  void finish(int round) const;

 private:
  struct Piece {
    std::int64_t begin = 0, count = 0;  ///< elements
  };
  /// The part of rank `r`'s block that piece `index` covers, from the start of the block.
  Piece piece_of(int r, int index) const;
  std::int64_t block_count(int r) const;
  std::int64_t block_begin(int r) const;
  bool reduces(int round) const { return round < gather_from_; }

  std::byte* received(int round, int peer) const;
  std::byte* at_in(std::int64_t element) const;
  std::byte* at_out(std::int64_t element) const;

  Operation op_;
  int rank_, size_;
  std::size_t element_bytes_;
  std::int64_t piece_count_ = 0;  ///< elements in a full piece
  std::int64_t total_ = 0;        ///< elements over all blocks
  bool blocked_ = true;           ///< each rank has a block of its own; otherwise the whole goes to everyone
  int rounds_ = 0;
  int gather_from_ = 0;  ///< rounds before it send parts to be added, the others send what is final
  std::byte* scratch_ = nullptr;
};

}  // namespace orthant::comm
