// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/trace/tracer.hpp>

#include <utility>

namespace orthant::trace {

TrackId Tracer::add_track(std::string name) {
  std::lock_guard lock(mutex_);
  tracks_.push_back(std::move(name));
  return TrackId{static_cast<int>(tracks_.size()) - 1};
}

void Tracer::record(Span span) {
  if (!enabled()) return;
  std::lock_guard lock(mutex_);
  spans_.push_back(std::move(span));
}

std::vector<Span> Tracer::spans() const {
  std::lock_guard lock(mutex_);
  return spans_;
}

std::vector<std::string> Tracer::tracks() const {
  std::lock_guard lock(mutex_);
  return tracks_;
}

}  // namespace orthant::trace
