// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <new>
#include <thread>

#include <sys/mman.h>

#include <orthant/core/comm/progress_engine.hpp>

namespace orthant::tests {
namespace {

using namespace std::chrono_literals;
using comm::Doorbell;

constexpr std::size_t kPage = 4096;
std::atomic<void*> page = nullptr;
std::atomic<bool> is_in_ring = false;

/// Holds up the first thread that writes to `page`, which lets it read only, and then lets it write.
void hold_up(int, siginfo_t* fault, void*) {
  if (page == nullptr || fault->si_addr < page || fault->si_addr >= static_cast<char*>(page.load()) + kPage) {
    ::signal(SIGSEGV, SIG_DFL);  // a fault of another kind: the next try dies of it
    return;
  }
  is_in_ring = true;
  std::this_thread::sleep_for(200ms);
  is_in_ring = false;
  ::mprotect(page, kPage, PROT_READ | PROT_WRITE);
}

// As at the end of a run, when the bells' memory is freed: a thread that posts may be held up between its step, which
// has been run by then, and its ring.
TEST(ProgressEngine, GivesUpABellOnlyWhenNobodyRingsIt) {
  page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  struct sigaction action, before;
  action.sa_sigaction = hold_up;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ASSERT_EQ(::sigaction(SIGSEGV, &action, &before), 0);

  comm::ProgressEngine engine(60s);
  engine.call("a bell in shared memory", [&] { engine.use(new (page) Doorbell, {}); });
  std::atomic<bool> is_held = false, was_in_ring = true;
  engine.post([&] {
    ::mprotect(page, kPage, PROT_READ);
    is_held = true;
    while (!is_in_ring) std::this_thread::yield();
    engine.use(nullptr, {});
    was_in_ring = is_in_ring.load();
  });
  while (!is_held) std::this_thread::yield();
  engine.call("a step whose ring is held up", [] {});

  EXPECT_FALSE(was_in_ring);
  ::sigaction(SIGSEGV, &before, nullptr);
  ::munmap(page, kPage);
}

}  // namespace
}  // namespace orthant::tests
