// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/progress.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>

namespace orthant::launch {
namespace {

/// mpirun gives its ranks a pseudo-terminal even when its own output goes to a file: ask where the launcher writes,
/// too.
bool launcher_writes_to_terminal() {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(fmt::format("/proc/{}/fd/1", ::getppid()), error).string();
  return error || target.starts_with("/dev/pts/") || target.starts_with("/dev/tty");
}

}  // namespace

Progress::Progress(Options options)
    : options_(options),
      terminal_(::isatty(STDOUT_FILENO) == 1 && launcher_writes_to_terminal()),
      start_(std::chrono::steady_clock::now()) {}

std::string Progress::bar(const StepReport& report) const {
  constexpr int kWidth = 28;
  const auto done = static_cast<int>(kWidth * report.step / std::max<std::int64_t>(options_.total_steps, 1));
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  const auto left = static_cast<int>(elapsed / static_cast<double>(std::max<std::int64_t>(report.step, 1)) *
                                     static_cast<double>(options_.total_steps - report.step));
  return fmt::format("{}/{} [{:=<{}}{: <{}}] loss {:.4f}  {:.0f} tokens/s  {}:{:02} left", report.step,
                     options_.total_steps, "", done, "", kWidth - done, report.loss, report.tokens_per_s, left / 60,
                     left % 60);
}

void Progress::step(const StepReport& report) {
  if (!options_.visible) return;
  if (terminal_) {
    fmt::print("\r\x1b[K{}", bar(report));
    bar_open_ = true;
  } else if (report.step % options_.log_every == 0 || report.step == 1 || report.step == options_.total_steps) {
    fmt::print("step {:>5}/{}  loss {:.6f}  grad_norm {:.4f}  lr {:.3e}  {:.0f} tokens/s\n", report.step,
               options_.total_steps, report.loss, report.grad_norm, report.lr, report.tokens_per_s);
  }
  std::fflush(stdout);
}

void Progress::finish() {
  if (bar_open_) fmt::print("\n");
  bar_open_ = false;
}

void Progress::line(const std::string& text) {
  if (!options_.visible) return;
  fmt::print("{}{}\n", terminal_ ? "\r\x1b[K" : "", text);
  std::fflush(stdout);
}

}  // namespace orthant::launch
