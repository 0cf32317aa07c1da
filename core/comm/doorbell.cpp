// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/doorbell.hpp>

#include <climits>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace orthant::comm {
namespace {

// Not the _PRIVATE variants: the word is shared by processes.
void futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value, const timespec* timeout) {
  static_assert(sizeof word == sizeof(std::uint32_t) && std::atomic<std::uint32_t>::is_always_lock_free);
  syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

// Ringer: count, then look whether the owner sleeps. Owner: say that it sleeps, then look at the count (the kernel
// compares it again). All sequentially consistent, so one of the two sees the other and no ring is lost.
void Doorbell::ring_if(Sleep deepest) {
  rings.fetch_add(1);
  const std::uint32_t state = sleep.load();
  if (state != awake && state <= deepest) futex(rings, FUTEX_WAKE, INT_MAX, nullptr);
}

void Doorbell::wait(std::uint32_t seen, Sleep how, std::chrono::microseconds timeout) {
  sleep.store(how);
  if (rings.load() == seen) {
    const timespec limit{timeout.count() / 1'000'000, timeout.count() % 1'000'000 * 1000};
    futex(rings, FUTEX_WAIT, seen, &limit);
  }
  sleep.store(awake);
}

}  // namespace orthant::comm
