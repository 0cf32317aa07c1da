// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/nccl_collectives.hpp>

#include <utility>

#include <orthant/core/base/error.hpp>
#include <orthant/core/cuda/staged_fabric.hpp>

namespace orthant::cuda {
namespace {

using comm::ConstSpan;
using comm::Into;
using comm::Operation;
using comm::Span;
using comm::Work;
using Kind = Operation::Kind;

class Scratch {
 public:
  Scratch(MemoryDriver& driver, DeviceStream stream, ConstSpan like)
      : driver_(driver), stream_(stream), span_{driver.allocate_scratch(stream, like.bytes()), like.count, like.type} {}
  ~Scratch() { driver_.free_scratch(stream_, span_.data); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  Span span() const { return span_; }

 private:
  MemoryDriver& driver_;
  DeviceStream stream_;
  Span span_;
};

/// in[r * n ..) goes to rank r, out[r * n ..) comes from it.
Exchange exchange_all(Communicator communicator, ConstSpan in, Span out, int size) {
  Exchange exchange{communicator, {}};
  const std::int64_t count = in.count / size;
  const std::size_t bytes = in.bytes() / static_cast<std::size_t>(size);
  for (int peer = 0; peer < size; ++peer) {
    const std::size_t offset = static_cast<std::size_t>(peer) * bytes;
    exchange.transfers.push_back({.peer = peer,
                                  .send = {static_cast<const std::byte*>(in.data) + offset, count, in.type},
                                  .receive = {static_cast<std::byte*>(out.data) + offset, count, out.type}});
  }
  return exchange;
}

}  // namespace

NcclCollectives::NcclCollectives(std::shared_ptr<NcclGroup> group, std::unique_ptr<comm::Collectives> host)
    : PostingCollectives(host->name(), host->rank(), host->size()), group_(std::move(group)), host_(std::move(host)) {}

Work NcclCollectives::post(const Operation& op) {
  if (agreed_count(op) == 0) return Work::done();
  if (!group_->driver().is_device(op.in.data)) return call(*host_, op);
  return group_->run(op, [&](DeviceStream stream) { enqueue(stream, op); });
}

void NcclCollectives::enqueue(DeviceStream stream, const Operation& op) {
  Driver& driver = group_->driver();
  const Communicator communicator = group_->communicator();
  switch (op.kind) {
    case Kind::all_gather:
      return driver.enqueue(stream, AllGather{communicator, op.in, op.out});
    case Kind::reduce_scatter:
      return enqueue_reduce_scatter(stream, op);
    case Kind::all_reduce:
      return driver.enqueue(stream, AllReduce{communicator, op.out, op.reduction});
    case Kind::all_to_all:
      return driver.enqueue(stream, exchange_all(communicator, op.in, op.out, size()));
    case Kind::broadcast:
      return driver.enqueue(stream, Broadcast{communicator, op.out, op.root});
    case Kind::transfer:
      throw InternalError("a communicator was asked for a transfer");
  }
}

// bf16: NCCL would round at every hop. Exchanged instead, the wire carries as much and the sum is taken once, in fp32.
void NcclCollectives::enqueue_reduce_scatter(DeviceStream stream, const Operation& op) {
  Driver& driver = group_->driver();
  const Communicator communicator = group_->communicator();
  if (op.in.type == DType::bf16) {
    const Scratch rows(driver, stream, op.in);
    driver.enqueue(stream, exchange_all(communicator, op.in, rows.span(), size()));
    driver.enqueue(stream, SumRows{rows.span(), size(), op.out, op.into});
  } else if (op.into == Into::accumulate) {
    const Scratch sum(driver, stream, op.out);
    driver.enqueue(stream, ReduceScatter{communicator, op.in, sum.span()});
    driver.enqueue(stream, SumRows{sum.span(), 1, op.out, op.into});
  } else {
    driver.enqueue(stream, ReduceScatter{communicator, op.in, op.out});
  }
}

NcclChannel::NcclChannel(std::shared_ptr<NcclGroup> group, std::unique_ptr<comm::Channel> host, int peer_in_group)
    : Channel(host->name(), host->peer()),
      group_(std::move(group)),
      host_(std::move(host)),
      peer_in_group_(peer_in_group) {}

Work NcclChannel::send(ConstSpan data) {
  if (data.count > 0 && !group_->driver().is_device(data.data)) return host_->send(data);
  return run(Operation::send(data), {.peer = peer_in_group_, .send = data, .receive = {}});
}

Work NcclChannel::receive(Span data) {
  if (data.count > 0 && !group_->driver().is_device(data.data)) return host_->receive(data);
  return run(Operation::receive(data), {.peer = peer_in_group_, .send = {}, .receive = data});
}

Work NcclChannel::run(const Operation& op, const Transfer& transfer) {
  if (op.in.count == 0) return Work::done();
  return group_->run(op, [&](DeviceStream stream) {
    group_->driver().enqueue(stream, Exchange{group_->communicator(), {transfer}});
  });
}

}  // namespace orthant::cuda
