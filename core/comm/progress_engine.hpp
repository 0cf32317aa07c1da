// SPDX-License-Identifier: Apache-2.0
// The progress thread: the only thread of a rank that calls MPI. It takes calls and operations from other threads,
// moves every open group along, and sleeps when nothing moves: on its doorbell, or, where peers cannot ring it, with a
// growing back-off.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <orthant/core/comm/doorbell.hpp>
#include <orthant/core/stream/work.hpp>

namespace orthant::comm {

/// Something with operations under way. All functions run on the progress thread.
class Driven {
 public:
  virtual ~Driven() = default;
  /// Tests what is open and starts what can start, never waiting; true if anything changed.
  virtual bool advance() = 0;
  virtual bool has_open() const = 0;
  /// Fails everything open, now and later.
  virtual void fail(const std::string& why) = 0;
};

/// How long the thread sleeps when nothing moved: `shortest` first, then twice as long each time.
struct Pacing {
  std::chrono::microseconds shortest{5};
  std::chrono::microseconds longest{200};  ///< while something is open
  std::chrono::microseconds parked{
      20'000};  ///< while nothing is: MPI may still hold back parts of sends that it called complete
};

class ProgressEngine {
 public:
  /// blocking_timeout  how long one call() may take, and how long the destructor waits for the thread.
  explicit ProgressEngine(std::chrono::milliseconds blocking_timeout);
  /// Runs what was posted, then ends the thread. If the thread is stuck in MPI it says so on stderr and ends the
  /// process with code 6, because neither the thread nor MPI can be left in an orderly way.
  ~ProgressEngine();

  /// Runs `step` on the progress thread, soon. Any thread.
  void post(std::function<void()> step);
  /// Runs `step` there and waits for it; rethrows what it throws. Throws CommError, naming `what`, after the blocking
  /// time-out; `step` may still be running then, so it must own what it uses.
  void call(const std::string& what, std::function<void()> step);

  // On the progress thread only:
  /// Moves `group` along until nothing of it is open.
  void drive(const std::shared_ptr<Driven>& group);
  /// Sleeps on `bell` from now on, which peers may ring too; null: on a bell of its own. When it returns, no thread of
  /// this process rings the one before, so its memory may be freed.
  void use(Doorbell* bell, Pacing pacing);
  /// Called before each sleep; true if it found something to do. For messages that may come at any time.
  void watch(std::function<bool()> look) { look_ = std::move(look); }
  /// Fails everything open.
  void fail_all(const std::string& why);

 private:
  void run();
  bool run_posted();
  bool advance_all();
  void sleep(std::uint32_t seen);

  const std::chrono::milliseconds blocking_timeout_;
  std::mutex mutex_;
  std::vector<std::function<void()>> posted_;  ///< under mutex_
  Doorbell own_bell_;
  std::atomic<Doorbell*> bell_{&own_bell_};
  std::atomic<int> ringing_{0};  ///< threads that are about to ring `bell_`, or the one before

  std::vector<std::shared_ptr<Driven>> open_;  ///< progress thread only, as all below
  std::function<bool()> look_ = [] { return false; };
  Pacing pacing_;
  std::chrono::microseconds next_sleep_{0};
  bool quit_ = false;

  stream::Promise stopped_{"the end of the MPI progress thread"};
  std::thread thread_;
};

}  // namespace orthant::comm
