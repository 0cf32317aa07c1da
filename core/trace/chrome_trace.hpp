// SPDX-License-Identifier: Apache-2.0
// A trace in the Chrome/Perfetto JSON format (trace.json; open it in ui.perfetto.dev): a process per rank, a thread per
// track. Each rank writes its events as text, one rank joins the texts of all. Source: "Trace Event Format", the
// Catapult project: complete events (ph X) and metadata events (ph M).
#pragma once

#include <chrono>
#include <span>
#include <string>

#include <orthant/core/trace/tracer.hpp>

namespace orthant::trace {

/// How one rank stands in the timeline.
struct ChromeProcess {
  int rank = 0;      ///< the process id, and the order of the processes
  std::string name;  ///< "rank 3 pp1 dp0 tp1"
  /// The instant shown as 0, as Clock's time since its epoch. Ranks that are to line up pass the same one.
  Clock::duration origin{};
};

/// One rank's tracks and spans: JSON objects separated by commas, without the brackets round them.
std::string chrome_events(const Tracer& tracer, const ChromeProcess& process);

/// One valid document from the fragments of all ranks; an empty fragment is skipped.
std::string chrome_trace(std::span<const std::string> fragments);

}  // namespace orthant::trace
