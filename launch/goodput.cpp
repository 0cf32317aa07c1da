// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/goodput.hpp>

#include <algorithm>
#include <chrono>
#include <fstream>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace orthant::launch {
GoodputSummary summarise(const std::vector<Attempt>& attempts, double now) {
  GoodputSummary sum{.starts = static_cast<std::int64_t>(attempts.size())};
  for (std::size_t i = 0; i < attempts.size(); ++i) {
    const auto& a = attempts[i];
    sum.start_s += a.start_s;
    sum.load_s += a.load_s;
    sum.stall_s += a.stall_s;
    double lost = 0;
    const bool is_last = i + 1 == attempts.size();
    const double end = is_last ? now : std::max(a.last_seen, a.noticed);
    sum.wall_s += std::max(end - a.begun, 0.0);
    if (!is_last) {
      const auto& next = attempts[i + 1];
      const auto done = a.last_step - a.first_step, again = a.last_step - std::max(next.first_step, a.first_step);
      if (done > 0 && again > 0) lost = a.training_s * static_cast<double>(again) / static_cast<double>(done);
      if (a.noticed > 0) sum.detect_s += std::max(a.noticed - a.last_seen, 0.0);
      const double restart = std::max(next.begun - end, 0.0);
      sum.restart_s += restart;
      sum.wall_s += restart;
    }
    sum.lost_s += lost;
    sum.training_s += a.training_s - lost;
  }
  return sum;
}

std::vector<Attempt> read_ledger(const std::filesystem::path& file) {
  std::vector<Attempt> attempts;
  std::ifstream in(file);
  for (std::string text; std::getline(in, text);) {
    const auto line = nlohmann::json::parse(text, nullptr, false);
    if (!line.is_object()) continue;
    const auto event = line.value("event", "");
    const double time = line.value("time", 0.0);
    if (event == "start") attempts.push_back({.begun = time, .last_seen = time});
    if (attempts.empty()) continue;
    auto& a = attempts.back();
    if (event == "hang") {
      a.noticed = time;
      continue;
    }
    a.last_seen = time;
    if (event == "ready") {
      a.start_s = time - a.begun;
      a.load_s = line.value("load_s", 0.0);
      a.first_step = a.last_step = line.value("step", std::int64_t{0});
    }
    if (event == "progress") {
      a.last_step = line.value("step", a.last_step);
      a.training_s = line.value("training_s", a.training_s);
      a.stall_s = line.value("stall_s", a.stall_s);
    }
  }
  return attempts;
}

nlohmann::ordered_json goodput_json(const GoodputSummary& sum) {
  return {{"effective_training_time_ratio", sum.ratio()},
          {"starts", sum.starts},
          {"wall_s", sum.wall_s},
          {"training_s", sum.training_s},
          {"lost_s", sum.lost_s},
          {"detect_s", sum.detect_s},
          {"restart_s", sum.restart_s},
          {"start_s", sum.start_s},
          {"load_s", sum.load_s},
          {"save_stall_s", sum.stall_s}};
}

Ledger::Ledger(std::filesystem::path file, Clock::time_point begun) : file_(std::move(file)), begun_(begun) {
  const std::chrono::duration<double> wall = std::chrono::system_clock::now().time_since_epoch();
  begun_wall_ = wall.count() - since_begun_s();
  append({{"event", "start"}, {"time", begun_wall_}});
}

void Ledger::ready(std::int64_t step, double load_s) {
  append({{"event", "ready"}, {"time", now()}, {"step", step}, {"load_s", load_s}});
}

void Ledger::progress(std::int64_t step, double training_s, double stall_s) {
  step_ = step;
  training_s_ = training_s;
  stall_s_ = stall_s;
  if (now() - last_ < 1) return;
  last_ = now();
  append({{"event", "progress"}, {"time", last_}, {"step", step}, {"training_s", training_s}, {"stall_s", stall_s}});
}

void Ledger::hangs() { append({{"event", "hang"}, {"time", now()}}); }

GoodputSummary Ledger::finish() {
  last_ = 0;
  progress(step_, training_s_, stall_s_);
  return summarise(read_ledger(file_), now());
}

/// One write, so that a line is there whole or not at all. A full disk costs the statistics, never the run.
void Ledger::append(nlohmann::ordered_json line) {
  const auto text = "\n" + line.dump();  // what a killed start has left of a line ends here
  const int fd = ::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return;
  if (::write(fd, text.data(), text.size()) < 0) {
  }
  ::close(fd);
}

}  // namespace orthant::launch
