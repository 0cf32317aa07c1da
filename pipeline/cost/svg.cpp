// SPDX-License-Identifier: Apache-2.0
// x runs with time, y downwards; a row's boxes are inside a group that is moved to the row.
#include <orthant/pipeline/cost/svg.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/cost/report.hpp>

namespace orthant::pipeline {
namespace {

constexpr double kLeft = 64, kRight = 20, kTop = 14;
constexpr double kTitle = 30, kRow = 26, kRowGap = 4, kPanelGap = 12, kAxis = 26, kLegend = 34;
constexpr int kTicks = 8;
constexpr double kDigit = 5.6;  ///< width of a digit in a box

struct Kind {
  OpKind op;
  char letter;
  std::string_view meaning;
  std::array<int, 3> colour;  ///< of the rank's first chunk; later ones are paler
};
constexpr std::array kKinds{Kind{OpKind::forward, 'F', "forward", {91, 155, 243}},
                            Kind{OpKind::backward, 'B', "backward", {177, 138, 240}},
                            Kind{OpKind::backward_input, 'I', "input gradient", {79, 195, 138}},
                            Kind{OpKind::backward_weight, 'W', "weight gradient", {242, 184, 75}}};
constexpr std::array kWhitened{0.0, 0.42, 0.64, 0.8};  ///< shades; a fifth chunk has the last one's

constexpr std::string_view kStyle = R"(<style>
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-size:12px;fill:#1f2328}
.h{font-size:14px;font-weight:600}.n{font-size:9.5px;text-anchor:middle;fill:#10151c;pointer-events:none}
.e{text-anchor:end}.m{text-anchor:middle}
.ground{fill:#ffffff}.idle{fill:#e9ecf0}.grid{stroke:#c4cbd3;stroke-width:.7}.box{stroke:#ffffff;stroke-width:.6}
.act{stroke:#0a58ca}.grad{stroke:#b3261e}.act,.grad{stroke-width:.7;stroke-opacity:.65;fill:none;pointer-events:none}
@media (prefers-color-scheme: dark){text{fill:#e6edf3}.n{fill:#10151c}.ground{fill:#0d1117}.idle{fill:#21262d}
.grid{stroke:#3d444d}.box{stroke:#0d1117}.act{stroke:#a5c8ff}.grad{stroke:#ffb3ab}}
)";

std::string xml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (static_cast<unsigned char>(c) >= ' ') {
      escaped += c;
    }
  }
  return escaped;
}

std::string px(double length) { return number_text(length, 2); }

std::string style() {
  std::string text(kStyle);
  for (const Kind& kind : kKinds) {
    for (std::size_t shade = 0; shade < kWhitened.size(); ++shade) {
      const auto mixed = [&](int part) { return std::lround(part + (255 - part) * kWhitened[shade]); };
      text += fmt::format(".{}{}{{fill:#{:02x}{:02x}{:02x}}}\n", kind.letter, shade, mixed(kind.colour[0]),
                          mixed(kind.colour[1]), mixed(kind.colour[2]));
    }
  }
  return text + "</style>\n";
}

/// Which of its rank's stages it is, from 0.
std::size_t chunk_of(const Schedule& schedule, StageId stage) {
  const auto stages = schedule.stages_of(schedule.rank_of(stage));
  return static_cast<std::size_t>(std::ranges::find(stages, stage) - stages.begin());
}

std::string shade_class(const Schedule& schedule, const Op& op) {
  return fmt::format("{}{}", letters(op.kind), std::min(chunk_of(schedule, op.stage), kWhitened.size() - 1));
}

double first_begin(const Panel& panel) {
  double first = std::numeric_limits<double>::infinity();
  for (const auto& ops : panel.ops) {
    if (!ops.empty()) first = std::min(first, ops.front().begin);
  }
  return first;
}

/// How many shades the kind takes in the panels.
std::size_t shades_of(OpKind kind, const std::vector<Panel>& panels) {
  std::size_t shades = 0;
  for (const Panel& panel : panels) {
    for (const auto& ops : panel.compute.ranks) {
      for (const Op& op : ops) {
        if (op.kind == kind) shades = std::max(shades, chunk_of(panel.compute, op.stage) + 1);
      }
    }
  }
  return std::min(shades, kWhitened.size());
}

class Drawing {
 public:
  Drawing(const std::vector<Panel>& panels, const SvgOptions& options) : panels_(panels), options_(options) {
    for (const Panel& panel : panels) {
      timings_.push_back(timing_of(panel.compute, panel.ops));
      longest_ = std::max(longest_, timings_.back().makespan);
    }
    width_ = options.width > 0 ? options.width : std::clamp(kLeft + kRight + width_for_numbers(), 1200.0, 2000.0);
    scale_ = (width_ - kLeft - kRight) / (longest_ > 0 ? longest_ : 1);
  }

  std::string run() {
    double y = kTop;
    for (std::size_t i = 0; i < panels_.size(); ++i) {
      if (i > 0) y += kPanelGap;
      y = panel(panels_[i], timings_[i], y);
    }
    y = axis(y);
    y = legend(y);
    return fmt::format(
               "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
               "role=\"img\">\n<title>{2}</title>\n",
               px(width_), px(y), xml(panels_.empty() ? "" : panels_.front().title)) +
           style() + fmt::format("<rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n") + body_ +
           "</svg>\n";
  }

 private:
  /// So that two digits fit into the shortest box.
  double width_for_numbers() const {
    double shortest = longest_;
    for (const Panel& panel : panels_) {
      for (const auto& ops : panel.ops) {
        for (const Interval& at : ops) {
          if (at.end > at.begin) shortest = std::min(shortest, at.end - at.begin);
        }
      }
    }
    return shortest > 0 ? 2.05 * kDigit * longest_ / shortest : 0;
  }
  double width(double time) const { return time * scale_; }
  double row_middle(double first_row, int rank) const { return first_row + rank * (kRow + kRowGap) + kRow / 2; }
  std::string with_unit(double time) const {
    return number_text(time) + (options_.time_unit.empty() ? "" : " " + options_.time_unit);
  }

  void text(std::string_view style, double x, double y, const std::string& words) {
    body_ += fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", style, px(x), px(y), xml(words));
  }

  /// Returns where it ends.
  double panel(const Panel& panel, const Timing& timing, double y) {
    text("h", kLeft, y + 16,
         fmt::format("{}: makespan {}, bubble {} ({:.2f} %)", panel.title, with_unit(timing.makespan),
                     with_unit(timing.bubble()), 100 * bubble_rate(timing)));
    y += kTitle;
    const int ranks = static_cast<int>(panel.ops.size());
    const double height = ranks * (kRow + kRowGap) - kRowGap;
    const double begin = first_begin(panel);
    for (int rank = 0; rank < ranks; ++rank) {
      text("e", kLeft - 8, row_middle(y, rank) + 4, fmt::format("rank {}", rank));
      body_ += fmt::format("<rect class=\"idle\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n", px(kLeft),
                           px(row_middle(y, rank) - kRow / 2), px(width(longest_)), px(kRow));
    }
    grid(y, height);
    for (int rank = 0; rank < ranks; ++rank) row(panel, rank, begin, row_middle(y, rank) - kRow / 2);
    messages(panel, begin, y);
    return y + height;
  }

  void grid(double y, double height) {
    if (longest_ <= 0) return;
    body_ += "<path class=\"grid\" d=\"";
    for (double time = 0; time <= longest_; time += tick_step(longest_, kTicks))
      body_ += fmt::format("M{} {}v{}", px(kLeft + width(time)), px(y - 3), px(height + 6));
    body_ += "\"/>\n";
  }

  void row(const Panel& panel, int rank, double begin, double y) {
    body_ += fmt::format("<g transform=\"translate({} {})\">\n", px(kLeft), px(y));
    const auto& list = panel.compute.ranks[static_cast<std::size_t>(rank)];
    const auto& at = panel.ops[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Interval shifted{at[i].begin - begin, at[i].end - begin};
      // Of an overlapped pair, F takes the upper half of the row and B the lower.
      const bool upper = list[i].joins_next, lower = i > 0 && list[i - 1].joins_next;
      box(panel.compute, list[i], shifted, {lower ? kRow / 2 : 0, upper || lower ? kRow / 2 : kRow});
    }
    body_ += "</g>\n";
  }

  struct Band {
    double y, height;
  };

  void box(const Schedule& schedule, const Op& op, Interval at, Band band) {
    const double x = width(at.begin), w = width(at.end - at.begin);
    if (w <= 0) return;
    body_ +=
        fmt::format("<rect class=\"box {}\" x=\"{}\"{} width=\"{}\" height=\"{}\"><title>{}: {} to {}</title></rect>\n",
                    shade_class(schedule, op), px(x), band.y > 0 ? fmt::format(" y=\"{}\"", px(band.y)) : "", px(w),
                    px(band.height), short_text(schedule, op), number_text(at.begin), number_text(at.end));
    const std::string number = std::to_string(op.microbatch.value);
    if (w < kDigit * static_cast<double>(number.size())) return;
    body_ += fmt::format("<text class=\"n\" x=\"{}\" y=\"{}\">{}</text>\n", px(x + w / 2),
                         px(band.y + band.height / 2 + 3.4), number);
  }

  void messages(const Panel& panel, double begin, double y) {
    for (const bool gradient : {false, true}) {
      std::string lines;
      for (const MessageInterval& message : panel.messages) {
        if ((message.send.kind == OpKind::send_gradient) != gradient) continue;
        const double towards = message.destination > message.source ? kRow / 2 : -kRow / 2;
        lines += fmt::format("M{} {}L{} {}", px(kLeft + width(message.at.begin - begin)),
                             px(row_middle(y, message.source) + towards), px(kLeft + width(message.at.end - begin)),
                             px(row_middle(y, message.destination) - towards));
      }
      if (!lines.empty()) body_ += fmt::format("<path class=\"{}\" d=\"{}\"/>\n", gradient ? "grad" : "act", lines);
    }
  }

  double axis(double y) {
    if (longest_ > 0) {
      for (double time = 0; time <= longest_; time += tick_step(longest_, kTicks))
        text("m", kLeft + width(time), y + 18, with_unit(time));
    }
    return y + kAxis;
  }

  double legend(double y) {
    double x = kLeft;
    const auto swatch = [&](const std::string& style) {
      body_ +=
          fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"14\" height=\"14\"/>\n", style, px(x), px(y + 8));
      x += 16;
    };
    const auto words = [&](const std::string& text_after) {
      text("", x + 2, y + 19, text_after);
      x += 6.3 * static_cast<double>(text_after.size()) + 16;
    };
    std::size_t most = 1;
    for (const Kind& kind : kKinds) {
      const std::size_t shades = shades_of(kind.op, panels_);
      most = std::max(most, shades);
      for (std::size_t shade = 0; shade < shades; ++shade) swatch(fmt::format("{}{}", kind.letter, shade));
      if (shades > 0) words(fmt::format("{} {}", kind.letter, kind.meaning));
    }
    swatch("idle");
    words("idle");
    if (most > 1) words("shades: chunks of a rank, first to last");
    return y + kLegend;
  }

  const std::vector<Panel>& panels_;
  const SvgOptions& options_;
  std::vector<Timing> timings_;
  double longest_ = 0;
  double width_ = 0;
  double scale_ = 1;
  std::string body_;
};

}  // namespace

Panel panel_of(std::string title, const Schedule& lowered, const Simulation& simulation) {
  return {std::move(title), compute_only(lowered), simulation.timing.ops, simulation.messages};
}

std::string svg(const std::vector<Panel>& panels, const SvgOptions& options) {
  for (const Panel& panel : panels)
    invariant(panel.ops.size() == panel.compute.ranks.size(), "svg: a timeline of another schedule");
  return Drawing(panels, options).run();
}

}  // namespace orthant::pipeline
