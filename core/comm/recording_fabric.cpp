// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/recording_fabric.hpp>

#include <map>
#include <utility>

namespace orthant::comm {

class RecordingFabric::Log {
 public:
  void add(const std::string& communicator, const Operation& op) {
    const std::lock_guard guard(mutex_);
    records_.push_back({communicator, op.kind, agreed_count(op), op.in.type, next_[communicator]++});
  }
  std::vector<OperationRecord> records() const {
    const std::lock_guard guard(mutex_);
    return records_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<OperationRecord> records_;
  std::map<std::string, std::int64_t> next_;
};

namespace {

using Log = std::shared_ptr<RecordingFabric::Log>;
using Kind = Operation::Kind;

class RecordingCollectives final : public Collectives {
 public:
  RecordingCollectives(std::unique_ptr<Collectives> inner, Log log)
      : Collectives(inner->name(), inner->rank(), inner->size()), inner_(std::move(inner)), log_(std::move(log)) {}

  Work all_gather(ConstSpan shard, Span full) override {
    log_->add(name(), {.kind = Kind::all_gather, .in = shard, .out = full});
    return inner_->all_gather(shard, full);
  }
  Work reduce_scatter(Span full, Span shard, Into into) override {
    log_->add(name(), {.kind = Kind::reduce_scatter, .in = full, .out = shard, .into = into});
    return inner_->reduce_scatter(full, shard, into);
  }
  Work all_reduce(Span data, Reduction op) override {
    log_->add(name(), {.kind = Kind::all_reduce, .in = data, .out = data, .reduction = op});
    return inner_->all_reduce(data, op);
  }
  Work all_to_all(ConstSpan in, Span out) override {
    log_->add(name(), {.kind = Kind::all_to_all, .in = in, .out = out});
    return inner_->all_to_all(in, out);
  }
  Work broadcast(Span data, int root) override {
    log_->add(name(), {.kind = Kind::broadcast, .in = data, .out = data, .root = root});
    return inner_->broadcast(data, root);
  }

 private:
  std::unique_ptr<Collectives> inner_;
  Log log_;
};

class RecordingChannel final : public Channel {
 public:
  RecordingChannel(std::unique_ptr<Channel> inner, Log log)
      : Channel(inner->name(), inner->peer()), inner_(std::move(inner)), log_(std::move(log)) {}

  Work send(ConstSpan data) override {
    log_->add(name(), Operation::send(data));
    return inner_->send(data);
  }
  Work receive(Span data) override {
    log_->add(name(), Operation::receive(data));
    return inner_->receive(data);
  }

 private:
  std::unique_ptr<Channel> inner_;
  Log log_;
};

}  // namespace

RecordingFabric::RecordingFabric(Fabric& inner) : inner_(inner), log_(std::make_shared<Log>()) {}
RecordingFabric::~RecordingFabric() = default;

std::unique_ptr<Collectives> RecordingFabric::make_collectives(const std::string& name, std::span<const int> members) {
  auto made = inner_.make_collectives(name, members);
  return made ? std::make_unique<RecordingCollectives>(std::move(made), log_) : nullptr;
}

std::unique_ptr<Channel> RecordingFabric::make_channel(const std::string& name, int source, int destination) {
  auto made = inner_.make_channel(name, source, destination);
  return made ? std::make_unique<RecordingChannel>(std::move(made), log_) : nullptr;
}

std::vector<OperationRecord> RecordingFabric::records() const { return log_->records(); }

}  // namespace orthant::comm
