// SPDX-License-Identifier: Apache-2.0
// Collectives over one group of ranks: one communicator per (mesh axis, stream). All members call the same operations
// in the same order; operations of one communicator complete in order. Sums are taken in rank order in every CPU back
// end, with fp32 accumulation for bf16, so threads and processes give the same bits and all members get the same bits.
#pragma once

#include <string>
#include <utility>

#include <orthant/core/comm/span.hpp>
#include <orthant/core/stream/work.hpp>

namespace orthant::comm {

using stream::Work;

enum class Reduction : std::uint8_t { sum, max, min };

/// What reduce_scatter does with its result.
enum class Into : std::uint8_t {
  replace,     ///< shard = sum
  accumulate,  ///< shard += sum (fp32 or fp64 shard)
};

class Collectives {
 public:
  Collectives(std::string name, int rank, int size) : name_(std::move(name)), rank_(rank), size_(size) {}
  virtual ~Collectives() = default;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }  ///< position in the group
  int size() const { return size_; }

  /// full[r * n .. (r+1) * n) = rank r's shard, n = shard.count. `shard` may lie at its own place in `full`.
  virtual Work all_gather(ConstSpan shard, Span full) = 0;
  /// shard = sum over ranks of their full[rank * n ..), n = shard.count, in rank order. `full` bf16, fp32 or fp64;
  /// `shard` of the same type, or fp32 where `full` is bf16 (bf16 on the wire, fp32 sums). `full` may be used as
  /// scratch: consumed. `shard` lies apart from `full`, or at its own place in it.
  virtual Work reduce_scatter(Span full, Span shard, Into into) = 0;
  /// In place, every rank the same bits.
  virtual Work all_reduce(Span data, Reduction op) = 0;
  /// out[r * n ..) = rank r's in[rank * n ..), n = in.count / size.
  virtual Work all_to_all(ConstSpan in, Span out) = 0;
  virtual Work broadcast(Span data, int root) = 0;

 private:
  std::string name_;
  int rank_;
  int size_;
};

/// One direction to one neighbour. A sender calls only send, a receiver only receive; messages arrive in order.
class Channel {
 public:
  Channel(std::string name, int peer) : name_(std::move(name)), peer_(peer) {}
  virtual ~Channel() = default;
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  const std::string& name() const { return name_; }
  int peer() const { return peer_; }  ///< world rank at the other end

  virtual Work send(ConstSpan data) = 0;
  virtual Work receive(Span data) = 0;

 private:
  std::string name_;
  int peer_;
};

}  // namespace orthant::comm
