// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/watchdog/watchdog.hpp>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/base/host_name.hpp>
#include <orthant/launch/watchdog/hang_report.hpp>

namespace orthant::launch {
namespace {

using namespace std::chrono_literals;
using stream::Clock;

constexpr auto kTick = 100ms;
constexpr auto kLate = 1s;              // a tick this late: the process was stopped
constexpr auto kLookForAlarm = 500ms;   // at another rank's dump in the folder
constexpr auto kWaitForDumps = 3s;      // of ranks that are alive
constexpr auto kWaitForVerdict = 1s;    // of a lower rank
constexpr auto kWhileItPrints = 500ms;  // the verdict that another rank has found
constexpr auto kReportLimit = 6s;       // then the file system hangs, too
constexpr auto kPrintLimit = 1s;
constexpr auto kKillLimit = 5s;
constexpr int kExitCode = static_cast<int>(ExitCode::timed_out);

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

/// Past stdio: a thread that hangs may hold its lock.
void print(const std::string& text) { static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size())); }

}  // namespace

/// Three kinds of threads, so that what may block for ever (files, MPI) never holds up the clock: `clock_` counts and
/// decides, `listener_` answers other ranks' alarms, and each stage of an expiry runs on one of its own. At the end the
/// listener goes first, still watched.
class Watchdog::Core {
 public:
  explicit Core(WatchdogOptions options)
      : options_(std::move(options)),
        clock_([this](std::stop_token over) { watch(over); }),
        listener_([this](std::stop_token over) { listen(over); }) {}

  void enter(RunPhase phase, std::int64_t step) {
    const std::lock_guard guard(mutex_);
    phase_ = phase;
    step_ = step;
    last_ = Clock::now();
  }

  void progress() {
    const std::lock_guard guard(mutex_);
    last_ = Clock::now();
  }

  void dump_into(std::filesystem::path path) {
    const std::lock_guard guard(mutex_);
    folder_.emplace(std::move(path));
  }

 private:
  /// False when it is over before that.
  bool sleep(Clock::duration time, const std::stop_token& over) {
    std::unique_lock guard(mutex_);
    wake_.wait_for(guard, over, time, [] { return false; });
    return !over.stop_requested();
  }

  void watch(const std::stop_token& over) {
    auto tick = Clock::now();
    while (sleep(kTick, over)) {
      const auto now = Clock::now();
      const bool was_stopped = now - tick > kTick + kLate;
      if (count(was_stopped ? kTick : now - tick, now)) return expire(over);
      tick = now;
    }
  }

  /// Adds up the silence; true when it is too long.
  bool count(Clock::duration passed, Clock::time_point now) {
    const auto recorded = options_.recorder.last_progress();
    const std::lock_guard guard(mutex_);
    const auto last = std::max(recorded, last_);
    if (last == counted_from_) {
      silence_ += passed;
    } else {
      counted_from_ = last;
      silence_ = std::clamp<Clock::duration>(now - last, 0s, passed);
    }
    const auto timeout = options_.timeouts[static_cast<std::size_t>(phase_)];
    return timeout > 0ms && silence_ > timeout;
  }

  RankDump dump(bool has_expired) {
    RankDump dump{.rank = options_.rank,
                  .size = options_.size,
                  .has_expired = has_expired,
                  .host = host_name(),
                  .pid = ::getpid()};
    {
      const std::lock_guard guard(mutex_);
      dump.phase = name_of(phase_);
      dump.step = step_;
      dump.silent_s = seconds(silence_);
      dump.timeout_s = seconds(options_.timeouts[static_cast<std::size_t>(phase_)]);
    }
    const std::chrono::duration<double> wall = std::chrono::system_clock::now().time_since_epoch();
    dump.silent_since = wall.count() - dump.silent_s;
    add_flight(options_.recorder.snapshot(), Clock::now(), dump);
    return dump;
  }

  std::optional<HangFolder> folder() {
    const std::lock_guard guard(mutex_);
    return folder_;
  }

  /// A rank that is alive but not silent for long enough says so when another rank's time is up; else it would be taken
  /// for dead.
  void listen(const std::stop_token& over) {
    while (sleep(kLookForAlarm, over)) {
      const auto where = folder();
      if (!where) continue;
      const auto ranks = where->ranks_with_dumps();
      if (std::ranges::all_of(ranks, [this](int rank) { return rank == options_.rank; })) continue;
      const std::lock_guard guard(writing_);
      // After the verdict it is too late: a launcher that ends the run may first wake the rank that was stopped.
      if (!has_expired_ && !where->has_verdict()) write(*where, dump(false));
      return;
    }
  }

