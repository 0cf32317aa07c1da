// SPDX-License-Identifier: Apache-2.0
// Timelines of one device as an SVG: a row a stream, a colour a kind of task, panels one under the other on one scale
// of time. Where the first row, computation, is idle, its ground shows: that is what one looks for.
#pragma once

#include <string>
#include <vector>

namespace orthant::launch {

struct TimelineBox {
  int row = 0;
  int kind = 0;  ///< index into the kinds
  double begin_ms = 0, end_ms = 0;
  std::string label = {};  ///< written where it fits
};

struct TimelinePanel {
  std::string title;
  std::vector<std::string> rows;
  std::vector<TimelineBox> boxes;
  double end_ms = 0;
};

struct TimelineKind {
  std::string name;
  std::string colour;  ///< as CSS writes it; reads well below black letters
};

/// Valid XML.
std::string stream_timeline(const std::vector<TimelinePanel>& panels, const std::vector<TimelineKind>& kinds);

}  // namespace orthant::launch
