// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/flight_recorder.hpp>

#include <algorithm>
#include <utility>

#include <orthant/core/base/error.hpp>

namespace orthant::comm {

using stream::Clock;

FlightRecorder::FlightRecorder(std::size_t capacity) : ring_(capacity), last_progress_(Clock::now()) {
  invariant(capacity > 0, "a flight recorder holds at least one operation");
}

std::size_t FlightRecorder::add_group(FlightGroup group) {
  group.posted = group.completed = 0;
  const std::lock_guard guard(mutex_);
  groups_.push_back(std::move(group));
  return groups_.size() - 1;
}

FlightRecorder::Ticket FlightRecorder::post(std::size_t group, const Operation& operation) {
  const auto now = Clock::now();
  const std::lock_guard guard(mutex_);
  const Ticket ticket = next_++;
  FlightRecord& record = slot(ticket);
  if (ticket >= ring_.size() && !record.completed) overtaken_.push_back(record);
  record = {.ticket = ticket,
            .group = group,
            .sequence = groups_[group].posted++,
            .operation = operation,
            .bytes = std::max(operation.in.bytes(), operation.out.bytes()),
            .posted = now};
  record.operation.in.data = record.operation.out.data = nullptr;
  last_progress_ = now;
  return ticket;
}

void FlightRecorder::complete(Ticket ticket, bool has_failed) {
  const auto now = Clock::now();
  const std::lock_guard guard(mutex_);
  if (slot(ticket).ticket == ticket) {
    FlightRecord& record = slot(ticket);
    if (record.completed) return;
    record.completed = now;
    record.has_failed = has_failed;
    ++groups_[record.group].completed;
  } else {
    const auto old = std::ranges::lower_bound(overtaken_, ticket, {}, &FlightRecord::ticket);
    if (old == overtaken_.end() || old->ticket != ticket) return;
    ++groups_[old->group].completed;
    overtaken_.erase(old);
  }
  last_progress_ = now;
}

FlightLog FlightRecorder::snapshot() const {
  const std::lock_guard guard(mutex_);
  FlightLog log{.groups = groups_, .records = overtaken_, .last_progress = last_progress_};
  const Ticket first = next_ - std::min<Ticket>(next_, ring_.size());
  for (Ticket ticket = first; ticket < next_; ++ticket) log.records.push_back(ring_[ticket % ring_.size()]);
  return log;
}

std::optional<FlightRecord> FlightRecorder::oldest_open() const {
  const std::lock_guard guard(mutex_);
  if (!overtaken_.empty()) return overtaken_.front();
  const Ticket first = next_ - std::min<Ticket>(next_, ring_.size());
  for (Ticket ticket = first; ticket < next_; ++ticket) {
    const FlightRecord& record = ring_[ticket % ring_.size()];
    if (!record.completed) return record;
  }
  return std::nullopt;
}

Clock::time_point FlightRecorder::last_progress() const {
  const std::lock_guard guard(mutex_);
  return last_progress_;
}

}  // namespace orthant::comm