  static void write(const HangFolder& where, const RankDump& dump) {
    try {
      where.write(dump);
    } catch (const Error& error) {
      print(fmt::format("orthant: rank {}: {}\n", dump.rank, error.what()));
    }
  }

  /// Runs a stage of the end; false when it takes too long.
  template <class Stage>
  bool within(Clock::duration limit, Stage stage) {
    const auto is_done = std::make_shared<bool>(false);
    stages_.emplace_back([this, stage, is_done] {
      stage();
      {
        const std::lock_guard guard(mutex_);
        *is_done = true;
      }
      stage_ended_.notify_all();
    });
    std::unique_lock guard(mutex_);
    return stage_ended_.wait_for(guard, limit, [&] { return *is_done; });
  }

  void expire(const std::stop_token& over) {
    if (!within(kReportLimit, [this, over] { report(over); }))
      within(kPrintLimit, [this] { print("orthant: hang: " + to_text(judge_alone(dump(true)))); });
    if (over.stop_requested()) return;
    if (!within(kKillLimit, [this] { options_.kill(kExitCode); })) ::_exit(kExitCode);
  }

  void report(const std::stop_token& over) {
    const RankDump mine = dump(true);
    const auto where = folder();
    if (!where) return print("orthant: hang: " + to_text(judge_alone(mine)));
    {
      const std::lock_guard guard(writing_);
      has_expired_ = true;
      write(*where, mine);
    }
    const auto dumps = gather(*where, mine, over);
    const auto first = std::ranges::find_if(dumps.dumps, &RankDump::has_expired);
    if (first->rank != mine.rank) wait_for_verdict(*where, over);
    const std::string text = to_text(judge(dumps));
    if (!over.stop_requested() && where->claim_verdict(text))
      print(fmt::format("orthant: hang: {}  dumps: {}\n", text, where->path().string()));
  }

  /// All ranks' dumps, or those that come in time.
  HangDumps gather(const HangFolder& where, const RankDump& mine, const std::stop_token& over) {
    const auto deadline = Clock::now() + kWaitForDumps;
    while (where.ranks_with_dumps().size() < static_cast<std::size_t>(options_.size) && Clock::now() < deadline &&
           sleep(kTick, over)) {
    }
    auto dumps = where.read();
    dumps.size = options_.size;
    // This rank's as known here, whether or not it could be written.
    std::erase_if(dumps.dumps, [&](const RankDump& dump) { return dump.rank == mine.rank; });
    std::erase_if(dumps.damaged, [&](const HangDumps::Damaged& damaged) { return damaged.rank == mine.rank; });
    dumps.dumps.insert(std::ranges::upper_bound(dumps.dumps, mine.rank, {}, &RankDump::rank), mine);
    return dumps;
  }

  /// The lowest rank speaks. When it does not, any other does.
  void wait_for_verdict(const HangFolder& where, const std::stop_token& over) {
    const auto deadline = Clock::now() + kWaitForVerdict;
    while (Clock::now() < deadline && sleep(kTick, over)) {
      if (where.has_verdict()) {
        sleep(kWhileItPrints, over);
        return;
      }
    }
  }

  const WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable stage_ended_;
  RunPhase phase_ = RunPhase::init;
  std::int64_t step_ = 0;
  Clock::time_point last_ = Clock::now();  ///< enter() or progress()
  Clock::time_point counted_from_ = last_;
  Clock::duration silence_{0};
  std::optional<HangFolder> folder_;
  std::mutex writing_;  ///< this rank's dump
  bool has_expired_ = false;
  std::vector<std::jthread> stages_;
  std::jthread clock_, listener_;  // last: they use the others
};

Watchdog::Watchdog(WatchdogOptions options) : core_(std::make_unique<Core>(std::move(options))) {}
Watchdog::~Watchdog() = default;
void Watchdog::enter(RunPhase phase, std::int64_t step) { core_->enter(phase, step); }
void Watchdog::progress() { core_->progress(); }
void Watchdog::dump_into(std::filesystem::path folder) { core_->dump_into(std::move(folder)); }

}  // namespace orthant::launch
