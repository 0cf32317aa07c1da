// SPDX-License-Identifier: Apache-2.0
// A fabric that writes down every operation before it passes it on: the order of communication as data, for tests.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/core/comm/operation.hpp>

namespace orthant::comm {

struct OperationRecord {
  std::string communicator;
  Operation::Kind kind;
  std::int64_t count;  ///< agreed_count()
  DType type;
  std::int64_t sequence;  ///< on that communicator, from 0
  friend bool operator==(const OperationRecord&, const OperationRecord&) = default;
};

class RecordingFabric final : public Fabric {
 public:
  /// inner  lives longer than this and than everything made here.
  explicit RecordingFabric(Fabric& inner);
  ~RecordingFabric() override;

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Collectives> make_collectives(const std::string& name, std::span<const int> members) override;
  std::unique_ptr<Channel> make_channel(const std::string& name, int source, int destination) override;
  void abort(const std::string& why) noexcept override { inner_.abort(why); }

  /// What this rank has started so far, in order, over all communicators.
  std::vector<OperationRecord> records() const;

  class Log;

 private:
  Fabric& inner_;
  std::shared_ptr<Log> log_;
};

}  // namespace orthant::comm
