// SPDX-License-Identifier: Apache-2.0
// Communicators for tests of engines: one that does nothing, for plans that never run, and one that spoils what it may
// spoil.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include <orthant/core/comm/collectives.hpp>

namespace orthant::tests {

/// A rank of a group that is not there: every operation is done at once.
class IdleGroup final : public comm::Collectives {
 public:
  IdleGroup(int rank, int size) : Collectives("idle", rank, size) {}
  stream::Work all_gather(comm::ConstSpan, comm::Span) override { return stream::Work::done(); }
  stream::Work reduce_scatter(comm::Span, comm::Span, comm::Into) override { return stream::Work::done(); }
  stream::Work all_reduce(comm::Span, comm::Reduction) override { return stream::Work::done(); }
  stream::Work all_to_all(comm::ConstSpan, comm::Span) override { return stream::Work::done(); }
  stream::Work broadcast(comm::Span, int) override { return stream::Work::done(); }
};

/// Passes on, and uses `full` of reduce_scatter as scratch as its contract allows: afterwards it holds NaN.
class ConsumingGroup final : public comm::Collectives {
 public:
  explicit ConsumingGroup(comm::Collectives& inner)
      : Collectives(inner.name(), inner.rank(), inner.size()), inner_(inner) {}
  stream::Work all_gather(comm::ConstSpan shard, comm::Span full) override { return inner_.all_gather(shard, full); }
  stream::Work reduce_scatter(comm::Span full, comm::Span shard, comm::Into into) override {
    stream::Promise promise("reduce_scatter");
    auto work = inner_.reduce_scatter(full, shard, into);
    work.then([full, promise](std::exception_ptr error) {
      if (full.type == DType::f32)
        std::fill_n(static_cast<float*>(full.data), full.count, std::numeric_limits<float>::quiet_NaN());
      if (full.type == DType::f64)
        std::fill_n(static_cast<double*>(full.data), full.count, std::numeric_limits<double>::quiet_NaN());
      promise.complete(std::move(error));
    });
    return promise.work();
  }
  stream::Work all_reduce(comm::Span data, comm::Reduction op) override { return inner_.all_reduce(data, op); }
  stream::Work all_to_all(comm::ConstSpan in, comm::Span out) override { return inner_.all_to_all(in, out); }
  stream::Work broadcast(comm::Span data, int root) override { return inner_.broadcast(data, root); }

 private:
  comm::Collectives& inner_;
};

}  // namespace orthant::tests
