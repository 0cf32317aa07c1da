// SPDX-License-Identifier: Apache-2.0
// A sample of plans on real threads and channels whose sends wait for their receivers: what the validator calls safe
// ends, what it calls a hang does stand still.
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/pipeline/plan/validate.hpp>
#include <orthant/tests/harness/run_ranks.hpp>
#include <orthant/tests/pipeline/plan/random_swaps.hpp>

namespace orthant::pipeline {
namespace {

using std::chrono::milliseconds;
using stream::content_of;
using stream::StreamId;
using stream::StreamKind;

constexpr milliseconds kLong{30'000};  ///< for plans that end: never waited for
constexpr milliseconds kShort{60};     ///< for plans that hang: a machine that is busy for longer changes nothing

/// What a rank sends, and where it receives. Outlives all ranks: one that has given up may still be served by another.
struct Words {
  float sent = 1, received = 0;
};

/// This rank's ends of all channels.
struct Channels {
  Channels(comm::Fabric& fabric, const Schedule& schedule, Words& its_words) : words(its_words) {
    std::set<ChannelKey> keys;
    for (const auto& ops : schedule.ranks) {
      for (const Op& op : ops) {
        if (is_send(op.kind)) keys.insert(channel_of(schedule, op));
      }
    }
    for (const ChannelKey& key : keys) {
      const std::string name = fmt::format("{} {}>{}", key.gradient ? 'g' : 'a', key.source, key.destination);
      ends[key] = fabric.make_channel(name, key.source, key.destination);
    }
  }
  comm::Work start(const Schedule& schedule, const Op& op) {
    comm::Channel& channel = *ends.at(channel_of(schedule, op));
    if (is_send(op.kind)) return channel.send(comm::ConstSpan{&words.sent, 1, DType::f32});
    return channel.receive(comm::Span{&words.received, 1, DType::f32});
  }
  std::map<ChannelKey, std::unique_ptr<comm::Channel>> ends;
  Words& words;
};

void run_in_line(comm::Fabric& fabric, const Schedule& schedule, Words& words, milliseconds deadline) {
  Channels channels(fabric, schedule, words);
  for (const Op& op : schedule.ranks[static_cast<std::size_t>(fabric.rank())]) {
    if (is_send(op.kind) || is_receive(op.kind)) channels.start(schedule, op).wait(deadline);
  }
}

/// The executor's shape: a slot is written by a RECV and read by a TAKE; an output is written by its producer.
void run_on_streams(comm::Fabric& fabric, const Schedule& schedule, Words& words, milliseconds deadline) {
  Channels channels(fabric, schedule, words);
  stream::CpuScheduler scheduler({.deadline = deadline});
  const StreamId compute = scheduler.add_stream("compute", StreamKind::compute);
  std::map<ChannelKey, StreamId> streams;
  std::map<ChannelKey, std::vector<stream::BufferId>> slots;
  for (const auto& [key, channel] : channels.ends) {
    if (!channel) continue;
    streams[key] = scheduler.add_stream(channel->name(), StreamKind::request);
    for (int i = 0; i < schedule.slots; ++i) slots[key].push_back(scheduler.add_buffer("slot"));
  }
  std::map<Op, stream::Claim> unread, unsent;
  std::map<ChannelKey, std::size_t> received;
  const auto& ops = schedule.ranks[static_cast<std::size_t>(fabric.rank())];
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (is_send(ops[i].kind) || is_receive(ops[i].kind)) {
      const ChannelKey key = channel_of(schedule, ops[i]);
      stream::Task task{.name = to_text(ops[i]), .stream = streams.at(key)};
      if (is_receive(ops[i].kind)) {
        const std::size_t k = received[key]++;
        unread[ops[i]] = {slots[key][k % slots[key].size()], content_of("message", static_cast<std::int64_t>(k))};
        task.writes = {unread[ops[i]]};
      } else {
        task.reads = {unsent.at(ops[i])};
      }
      task.start = [&channels, &schedule, op = ops[i]] { return channels.start(schedule, op); };
      scheduler.submit(std::move(task));
      continue;
    }
    stream::Task take{.name = "TAKE", .stream = compute, .body = [](stream::TaskScope&) {}};
    stream::Task task{.name = to_text(ops[i]), .stream = compute, .body = [](stream::TaskScope&) {}};
    for (const std::size_t first = i;; ++i) {
      if (const auto receive = receive_before(schedule, ops[i])) take.reads.push_back(unread.at(*receive));
      if (const auto send = send_after(schedule, ops[i])) {
        unsent[*send] = {scheduler.add_buffer("output"), content_of("output")};
        task.writes.push_back(unsent[*send]);
      }
      if (i > first || !ops[i].joins_next) break;
    }
    if (!take.reads.empty()) scheduler.submit(std::move(take));
    scheduler.submit(std::move(task));
  }
  scheduler.drain();
}

using Run = void (*)(comm::Fabric&, const Schedule&, Words&, milliseconds);

bool ends(const Schedule& schedule, Run run, milliseconds deadline) {
  std::vector<Words> words(schedule.ranks.size());
  try {
    orthant::tests::run_ranks(static_cast<int>(schedule.ranks.size()), [&](comm::Fabric& fabric) {
      run(fabric, schedule, words[static_cast<std::size_t>(fabric.rank())], deadline);
    });
    return true;
  } catch (const orthant::tests::RanksFailed&) {
    return false;
  }
}

TEST(PlanOnThreads, EndsWhereTheProofSaysSo) {
  tests::RandomSwaps plans(11);
  int safe = 0, only_in_line = 0, on_streams = 0;
  while (safe < 20 || only_in_line < 6 || on_streams < 6) {
    const Schedule schedule = plans.next(3, 5);
    const Proof proof = validate(schedule);
    const bool streams_hang = !proof.hang_on_streams.empty(), in_line_hangs = !proof.hang_in_line.empty();
    // A message without a slot is refused when it is submitted: no hang.
    if (proof.problems.size() != static_cast<std::size_t>(streams_hang) + static_cast<std::size_t>(in_line_hangs))
      continue;
    int& count = streams_hang ? on_streams : in_line_hangs ? only_in_line : safe;
    if (count == (streams_hang || in_line_hangs ? 6 : 20)) continue;
    ++count;
    EXPECT_EQ(ends(schedule, run_on_streams, streams_hang ? kShort : kLong), !streams_hang) << to_text(schedule);
    EXPECT_EQ(ends(schedule, run_in_line, in_line_hangs ? kShort : kLong), !in_line_hangs) << to_text(schedule);
  }
}

}  // namespace
}  // namespace orthant::pipeline
