// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/watched_fabric.hpp>

#include <atomic>
#include <exception>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace orthant::comm {

class WatchedFabric::Drill {
 public:
  void skip_next(const std::string& group) {
    const std::lock_guard guard(mutex_);
    groups_.insert(group);
    is_armed_ = true;
  }
  bool takes(const std::string& group) {
    if (!is_armed_) return false;
    const std::lock_guard guard(mutex_);
    const bool found = groups_.erase(group) > 0;
    is_armed_ = !groups_.empty();
    return found;
  }

 private:
  std::atomic<bool> is_armed_{false};
  std::mutex mutex_;
  std::set<std::string> groups_;
};

namespace {

using Kind = Operation::Kind;

/// This rank's end of a communicator.
class Watch {
 public:
  Watch(FlightRecorder& recorder, FlightGroup group, std::shared_ptr<WatchedFabric::Drill> drill)
      : recorder_(recorder),
        name_(group.name),
        group_(recorder.add_group(std::move(group))),
        drill_(std::move(drill)) {}

  /// Starts an operation below and follows it. What the fabric below refuses (ShapeError) has no number there and is
  /// not recorded here.
  template <class Start>
  Work operator()(const Operation& operation, const Start& start) {
    if (drill_->takes(name_)) return Work::done();
    Work inner = start();
    const auto ticket = recorder_.post(group_, operation);
    const stream::Promise outer(inner.description());
    inner.then([&recorder = recorder_, ticket, outer](std::exception_ptr error) {
      recorder.complete(ticket, error != nullptr);
      outer.complete(error);
    });
    return outer.work();
  }

 private:
  FlightRecorder& recorder_;
  std::string name_;
  std::size_t group_;
  std::shared_ptr<WatchedFabric::Drill> drill_;
};

class WatchedCollectives final : public Collectives {
 public:
  WatchedCollectives(std::unique_ptr<Collectives> inner, Watch watch)
      : Collectives(inner->name(), inner->rank(), inner->size()), inner_(std::move(inner)), watch_(std::move(watch)) {}

  Work all_gather(ConstSpan shard, Span full) override {
    return watch_({.kind = Kind::all_gather, .in = shard, .out = full},
                  [&] { return inner_->all_gather(shard, full); });
  }
  Work reduce_scatter(Span full, Span shard, Into into) override {
    return watch_({.kind = Kind::reduce_scatter, .in = full, .out = shard, .into = into},
                  [&] { return inner_->reduce_scatter(full, shard, into); });
  }
  Work all_reduce(Span data, Reduction op) override {
    return watch_({.kind = Kind::all_reduce, .in = data, .out = data, .reduction = op},
                  [&] { return inner_->all_reduce(data, op); });
  }
  Work all_to_all(ConstSpan in, Span out) override {
    return watch_({.kind = Kind::all_to_all, .in = in, .out = out}, [&] { return inner_->all_to_all(in, out); });
  }
  Work broadcast(Span data, int root) override {
    return watch_({.kind = Kind::broadcast, .in = data, .out = data, .root = root},
                  [&] { return inner_->broadcast(data, root); });
  }

 private:
  std::unique_ptr<Collectives> inner_;
  Watch watch_;
};

class WatchedChannel final : public Channel {
 public:
  WatchedChannel(std::unique_ptr<Channel> inner, Watch watch)
      : Channel(inner->name(), inner->peer()), inner_(std::move(inner)), watch_(std::move(watch)) {}

  Work send(ConstSpan data) override {
    return watch_(Operation::send(data), [&] { return inner_->send(data); });
  }
  Work receive(Span data) override {
    return watch_(Operation::receive(data), [&] { return inner_->receive(data); });
  }

 private:
  std::unique_ptr<Channel> inner_;
  Watch watch_;
};

}  // namespace

WatchedFabric::WatchedFabric(Fabric& inner, FlightRecorder& recorder)
    : inner_(inner), recorder_(recorder), drill_(std::make_shared<Drill>()) {}
WatchedFabric::~WatchedFabric() = default;

void WatchedFabric::skip_next(const std::string& group) { drill_->skip_next(group); }

std::unique_ptr<Collectives> WatchedFabric::make_collectives(const std::string& name, std::span<const int> members) {
  const int communicator = made_++;
  auto made = inner_.make_collectives(name, members);
  if (!made || members.size() == 1) return made;
  FlightGroup group{.communicator = communicator, .name = name, .members = {members.begin(), members.end()}};
  return std::make_unique<WatchedCollectives>(std::move(made), Watch(recorder_, std::move(group), drill_));
}

std::unique_ptr<Channel> WatchedFabric::make_channel(const std::string& name, int source, int destination) {
  const int communicator = made_++;
  auto made = inner_.make_channel(name, source, destination);
  if (!made) return nullptr;
  FlightGroup group{.communicator = communicator, .name = name, .members = {source, destination}};
  return std::make_unique<WatchedChannel>(std::move(made), Watch(recorder_, std::move(group), drill_));
}

}  // namespace orthant::comm
