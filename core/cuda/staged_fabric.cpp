// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/staged_fabric.hpp>

#include <utility>

#include <orthant/core/base/error.hpp>

namespace orthant::cuda {
namespace {

using comm::Operation;
using comm::Work;
using Kind = Operation::Kind;

class StagedCollectives final : public comm::PostingCollectives {
 public:
  StagedCollectives(StagedFabric& fabric, std::unique_ptr<comm::Collectives> host, std::string where)
      : PostingCollectives(host->name(), host->rank(), host->size()),
        fabric_(fabric),
        host_(std::move(host)),
        where_(std::move(where)) {}

 private:
  Work post(const Operation& op) override {
    return fabric_.run(op, describe(op, sequence_++, where_),
                       [this](const Operation& on_host) { return call(*host_, on_host); });
  }

  StagedFabric& fabric_;
  std::unique_ptr<comm::Collectives> host_;
  std::string where_;
  std::int64_t sequence_ = 0;
};

class StagedChannel final : public comm::Channel {
 public:
  StagedChannel(StagedFabric& fabric, std::unique_ptr<comm::Channel> host, std::string where)
      : Channel(host->name(), host->peer()), fabric_(fabric), host_(std::move(host)), where_(std::move(where)) {}

  Work send(comm::ConstSpan data) override {
    return run(Operation::send(data), [this](const Operation& on_host) { return host_->send(on_host.in); });
  }
  Work receive(comm::Span data) override {
    return run(Operation::receive(data), [this](const Operation& on_host) { return host_->receive(on_host.out); });
  }

 private:
  Work run(const Operation& op, std::function<Work(const Operation&)> carry) {
    return fabric_.run(op, describe(op, sequence_++, where_), std::move(carry));
  }

  StagedFabric& fabric_;
  std::unique_ptr<comm::Channel> host_;
  std::string where_;
  std::int64_t sequence_ = 0;
};

}  // namespace

Work call(comm::Collectives& host, const Operation& op) {
  switch (op.kind) {
    case Kind::all_gather:
      return host.all_gather(op.in, op.out);
    case Kind::reduce_scatter:
      return host.reduce_scatter({const_cast<void*>(op.in.data), op.in.count, op.in.type}, op.out, op.into);
    case Kind::all_reduce:
      return host.all_reduce(op.out, op.reduction);
    case Kind::all_to_all:
      return host.all_to_all(op.in, op.out);
    case Kind::broadcast:
      return host.broadcast(op.out, op.root);
    case Kind::transfer:
      break;
  }
  throw InternalError("a communicator was asked for a transfer");
}

struct StagedFabric::Chain {
  stream::Promise promise;
  DeviceStream stream;
  Operation device;
  Operation host;
  std::shared_ptr<void> in, out;  // pinned
};

StagedFabric::StagedFabric(Driver& driver, comm::Fabric& host)
    : driver_(driver), host_(host), pinned_(driver), relay_(driver) {}

std::unique_ptr<comm::Collectives> StagedFabric::make_collectives(const std::string& name,
                                                                  std::span<const int> members) {
  auto host = host_.make_collectives(name, members);
  if (!host) return nullptr;
  return std::make_unique<StagedCollectives>(*this, std::move(host), comm::describe_group(name, members));
}

std::unique_ptr<comm::Channel> StagedFabric::make_channel(const std::string& name, int source, int destination) {
  auto host = host_.make_channel(name, source, destination);
  if (!host) return nullptr;
  const int ends[] = {source, destination};
  return std::make_unique<StagedChannel>(*this, std::move(host), comm::describe_group(name, ends));
}

// Host memory takes the same way, without copies: an operation that overtook an earlier one would meet another one of
// its peer's.
Work StagedFabric::run(const Operation& op, std::string description, std::function<Work(const Operation&)> carry) {
  const DeviceStream stream = driver_.current_stream();
  const auto lies_on_device = [&](const void* data, std::size_t bytes) {
    return bytes > 0 && data && driver_.is_device(data);
  };
  const bool stages_in = lies_on_device(op.in.data, op.in.bytes());
  const bool stages_out = lies_on_device(op.out.data, op.out.bytes());
  auto chain =
      std::make_shared<Chain>(Chain{stream::Promise(std::move(description)), stream, op, op, nullptr, nullptr});
  if (stages_in) {
    chain->in = pinned_.take(op.in.bytes());
    chain->host.in.data = chain->in.get();
    driver_.enqueue(stream, Copy{chain->in.get(), op.in.data, op.in.bytes()});
  }
  if (stages_out) {
    const bool in_place = op.kind == Kind::all_reduce || op.kind == Kind::broadcast;
    chain->out = in_place ? chain->in : pinned_.take(op.out.bytes());
    chain->host.out.data = chain->out.get();
    if (op.into == comm::Into::accumulate) driver_.enqueue(stream, Copy{chain->out.get(), op.out.data, op.out.bytes()});
  }
  relay_.after(stream, [this, chain, carry = std::move(carry)](std::exception_ptr lost) {
    if (lost) return chain->promise.complete(lost);
    try {
      carry(chain->host).then([this, chain](std::exception_ptr failed) mutable {
        // Whoever is woken may destroy the fabric, and with it the pinned memory: nothing of it is held here then.
        if (failed) {
          const auto promise = chain->promise;
          chain.reset();
          return promise.complete(failed);
        }
        relay_.post([this, chain = std::move(chain)] { deliver(chain); });
      });
    } catch (...) {
      chain->promise.complete(std::current_exception());
    }
  });
  return chain->promise.work();
}

void StagedFabric::deliver(const std::shared_ptr<Chain>& chain) try {
  if (!chain->out) return chain->promise.complete();
  driver_.enqueue(chain->stream, Copy{chain->device.out.data, chain->out.get(), chain->device.out.bytes()});
  // The chain, and with it the pinned memory, stays until the copy is done.
  relay_.after(chain->stream, [chain](std::exception_ptr lost) { chain->promise.complete(lost); });
  if (chain->stream) chain->promise.complete();
} catch (...) {
  chain->promise.complete(std::current_exception());
}

}  // namespace orthant::cuda
