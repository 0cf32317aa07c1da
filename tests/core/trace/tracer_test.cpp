// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/trace/tracer.hpp>

#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <orthant/core/trace/chrome_trace.hpp>
#include <orthant/core/trace/nvtx_range.hpp>

namespace orthant::trace {
namespace {

using std::chrono::microseconds;

Clock::time_point at(int us) { return Clock::time_point(microseconds(us)); }

nlohmann::json parse(const std::vector<std::string>& fragments) {
  return nlohmann::json::parse(chrome_trace(fragments));
}

nlohmann::json events_of(const nlohmann::json& document, const std::string& phase, const std::string& name = "") {
  nlohmann::json found = nlohmann::json::array();
  for (const auto& event : document["traceEvents"]) {
    if (event["ph"] == phase && (name.empty() || event["name"] == name)) found.push_back(event);
  }
  return found;
}

TEST(Tracer, KeepsSpansOfTheOpenWindowOnly) {
  Tracer tracer;
  const TrackId compute = tracer.add_track("compute");
  tracer.record({"before", compute, at(0), at(1)});
  tracer.enable();
  tracer.record({"inside", compute, at(1), at(2)});
  tracer.disable();
  tracer.record({"after", compute, at(2), at(3)});
  ASSERT_EQ(tracer.spans().size(), 1u);
  EXPECT_EQ(tracer.spans()[0].name, "inside");
}

TEST(Tracer, KeepsEverySpanOfManyThreads) {
  Tracer tracer;
  tracer.enable();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&tracer] {
      const TrackId track = tracer.add_track("thread");
      for (int i = 0; i < 500; ++i) tracer.record({"span", track, at(i), at(i + 1)});
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<int> per_track(4);
  for (const Span& span : tracer.spans()) ++per_track.at(span.track.value);
  EXPECT_EQ(per_track, std::vector<int>(4, 500));
}

TEST(ChromeTrace, HasAProcessPerRankAndANamedThreadPerTrack) {
  std::vector<std::string> fragments;
  for (int rank = 0; rank < 2; ++rank) {
    Tracer tracer;
    tracer.add_track("compute");
    const TrackId gather = tracer.add_track("dp.gather");
    tracer.enable();
    tracer.record({"AG layers.2", gather, at(1500), at(1750)});
    fragments.push_back(
        chrome_events(tracer, {rank, "rank " + std::to_string(rank) + " pp0 dp0 tp1", microseconds(1000)}));
  }
  const auto document = parse(fragments);
  const auto processes = events_of(document, "M", "process_name");
  ASSERT_EQ(processes.size(), 2u);
  EXPECT_EQ(processes[1]["pid"], 1);
  EXPECT_EQ(processes[1]["args"]["name"], "rank 1 pp0 dp0 tp1");
  const auto threads = events_of(document, "M", "thread_name");
  ASSERT_EQ(threads.size(), 4u);
  EXPECT_EQ(threads[3]["args"]["name"], "dp.gather");
  const auto spans = events_of(document, "X");
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1]["pid"], 1);
  EXPECT_EQ(spans[1]["tid"], threads[3]["tid"]);
  EXPECT_EQ(spans[1]["name"], "AG layers.2");
  EXPECT_DOUBLE_EQ(spans[1]["ts"], 500.0);  // microseconds after the origin
  EXPECT_DOUBLE_EQ(spans[1]["dur"], 250.0);
}

TEST(ChromeTrace, StaysValidForAnyNameAndForNoEvents) {
  Tracer tracer;
  tracer.enable();
  const TrackId track = tracer.add_track("a \"quoted\"\ntrack");
  tracer.record({"back\\slash \"q\" \x01", track, at(0), at(1)});
  tracer.record({"not utf-8 \xff", track, at(1), at(2)});
  const auto document = parse({"", chrome_events(tracer, {}), ""});
  EXPECT_EQ(events_of(document, "X")[0]["name"], "back\\slash \"q\" \x01");
  EXPECT_EQ(events_of(document, "X").size(), 2u);
  EXPECT_TRUE(parse({})["traceEvents"].empty());
}

TEST(NvtxRange, EndsOnAnotherThreadThanItBeganOn) {
  auto range = std::make_unique<NvtxRange>("AG layers.2");
  std::thread([moved = std::move(range)]() mutable { moved.reset(); }).join();
}

}  // namespace
}  // namespace orthant::trace
