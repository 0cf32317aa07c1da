// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/meeting.hpp>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/rank_sum.hpp>

namespace orthant::comm {
namespace {

using Kind = Operation::Kind;

void copy(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}
std::byte* at(Span span, std::size_t offset) { return static_cast<std::byte*>(span.data) + offset; }
const std::byte* at(ConstSpan span, std::size_t offset) { return static_cast<const std::byte*>(span.data) + offset; }

void reduce_scatter(std::span<const Operation* const> ops) {
  std::vector<const void*> rows(ops.size());
  for (std::size_t r = 0; r < ops.size(); ++r) {
    const Operation& mine = *ops[r];
    const std::size_t offset = r * static_cast<std::size_t>(mine.out.count) * size_of(mine.in.type);
    for (std::size_t q = 0; q < ops.size(); ++q) rows[q] = at(ops[q]->in, offset);
    reduce_rows(rows, mine.in.type, mine.out, Reduction::sum, mine.into);
  }
}

// Block by block, so that the copies to the other ranks read what is still in the cache.
void all_reduce(std::span<const Operation* const> ops) {
  constexpr std::int64_t kBlock = 8192;
  const Span first = ops[0]->out;
  std::vector<const void*> rows(ops.size());
  for (std::int64_t begin = 0; begin < first.count; begin += kBlock) {
    const std::size_t offset = static_cast<std::size_t>(begin) * size_of(first.type);
    for (std::size_t q = 0; q < ops.size(); ++q) rows[q] = at(ops[q]->out, offset);
    const Span block{at(first, offset), std::min(kBlock, first.count - begin), first.type};
    reduce_rows(rows, first.type, block, ops[0]->reduction);
    for (const Operation* op : ops.subspan(1)) copy(at(op->out, offset), block.data, block.bytes());
  }
}

/// ops  one per member, in rank order
void perform(std::span<const Operation* const> ops) {
  const Operation& any = *ops[0];
  if (agreed_count(any) == 0) return;
  const std::size_t size = ops.size();
  switch (any.kind) {
    case Kind::all_gather:
      for (const Operation* to : ops)
        for (std::size_t q = 0; q < size; ++q) copy(at(to->out, q * any.in.bytes()), ops[q]->in.data, any.in.bytes());
      return;
    case Kind::reduce_scatter:
      return reduce_scatter(ops);
    case Kind::all_reduce:
      return all_reduce(ops);
    case Kind::all_to_all:
      for (std::size_t r = 0; r < size; ++r)
        for (std::size_t q = 0; q < size; ++q) {
          const std::size_t part = any.in.bytes() / size;
          copy(at(ops[r]->out, q * part), at(ops[q]->in, r * part), part);
        }
      return;
    case Kind::broadcast:
      for (const Operation* to : ops)
        copy(to->out.data, ops[static_cast<std::size_t>(any.root)]->in.data, any.in.bytes());
      return;
    case Kind::transfer:
      return copy(ops[1]->out.data, ops[0]->in.data, any.in.bytes());
  }
}

std::exception_ptr error(const std::string& why) { return std::make_exception_ptr(CommError(why)); }

}  // namespace

Meeting::Meeting(std::string name, std::vector<int> members)
    : name_(std::move(name)),
      members_(std::move(members)),
      where_(describe_group(name_, members_)),
      next_(members_.size(), 0) {}

Work Meeting::arrive(int member, const Operation& operation) {
  const auto m = static_cast<std::size_t>(member);
  Guard guard(mutex_);
  const std::int64_t number = next_[m]++;
  stream::Promise promise(describe(operation, number, where_));
  Work work = promise.work();
  if (over_) {
    const std::string why = *over_;
    guard.unlock();
    promise.complete(error(why));
    return work;
  }
  const auto index = static_cast<std::size_t>(number - first_open_);
  if (index == open_.size()) open_.push_back({std::vector<std::optional<Seat>>(members_.size())});
  Appointment& appointment = open_[index];

  for (std::size_t other = 0; other < members_.size(); ++other) {
    const auto& seat = appointment.seats[other];
    if (!seat || matches(operation, seat->operation)) continue;
    const std::string why = fmt::format("mismatch at #{} on {}: rank {} called {}, rank {} called {}", number, where_,
                                        members_[other], to_string(seat->operation), members_[m], to_string(operation));
    appointment.seats[m] = Seat{operation, promise};
    fail(guard, why);
    return work;
  }

  appointment.seats[m] = Seat{operation, std::move(promise)};
  if (++appointment.arrived == members_.size()) {  // members arrive in order, so this is the oldest one
    ready_.push_back(std::move(open_.front()));
    open_.pop_front();
    ++first_open_;
    serve(guard);
  }
  return work;
}

void Meeting::serve(Guard& guard) {
  if (serving_) return;
  serving_ = true;
  while (!ready_.empty()) {
    const Appointment appointment = std::move(ready_.front());
    ready_.pop_front();
    guard.unlock();
    std::vector<const Operation*> ops;
    for (const auto& seat : appointment.seats) ops.push_back(&seat->operation);
    perform(ops);
    for (const auto& seat : appointment.seats) seat->promise.complete();
    guard.lock();
  }
  serving_ = false;
}

void Meeting::fail(Guard& guard, const std::string& why) {
  if (!over_) over_ = why;
  const std::string reason = *over_;
  const auto failed = std::exchange(open_, {});
  guard.unlock();
  for (const Appointment& appointment : failed)
    for (const auto& seat : appointment.seats)
      if (seat) seat->promise.complete(error(reason));
}

void Meeting::abort(const std::string& why) {
  Guard guard(mutex_);
  fail(guard, why);
}

std::vector<std::string> Meeting::open() const {
  std::vector<std::string> lines;
  const Guard guard(mutex_);
  for (std::size_t a = 0; a < open_.size(); ++a) {
    std::vector<int> here, missing;
    std::string what;
    for (std::size_t m = 0; m < members_.size(); ++m) {
      const auto& seat = open_[a].seats[m];
      (seat ? here : missing).push_back(members_[m]);
      if (seat) what = describe(seat->operation, first_open_ + static_cast<std::int64_t>(a), where_);
    }
    lines.push_back(
        fmt::format("{}: ranks {} are there, ranks {} are not", what, fmt::join(here, " "), fmt::join(missing, " ")));
  }
  return lines;
}

}  // namespace orthant::comm
