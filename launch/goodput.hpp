// SPDX-License-Identifier: Apache-2.0
// How much of the time a run has really trained, over all its starts: a ledger in the checkpoints' folder, one JSON
// object a line, that each start goes on with. What was trained and then lost (steps after the last checkpoint) does
// not count.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace orthant::launch {

/// One start as the ledger tells it. Times in seconds; of the wall clock since 1970 where they are points.
struct Attempt {
  double begun = 0;
  double last_seen = 0;                        ///< time of its last line
  double noticed = 0;                          ///< a watchdog found that it hung; 0: not
  double start_s = 0;                          ///< until the first step could begin, loading included
  double load_s = 0;                           ///< of that, loading the checkpoint
  double training_s = 0;                       ///< in steps
  double stall_s = 0;                          ///< stood still for checkpoints
  std::int64_t first_step = 0, last_step = 0;  ///< steps done when it began to train, and at its last line
};

struct GoodputSummary {
  std::int64_t starts = 0;
  double wall_s = 0;      ///< since the first start; between two starts not less than nothing, whatever the clock said
  double training_s = 0;  ///< in steps that count
  double lost_s = 0;      ///< in steps that were done again
  double detect_s = 0;    ///< between the last sign of life and a watchdog's verdict
  double restart_s = 0;   ///< between the end of a start and the next one
  double start_s = 0, load_s = 0, stall_s = 0;
  double ratio() const { return wall_s > 0 ? training_s / wall_s : 0; }
};

/// now  the end of the last attempt.
GoodputSummary summarise(const std::vector<Attempt>& attempts, double now);
/// Damaged lines (of a start that died while it wrote) are left out.
std::vector<Attempt> read_ledger(const std::filesystem::path& file);
nlohmann::ordered_json goodput_json(const GoodputSummary& summary);

/// Writes this start's lines; on rank 0. The wall clock is asked once: if it jumps later, no number changes.
class Ledger {
 public:
  using Clock = std::chrono::steady_clock;
  /// begun  when this start did.
  explicit Ledger(std::filesystem::path file, Clock::time_point begun = Clock::now());
  void ready(std::int64_t step, double load_s);
  /// At most once a second.
  void progress(std::int64_t step, double training_s, double stall_s);
  void hangs();
  /// Writes the last line. Returns all that the ledger tells.
  GoodputSummary finish();

 private:
  double since_begun_s() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }
  /// As the wall clock would show if it had not jumped since this start began.
  double now() const { return begun_wall_ + since_begun_s(); }
  void append(nlohmann::ordered_json line);

  std::filesystem::path file_;
  Clock::time_point begun_;
  double begun_wall_;
  double last_ = 0;
  std::int64_t step_ = 0;
  double training_s_ = 0, stall_s_ = 0;
};

}  // namespace orthant::launch
