// SPDX-License-Identifier: Apache-2.0
// A doorbell: one futex word that other threads, or other processes of the same host, ring and its owner sleeps on.
// Lies in shared memory; two words and no pointers. Ringing costs a system call only when somebody sleeps.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace orthant::comm {

struct alignas(64) Doorbell {
  /// waiting: for something from a peer. parked: nothing is open, so only its own process, or an abort, need wake it.
  enum Sleep : std::uint32_t { awake, waiting, parked };

  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleep{awake};

  /// From a peer that sent or took something: wakes an owner that is waiting.
  void ring() { ring_if(waiting); }
  /// Wakes the owner from either sleep.
  void ring_loudly() { ring_if(parked); }

  /// Sleeps until somebody rings, unless that happened since `rings` was `seen`. Wakes without reason now and then.
  void wait(std::uint32_t seen, Sleep how, std::chrono::microseconds timeout);

 private:
  void ring_if(Sleep deepest);
};

}  // namespace orthant::comm
