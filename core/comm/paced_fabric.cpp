// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/paced_fabric.hpp>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace orthant::comm {
namespace {

using stream::Clock;
using Ticks = Clock::rep;

/// On the wire: when the send was posted, then the payload.
using Packet = std::vector<std::byte>;

Packet packet_for(std::size_t payload_bytes) { return Packet(sizeof(Ticks) + payload_bytes); }

Span span_of(Packet& packet) { return {packet.data(), static_cast<std::int64_t>(packet.size()), DType::u8}; }

class PacedChannel final : public Channel {
 public:
  PacedChannel(std::unique_ptr<Channel> below, Link link, std::shared_ptr<stream::Timer> timer)
      : Channel(below->name(), below->peer()), below_(std::move(below)), link_(link), timer_(std::move(timer)) {}

  /// Done when the transport below has taken the message.
  Work send(ConstSpan data) override {
    auto packet = std::make_shared<Packet>(packet_for(data.bytes()));
    const Ticks now = Clock::now().time_since_epoch().count();
    std::memcpy(packet->data(), &now, sizeof now);
    std::memcpy(packet->data() + sizeof now, data.data, data.bytes());
    const stream::Promise sent("paced send on " + name());
    below_->send(span_of(*packet)).then([sent, packet](std::exception_ptr error) { sent.complete(error); });
    return sent.work();
  }

  /// Done when the link would have delivered the message.
  Work receive(Span data) override {
    auto packet = std::make_shared<Packet>(packet_for(data.bytes()));
    const Clock::time_point posted = Clock::now();
    const stream::Promise received("paced receive on " + name());
    below_->receive(span_of(*packet)).then([this, data, packet, posted, received](std::exception_ptr error) {
      if (error) return received.complete(error);
      Ticks sent = 0;
      std::memcpy(&sent, packet->data(), sizeof sent);
      std::memcpy(data.data, packet->data() + sizeof sent, data.bytes());
      const Clock::time_point both = std::max(posted, Clock::time_point(Clock::duration(sent)));
      const std::chrono::duration<double, std::micro> travel(link_.duration_us(data.bytes()));
      timer_->at(both + std::chrono::duration_cast<Clock::duration>(travel), [received] { received.complete(); });
    });
    return received.work();
  }

 private:
  std::unique_ptr<Channel> below_;
  Link link_;
  std::shared_ptr<stream::Timer> timer_;
};

}  // namespace

std::unique_ptr<Channel> PacedFabric::make_channel(const std::string& name, int source, int destination) {
  auto below = below_.make_channel(name, source, destination);
  if (!below) return nullptr;
  return std::make_unique<PacedChannel>(std::move(below), link_, timer_);
}

}  // namespace orthant::comm
