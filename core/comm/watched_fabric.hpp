// SPDX-License-Identifier: Apache-2.0
// WatchedFabric: a decorator that notes in a flight recorder when each operation of this rank is posted and when it is
// done, for the hang watchdog. Groups of one rank wait for nobody and pass through unrecorded.
#pragma once

#include <memory>
#include <string>

#include <orthant/core/comm/fabric.hpp>
#include <orthant/core/comm/flight_recorder.hpp>

namespace orthant::comm {

class WatchedFabric final : public Fabric {
 public:
  /// inner     lives longer than this and than everything made here. All communicators are made here, or on no rank.
  /// recorder  lives longer than `inner`, whose end completes what is open.
  WatchedFabric(Fabric& inner, FlightRecorder& recorder);
  ~WatchedFabric() override;

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::unique_ptr<Collectives> make_collectives(const std::string& name, std::span<const int> members) override;
  std::unique_ptr<Channel> make_channel(const std::string& name, int source, int destination) override;
  void abort(const std::string& why) noexcept override { inner_.abort(why); }

  /// Fault drill: the next operation that this rank posts on a group of that name is left out, and done at once.
  void skip_next(const std::string& group);

  class Drill;

 private:
  Fabric& inner_;
  FlightRecorder& recorder_;
  std::shared_ptr<Drill> drill_;
  int made_ = 0;
};

}  // namespace orthant::comm
