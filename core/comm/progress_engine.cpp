// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/progress_engine.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include <pthread.h>
#include <sys/prctl.h>

#include <orthant/core/base/error.hpp>

namespace orthant::comm {

ProgressEngine::ProgressEngine(std::chrono::milliseconds blocking_timeout)
    : blocking_timeout_(blocking_timeout), thread_([this] { run(); }) {}

ProgressEngine::~ProgressEngine() {
  post([this] { quit_ = true; });
  try {
    stopped_.work().wait(blocking_timeout_);
  } catch (const std::exception&) {
    std::fprintf(stderr, "orthant: the MPI progress thread is stuck in a call to MPI; ending the process\n");
    std::_Exit(static_cast<int>(ExitCode::timed_out));
  }
  thread_.join();
}

void ProgressEngine::post(std::function<void()> step) {
  {
    const std::lock_guard guard(mutex_);
    posted_.push_back(std::move(step));
  }
  ++ringing_;  // before it looks which bell: see use()
  bell_.load()->ring_loudly();
  --ringing_;
}

void ProgressEngine::call(const std::string& what, std::function<void()> step) {
  const stream::Promise promise(what);
  post([promise, step = std::move(step)] {
    try {
      step();
      promise.complete();
    } catch (...) {
      promise.complete(std::current_exception());
    }
  });
  promise.work().wait(blocking_timeout_);
}

void ProgressEngine::drive(const std::shared_ptr<Driven>& group) {
  if (std::ranges::find(open_, group) == open_.end()) open_.push_back(group);
}

void ProgressEngine::use(Doorbell* bell, Pacing pacing) {
  bell_ = bell != nullptr ? bell : &own_bell_;
  while (ringing_ > 0) std::this_thread::yield();  // whoever comes now rings the new one
  pacing_ = pacing;
}

void ProgressEngine::fail_all(const std::string& why) {
  for (const auto& group : std::exchange(open_, {})) group->fail(why);
}

void ProgressEngine::run() {
  pthread_setname_np(pthread_self(), "orthant-mpi");
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; the default of 50 us is longer than the shortest sleeps
  while (!quit_) {
    const std::uint32_t seen = bell_.load()->rings.load();
    bool moved = run_posted();
    moved = advance_all() || moved;
    // Once more before sleeping: a test that finds nothing may itself bring in what its bell was rung for (Open MPI's
    // MPI_Testsome makes progress after it has looked), and nobody would ring again.
    moved = moved || look_() || advance_all();
    if (moved)
      next_sleep_ = pacing_.shortest;
    else
      sleep(seen);
  }
  stopped_.complete();
}

bool ProgressEngine::run_posted() {
  std::vector<std::function<void()>> steps;
  {
    const std::lock_guard guard(mutex_);
    steps.swap(posted_);
  }
  for (const auto& step : steps) step();
  return !steps.empty();
}

bool ProgressEngine::advance_all() {
  bool moved = false;
  for (const auto& group : open_) moved = group->advance() || moved;
  std::erase_if(open_, [](const auto& group) { return !group->has_open(); });
  return moved;
}

void ProgressEngine::sleep(std::uint32_t seen) {
  const auto [how, longest] =
      open_.empty() ? std::pair(Doorbell::parked, pacing_.parked) : std::pair(Doorbell::waiting, pacing_.longest);
  bell_.load()->wait(seen, how, std::min(next_sleep_, longest));
  next_sleep_ = std::min(2 * next_sleep_, longest);
}

}  // namespace orthant::comm
