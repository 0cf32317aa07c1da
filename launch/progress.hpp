// SPDX-License-Identifier: Apache-2.0
// What a person sees while a run goes on: a bar that is redrawn on a terminal, plain lines in a log.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace orthant::launch {

struct StepReport {
  std::int64_t step = 0;  ///< steps done
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  double tokens_per_s = 0;
};

class Progress {
 public:
  struct Options {
    std::int64_t total_steps = 0;
    std::int64_t log_every = 10;
    bool visible = true;  ///< one rank of the run
  };
  explicit Progress(Options options);

  void step(const StepReport& report);
  /// Leaves the bar behind, so that what is printed next starts on a line of its own.
  void finish();
  /// A line that stays: above the bar on a terminal.
  void line(const std::string& text);

 private:
  std::string bar(const StepReport& report) const;

  Options options_;
  bool terminal_;
  bool bar_open_ = false;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace orthant::launch
