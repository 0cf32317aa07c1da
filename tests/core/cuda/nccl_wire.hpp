// SPDX-License-Identifier: Apache-2.0
// NCCL for ranks that are threads: performs the NCCL commands of a RecordingDriver over the local fabric, transfer by
// transfer, so that a wrong peer, pointer, count or type gives wrong data. WiredFabric is an NcclFabric whose
// communicators are so wired.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <orthant/core/cuda/nccl_fabric.hpp>
#include <orthant/core/cuda/recording_driver.hpp>

namespace orthant::cuda {

class NcclWire {
 public:
  explicit NcclWire(comm::Fabric& local) : local_(local) {}

  /// Collective over all ranks of the local fabric.
  void connect(const RecordingDriver& driver, std::span<const int> members) {
    Group group;
    group.collectives = local_.make_collectives("wire", members);
    for (std::size_t from = 0; from < members.size(); ++from) {
      for (std::size_t to = 0; to < members.size(); ++to) {
        if (from == to) continue;
        auto channel = local_.make_channel("wire", members[from], members[to]);
        if (members[from] == local_.rank()) group.to[static_cast<int>(to)] = std::move(channel);
        if (members[to] == local_.rank()) group.from[static_cast<int>(from)] = std::move(channel);
      }
    }
    if (group.collectives) groups_[driver.communicators().back().raw] = std::move(group);
  }

  comm::Work carry(const Command& command) {
    if (const auto* c = std::get_if<AllGather>(&command)) return at(c->communicator).all_gather(c->shard, c->full);
    if (const auto* c = std::get_if<AllReduce>(&command)) return at(c->communicator).all_reduce(c->data, c->op);
    if (const auto* c = std::get_if<Broadcast>(&command)) return at(c->communicator).broadcast(c->data, c->root);
    if (const auto* c = std::get_if<ReduceScatter>(&command)) {
      const comm::Span full{const_cast<void*>(c->full.data), c->full.count, c->full.type};
      return at(c->communicator).reduce_scatter(full, c->shard, comm::Into::replace);
    }
    return exchange(std::get<Exchange>(command));
  }

 private:
  struct Group {
    std::unique_ptr<comm::Collectives> collectives;
    std::map<int, std::unique_ptr<comm::Channel>> to, from;
  };

  comm::Collectives& at(Communicator communicator) { return *groups_.at(communicator.raw).collectives; }

  comm::Work exchange(const Exchange& exchange) {
    Group& group = groups_.at(exchange.communicator.raw);
    std::vector<comm::Work> works;
    for (const auto& [peer, send, receive] : exchange.transfers) {
      if (peer == group.collectives->rank()) {
        std::memcpy(receive.data, send.data, send.bytes());
        continue;
      }
      if (send.data) works.push_back(group.to.at(peer)->send(send));
      if (receive.data) works.push_back(group.from.at(peer)->receive(receive));
    }
    const stream::Promise all("exchange");
    const auto open = std::make_shared<std::atomic<std::size_t>>(works.size() + 1);
    const auto one_less = [all, open](std::exception_ptr) {
      if (--*open == 0) all.complete();
    };
    for (auto& work : works) work.then(one_less);
    one_less(nullptr);
    return all.work();
  }

  comm::Fabric& local_;
  std::map<void*, Group> groups_;
};

class WiredFabric final : public comm::Fabric {
 public:
  WiredFabric(comm::Fabric& local, RecordingOptions options)
      : wire_(local), driver_(with_wire(std::move(options))), nccl_(driver_, local, std::chrono::seconds(30)) {}

  int rank() const override { return nccl_.rank(); }
  int size() const override { return nccl_.size(); }
  std::unique_ptr<comm::Collectives> make_collectives(const std::string& name, std::span<const int> members) override {
    auto made = nccl_.make_collectives(name, members);
    wire_.connect(driver_, members);
    return made;
  }
  std::unique_ptr<comm::Channel> make_channel(const std::string& name, int source, int destination) override {
    auto made = nccl_.make_channel(name, source, destination);
    const int ends[] = {source, destination};
    wire_.connect(driver_, ends);
    return made;
  }
  void abort(const std::string& why) noexcept override { nccl_.abort(why); }

  RecordingDriver& driver() { return driver_; }
  NcclFabric& nccl() { return nccl_; }

 private:
  RecordingOptions with_wire(RecordingOptions options) {
    options.nccl = [this](const Command& command) { return wire_.carry(command); };
    return options;
  }
  NcclWire wire_;
  RecordingDriver driver_;
  NcclFabric nccl_;
};

}  // namespace orthant::cuda
