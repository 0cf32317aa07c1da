// SPDX-License-Identifier: Apache-2.0
// Timelines as one SVG that a browser shows well on light and on dark ground: a row a rank, a colour a kind of
// operation, a shade a chunk, and what each box is when one points at it. Panels share one scale of time, so that a
// measured step can stand below the predicted one.
#pragma once

#include <string>
#include <vector>

#include <orthant/pipeline/cost/simulate.hpp>

namespace orthant::pipeline {

struct Panel {
  std::string title;
  Schedule compute;                            ///< compute operations only
  std::vector<std::vector<Interval>> ops;      ///< as Timing::ops; the panel begins with its first operation
  std::vector<MessageInterval> messages = {};  ///< drawn as thin lines
};

/// The panel of a simulation.
Panel panel_of(std::string title, const Schedule& lowered, const Simulation& simulation);

struct SvgOptions {
  double width = 0;            ///< in pixels; 0: 1200, or up to 2000 so that the shortest box shows its number
  std::string time_unit = {};  ///< written at the axis: "ms"
};

/// Valid XML, about 150 bytes for an operation. Adds the makespan and the bubble to each title.
std::string svg(const std::vector<Panel>& panels, const SvgOptions& options = {});

}  // namespace orthant::pipeline
