// SPDX-License-Identifier: Apache-2.0
// DelayedFabric: a decorator that holds each message of a channel back for a random time before it is sent.
#pragma once

#include <memory>
#include <mutex>
#include <random>
#include <string>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/core/stream/timer.hpp>

namespace orthant::tests {

class DelayedFabric final : public comm::Fabric {
 public:
  /// Delays from 0 to `most`; `seed` and the rank say which.
  DelayedFabric(comm::Fabric& below, std::chrono::microseconds most, unsigned seed)
      : below_(below), state_(std::make_shared<State>(most, seed * 1000 + static_cast<unsigned>(below.rank()))) {}

  int rank() const override { return below_.rank(); }
  int size() const override { return below_.size(); }
  std::unique_ptr<comm::Collectives> make_collectives(const std::string& name, std::span<const int> members) override {
    return below_.make_collectives(name, members);
  }
  std::unique_ptr<comm::Channel> make_channel(const std::string& name, int source, int destination) override {
    auto channel = below_.make_channel(name, source, destination);
    if (!channel) return nullptr;
    return std::make_unique<Delayed>(std::move(channel), state_);
  }
  void abort(const std::string& why) noexcept override { below_.abort(why); }

 private:
  struct State {
    State(std::chrono::microseconds most, unsigned seed) : delay_us(0, most.count()), random(seed) {}
    std::chrono::microseconds next() {
      const std::lock_guard lock(mutex);
      return std::chrono::microseconds(delay_us(random));
    }
    std::mutex mutex;
    std::uniform_int_distribution<std::int64_t> delay_us;
    std::mt19937 random;
    stream::Timer timer;
  };

  class Delayed final : public comm::Channel {
   public:
    Delayed(std::unique_ptr<comm::Channel> below, std::shared_ptr<State> state)
        : Channel(below->name(), below->peer()), below_(std::move(below)), state_(std::move(state)) {}

    comm::Work send(comm::ConstSpan data) override {
      const stream::Promise sent("delayed send on " + name());
      state_->timer.at(stream::Clock::now() + state_->next(), [this, data, sent] {
        below_->send(data).then([sent](std::exception_ptr error) { sent.complete(error); });
      });
      return sent.work();
    }
    comm::Work receive(comm::Span data) override { return below_->receive(data); }

   private:
    std::unique_ptr<comm::Channel> below_;
    std::shared_ptr<State> state_;
  };

  comm::Fabric& below_;
  std::shared_ptr<State> state_;
};

}  // namespace orthant::tests
