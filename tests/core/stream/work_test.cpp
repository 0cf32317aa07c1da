// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/stream/work.hpp>

#include <thread>

#include <gtest/gtest.h>

#include <orthant/core/base/error.hpp>

namespace orthant::stream {
namespace {

using namespace std::chrono_literals;

TEST(Work, WaitsForItsPromiseOnAnotherThread) {
  const Promise promise("all_gather dp#7");
  int value = 0;
  std::thread performer([&] {
    value = 42;
    promise.complete();
  });
  promise.work().wait(10s);
  EXPECT_EQ(value, 42);
  performer.join();
}

TEST(Work, RunsItsCallbackOnceWhetherSetBeforeOrAfterCompletion) {
  int before = 0, after = 0;
  const Promise promise("x");
  promise.work().then([&](std::exception_ptr) { ++before; });
  EXPECT_EQ(before, 0);
  promise.complete();
  promise.complete();
  EXPECT_EQ(before, 1);
  Work::done().then([&](std::exception_ptr error) { after += error ? 100 : 1; });
  EXPECT_EQ(after, 1);
  EXPECT_TRUE(Work::done().is_done());
}

TEST(Work, TakesOneCallbackOnly) {
  const Promise promise("x");
  promise.work().then([](std::exception_ptr) {});
  EXPECT_THROW(promise.work().then([](std::exception_ptr) {}), InternalError);
}

TEST(Work, RethrowsTheFirstReportedError) {
  const Promise promise("x");
  promise.complete(std::make_exception_ptr(CommError("peer is gone")));
  promise.complete();
  EXPECT_THROW(promise.work().wait(0ms), CommError);
}

TEST(Work, NamesTheOperationWhenItsTimeRunsOut) {
  const Promise promise("all_gather dp#7");
  try {
    promise.work().wait(1ms);
    FAIL() << "did not expire";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("all_gather dp#7"), std::string::npos);
  }
}

TEST(Work, DestroysItsCallbackOnceItHasRun) {
  const Promise promise("x");
  auto captured = std::make_shared<int>(1);
  const std::weak_ptr<int> alive = captured;
  promise.work().then([captured = std::move(captured)](std::exception_ptr) {});
  EXPECT_FALSE(alive.expired());
  promise.complete();
  EXPECT_TRUE(alive.expired());
}

TEST(Promise, MayBeDestroyedByTheWaiterThatItWakes) {
  for (int i = 0; i < 200; ++i) {
    auto promise = std::make_unique<Promise>("x");
    std::thread performer([&borrowed = *promise] { borrowed.complete(); });
    {
      Work work = promise->work();
      work.wait(10s);
    }
    promise.reset();  // perhaps while complete() is still on its way out
    performer.join();
  }
}

}  // namespace
}  // namespace orthant::stream
