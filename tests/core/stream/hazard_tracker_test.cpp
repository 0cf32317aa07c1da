// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/hazard_tracker.hpp>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::stream {
namespace {

using Ids = std::vector<TaskId>;

const Content kOld = content_of("weights", 0);
const Content kNew = content_of("weights", 1);

struct Fixture {
  HazardTracker tracker;
  BufferId buffer = tracker.add_buffer("weights 1");
  std::int64_t next = 0;

  Ids add(std::vector<Claim> reads, std::vector<Claim> writes, int stream = 0) {
    Task task;
    task.name = fmt::format("task {}", next);
    task.stream = StreamId{stream};
    task.reads = std::move(reads);
    task.writes = std::move(writes);
    const Ids waits = tracker.add(TaskId{next}, task);
    ++next;
    return waits;
  }
  Ids read(Content content, int stream = 0) { return add({{buffer, content}}, {}, stream); }
  Ids write(Content content, int stream = 0) { return add({}, {{buffer, content}}, stream); }
  std::string rejected(std::vector<Claim> reads, std::vector<Claim> writes) {
    try {
      add(std::move(reads), std::move(writes));
    } catch (const InternalError& error) {
      return error.what();
    }
    return "";
  }
};

TEST(ContentOf, DiffersInEveryArgumentAndIsNeverZero) {
  std::vector<Content> all{0};
  for (const char* kind : {"", "weights", "weight", "grads"}) {
    for (int a = 0; a < 4; ++a) {
      for (int b = 0; b < 4; ++b) {
        for (int c = 0; c < 4; ++c) all.push_back(content_of(kind, a, b, c));
      }
    }
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::adjacent_find(all.begin(), all.end()), all.end());
}

TEST(HazardTracker, ReadWaitsForTheLastWrite) {
  Fixture f;
  EXPECT_EQ(f.write(kOld), Ids{});
  EXPECT_EQ(f.read(kOld), Ids{TaskId{0}});
  EXPECT_EQ(f.read(kOld), Ids{TaskId{0}});  // reads do not wait for each other
}

TEST(HazardTracker, WriteWaitsForAllReadersOfTheOldContent) {
  Fixture f;
  f.write(kOld);
  f.read(kOld, 1);
  f.read(kOld, 2);
  const Ids waits = f.write(kNew);
  EXPECT_NE(std::ranges::find(waits, TaskId{1}), waits.end());
  EXPECT_NE(std::ranges::find(waits, TaskId{2}), waits.end());
}

TEST(HazardTracker, AccumulatingWriteWaitsForTheWriteBeforeIt) {
  Fixture f;
  f.write(kOld);
  EXPECT_EQ(f.add({{f.buffer, kOld}}, {{f.buffer, kOld}}), Ids{TaskId{0}});
  EXPECT_EQ(f.add({{f.buffer, kOld}}, {{f.buffer, kNew}}), Ids{TaskId{1}});
  EXPECT_EQ(f.read(kNew), Ids{TaskId{2}});
}

TEST(HazardTracker, ReadersOfAnotherBufferDoNotMatter) {
  Fixture f;
  const BufferId other = f.tracker.add_buffer("other");
  f.write(kOld);
  f.add({}, {{other, kOld}});
  EXPECT_EQ(f.read(kOld), Ids{TaskId{0}});
}

TEST(HazardTracker, KeepsTheLastReaderOfEachStreamOnly) {
  Fixture f;
  f.write(kOld);
  for (int i = 0; i < 10; ++i) f.read(kOld, i % 2);
  EXPECT_EQ(f.write(kNew), (Ids{TaskId{0}, TaskId{9}, TaskId{10}}));
}

TEST(HazardTracker, RejectsAReadOfAnotherContentNamingBoth) {
  Fixture f;
  f.write(kOld);
  const std::string message = f.rejected({{f.buffer, kNew}}, {});
  EXPECT_NE(message.find("task 1"), std::string::npos) << message;
  EXPECT_NE(message.find("weights 1"), std::string::npos) << message;
  char hex[17];
  for (const Content content : {kOld, kNew}) {
    std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(content));
    EXPECT_NE(message.find(hex), std::string::npos) << message;
  }
}

TEST(HazardTracker, RejectsAReadOfABufferThatNobodyWrote) {
  Fixture f;
  EXPECT_NE(f.rejected({{f.buffer, kOld}}, {}), "");
  EXPECT_NE(f.rejected({{f.buffer, 0}}, {}), "");
}

TEST(HazardTracker, RejectsAnOverwriteOfUnreadContent) {
  Fixture f;
  f.write(kOld);
  EXPECT_NE(f.rejected({}, {{f.buffer, kNew}}), "");
  f.read(kOld);
  EXPECT_EQ(f.rejected({}, {{f.buffer, kNew}}), "");
}

TEST(HazardTracker, RejectsTwoWritesByOneTaskAndContentZero) {
  Fixture f;
  EXPECT_NE(f.rejected({}, {{f.buffer, kOld}, {f.buffer, kNew}}), "");
  EXPECT_NE(f.rejected({}, {{f.buffer, 0}}), "");
}

TEST(HazardTracker, ForgetsARejectedTask) {
  Fixture f;
  const BufferId other = f.tracker.add_buffer("other");
  f.write(kOld);
  EXPECT_NE(f.rejected({{f.buffer, kOld}, {other, kOld}}, {{f.buffer, kNew}}), "");
  EXPECT_NE(f.rejected({}, {{f.buffer, kNew}}), "");  // still unread
  EXPECT_EQ(f.read(kOld), Ids{TaskId{0}});
}

}  // namespace
}  // namespace orthant::stream
