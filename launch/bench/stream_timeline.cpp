// SPDX-License-Identifier: Apache-2.0
// x runs with time, y downwards. The boxes of one kind in one row are one path: a few bytes each.
#include <orthant/launch/bench/stream_timeline.hpp>

#include <algorithm>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include <orthant/pipeline/cost/report.hpp>

namespace orthant::launch {
namespace {

constexpr double kWidth = 1200, kLeft = 112, kRight = 20, kTop = 14;
constexpr double kTitle = 28, kRow = 20, kRowGap = 3, kPanelGap = 14, kAxis = 26, kLegend = 32;
constexpr int kTicks = 10;
constexpr double kDigit = 5.6;  ///< width of a letter in a box

constexpr std::string_view kStyle = R"(<style>
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;font-size:12px;fill:#1f2328}
.h{font-size:14px;font-weight:600}.n{font-size:9.5px;text-anchor:middle;fill:#10151c}.e{text-anchor:end}.m{text-anchor:middle}
.ground{fill:#fff}.idle{fill:#eff1f3}.wait{fill:#f8b9b4}.grid{stroke:#c4cad1;stroke-width:.6;fill:none}
.box{stroke:#fff;stroke-width:.4}
@media (prefers-color-scheme: dark){text{fill:#e6edf3}.n{fill:#10151c}.ground{fill:#0d1117}.idle{fill:#21262d}
.wait{fill:#7d2a25}.grid{stroke:#3d444d}.box{stroke:#0d1117}}
)";

std::string px(double length) { return pipeline::number_text(length, 2); }

class Drawing {
 public:
  explicit Drawing(const std::vector<TimelineKind>& kinds) : kinds_(kinds) {}

  std::string run(const std::vector<TimelinePanel>& panels) {
    for (const auto& panel : panels) longest_ = std::max(longest_, panel.end_ms);
    scale_ = (kWidth - kLeft - kRight) / longest_;
    double y = kTop;
    for (const auto& panel : panels) y = draw(panel, y) + kPanelGap;
    for (double time = 0; time <= longest_; time += pipeline::tick_step(longest_, kTicks))
      text("m", x(time), y + 4, fmt::format("{} ms", time));
    y = legend(y + kAxis - kPanelGap);
    std::string style(kStyle);
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind)
      style += fmt::format(".k{}{{fill:{}}}", kind, kinds_[kind].colour);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" role=\"img\">\n"
        "{2}\n</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n{3}</svg>\n",
        px(kWidth), px(y), style, body_);
  }

 private:
  double x(double time) const { return kLeft + time * scale_; }

  void text(std::string_view style, double at_x, double at_y, const std::string& words) {
    body_ += fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", style, px(at_x), px(at_y), words);
  }

  /// Returns where it ends.
  double draw(const TimelinePanel& panel, double y) {
    text("h", kLeft, y + 14, panel.title);
    y += kTitle - 6;
    const auto row_y = [&](int row) { return y + row * (kRow + kRowGap); };
    const int rows = static_cast<int>(panel.rows.size());
    for (int row = 0; row < rows; ++row) {
      text("e", kLeft - 8, row_y(row) + kRow / 2 + 4, panel.rows[static_cast<std::size_t>(row)]);
      body_ += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n",
                           row == 0 ? "wait" : "idle", px(kLeft), px(row_y(row)), px(panel.end_ms * scale_), px(kRow));
    }
    const double bottom = row_y(rows) - kRowGap;
    body_ += "<path class=\"grid\" d=\"";
    for (double time = 0; time <= longest_; time += pipeline::tick_step(longest_, kTicks))
      body_ += fmt::format("M{} {}v{}", px(x(time)), px(y - 2), px(bottom - y + 4));
    body_ += "\"/>\n";
    std::map<int, std::string> paths;  // of kinds
    for (const auto& box : panel.boxes) {
      const double width = (box.end_ms - box.begin_ms) * scale_;
      paths[box.kind] +=
          fmt::format("M{} {}h{}v{}h-{}z", px(x(box.begin_ms)), px(row_y(box.row)), px(width), px(kRow), px(width));
    }
    for (const auto& [kind, path] : paths) body_ += fmt::format("<path class=\"box k{}\" d=\"{}\"/>\n", kind, path);
    for (const auto& box : panel.boxes) {
      if ((box.end_ms - box.begin_ms) * scale_ < kDigit * static_cast<double>(box.label.size()) + 2) continue;
      text("n", x((box.begin_ms + box.end_ms) / 2), row_y(box.row) + kRow / 2 + 3.4, box.label);
    }
    return bottom;
  }

  double legend(double y) {
    double at = kLeft;
    const auto entry = [&](const std::string& style, const std::string& words) {
      body_ += fmt::format("<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"14\" height=\"14\"/>\n", style, px(at), px(y));
      text("", at + 19, y + 11, words);
      at += 40 + 6.2 * static_cast<double>(words.size());
    };
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) entry(fmt::format("k{}", kind), kinds_[kind].name);
    entry("wait", "computation waits");
    return y + kLegend;
  }

  const std::vector<TimelineKind>& kinds_;
  double longest_ = 0, scale_ = 1;
  std::string body_;
};

}  // namespace

std::string stream_timeline(const std::vector<TimelinePanel>& panels, const std::vector<TimelineKind>& kinds) {
  return Drawing(kinds).run(panels);
}

}  // namespace orthant::launch
