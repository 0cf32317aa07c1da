// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/trace/chrome_trace.hpp>

#include <nlohmann/json.hpp>

namespace orthant::trace {
namespace {

using Json = nlohmann::ordered_json;

double to_us(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

void append(std::string& out, const std::string& element) {
  if (element.empty()) return;
  if (!out.empty()) out += ",\n";
  out += element;
}

// Names that are not UTF-8 are mended, not thrown on: a trace must not end a run.
std::string dump(const Json& event) { return event.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string chrome_events(const Tracer& tracer, const ChromeProcess& process) {
  std::string out;
  const auto metadata = [&](const char* kind, int tid, Json args) {
    append(out, dump({{"ph", "M"}, {"name", kind}, {"pid", process.rank}, {"tid", tid}, {"args", std::move(args)}}));
  };
  metadata("process_name", 0, {{"name", process.name}});
  metadata("process_sort_index", 0, {{"sort_index", process.rank}});
  const auto tracks = tracer.tracks();
  for (int tid = 0; tid < static_cast<int>(tracks.size()); ++tid) {
    metadata("thread_name", tid, {{"name", tracks[tid]}});
    metadata("thread_sort_index", tid, {{"sort_index", tid}});
  }
  for (const Span& span : tracer.spans()) {
    append(out, dump({{"ph", "X"},
                      {"name", span.name},
                      {"pid", process.rank},
                      {"tid", span.track.value},
                      {"ts", to_us(span.begin.time_since_epoch() - process.origin)},
                      {"dur", to_us(span.end - span.begin)}}));
  }
  return out;
}

std::string chrome_trace(std::span<const std::string> fragments) {
  std::string events;
  for (const std::string& fragment : fragments) append(events, fragment);
  return "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" + events + "\n]}\n";
}

}  // namespace orthant::trace
