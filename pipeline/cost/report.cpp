// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/cost/report.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace orthant::pipeline {
namespace {

bool is_whole(double number) { return std::abs(number) < 0x1p53 && number == std::floor(number); }

std::vector<std::string> order_of(const Schedule& compute, const std::vector<Op>& ops) {
  std::vector<std::string> order;
  bool joined = false;
  for (const Op& op : ops) {
    if (joined) {
      order.back() += "&" + short_text(compute, op);
    } else {
      order.push_back(short_text(compute, op));
    }
    joined = op.joins_next;
  }
  return order;
}

int chunks_of(const Schedule& schedule) { return schedule.stages / static_cast<int>(schedule.ranks.size()); }

}  // namespace

std::string number_text(double number, int digits) {
  std::string text = fmt::format("{:.{}f}", number, is_whole(number) ? 0 : digits);
  if (text.find('.') != text.npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  return text == "-0" ? "0" : text;
}

double tick_step(double longest, int about) {
  const double rough = longest / about;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough) return factor * power;
  }
  return 10 * power;
}

nlohmann::ordered_json number_json(double number) {
  if (is_whole(number)) return static_cast<std::int64_t>(number);
  return number;
}

double bubble_rate(const Timing& timing) { return timing.makespan > 0 ? timing.bubble() / timing.makespan : 0; }

std::string report_table(const Schedule& lowered, const Simulation& simulation) {
  const Timing& timing = simulation.timing;
  std::string text = fmt::format(
      "{}: {} ranks x {} chunk(s), {} micro-batches, {} slot(s), {} messages\n"
      "makespan {}, ideal {}, bubble {} ({:.2f} % of the makespan)\n"
      "span {}, bubble of the span {}; communication not hidden {}\n",
      lowered.name, lowered.ranks.size(), chunks_of(lowered), lowered.microbatches, lowered.slots,
      simulation.messages.size(), number_text(timing.makespan), number_text(timing.ideal), number_text(timing.bubble()),
      100 * bubble_rate(timing), number_text(timing.span), number_text(timing.bubble_span()),
      number_text(simulation.exposed_communication));
  text += fmt::format("{:>4} {:>14} {:>14} {:>8} {:>14}\n", "rank", "work", "idle", "peak", "not hidden");
  for (std::size_t rank = 0; rank < lowered.ranks.size(); ++rank) {
    text += fmt::format("{:>4} {:>14} {:>14} {:>8} {:>14}\n", rank, number_text(timing.makespan - timing.idle[rank]),
                        number_text(timing.idle[rank]), number_text(timing.peak[rank]),
                        number_text(simulation.exposed_per_rank[rank]));
  }
  return text;
}

nlohmann::ordered_json report_json(const Schedule& lowered, const Simulation& simulation) {
  const Timing& timing = simulation.timing;
  const auto list = [](const std::vector<double>& numbers) {
    auto array = nlohmann::ordered_json::array();
    for (const double number : numbers) array.push_back(number_json(number));
    return array;
  };
  const Schedule compute = compute_only(lowered);
  auto order = nlohmann::ordered_json::array();
  for (const auto& ops : compute.ranks) order.push_back(order_of(compute, ops));
  return {{"schedule", lowered.name},
          {"ranks", lowered.ranks.size()},
          {"microbatches", lowered.microbatches},
          {"chunks", chunks_of(lowered)},
          {"slots", lowered.slots},
          {"makespan", number_json(timing.makespan)},
          {"span", number_json(timing.span)},
          {"ideal", number_json(timing.ideal)},
          {"bubble", number_json(timing.bubble())},
          {"bubble_span", number_json(timing.bubble_span())},
          {"bubble_rate", number_json(bubble_rate(timing))},
          {"idle_per_rank", list(timing.idle)},
          {"peak_activations_per_rank", list(timing.peak)},
          {"exposed_communication", number_json(simulation.exposed_communication)},
          {"messages", simulation.messages.size()},
          {"order", std::move(order)}};
}

}  // namespace orthant::pipeline
