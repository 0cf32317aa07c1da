// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/generate/catalog.hpp>

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/pipeline/generate/dual_pipe.hpp>
#include <orthant/pipeline/generate/interleaved.hpp>
#include <orthant/pipeline/generate/looped.hpp>
#include <orthant/pipeline/generate/search.hpp>
#include <orthant/pipeline/generate/v_shape.hpp>
#include <orthant/pipeline/generate/zero_bubble.hpp>

namespace orthant::pipeline {
namespace {

/// Stages a rank: what is asked for must be one of these.
enum class Chunks : std::uint8_t { one, two, any };

std::string no_rule(const ScheduleRequest&) { return {}; }

struct Entry {
  std::string_view name;
  std::string_view summary;
  Chunks chunks;
  Schedule (*make)(const ScheduleRequest&);
  /// Beyond what all have in common; "" if the request is fine.
  std::string (*rule)(const ScheduleRequest&) = no_rule;
  int copies = 1;  ///< of the pipeline
};

constexpr std::array kEntries{
    Entry{"gpipe", "all forwards, then all backwards; m activations", Chunks::one, gpipe},
    Entry{"1f1b", "one forward, one backward in turn; GPipe's bubble, at most p activations", Chunks::one, one_f_one_b},
    Entry{"interleaved", "1F1B with v stages a rank: 1/v of its bubble, v times the messages", Chunks::any, interleaved,
          interleaved_rule},
    Entry{"breadth_first", "GPipe with v stages a rank: 1/v of its bubble, weights gathered seldom", Chunks::any,
          breadth_first},
    Entry{"zb_h1", "1F1B with W in the cool-down: a third of its bubble, the same memory", Chunks::one, zb_h1},
    Entry{"zb_h2", "twice the warm-up of zb_h1: no bubble between steps, twice the memory", Chunks::one, zb_h2},
    Entry{"zb_search", "from measured costs: the shortest span that a search finds within memory_limit", Chunks::one,
          zb_search, zb_search_rule},
    Entry{"interleaved_zb", "interleaved with W in the cool-down: a third of its bubble", Chunks::any, interleaved_zb,
          interleaved_rule},
    Entry{"zb_v", "down and back again: no bubble between steps, the memory of 1F1B on every rank", Chunks::two, zb_v,
          v_rule},
    Entry{"v_half", "down and back again with half the activations of 1F1B", Chunks::two, v_half, v_rule},
    Entry{"v_min", "down and back again with a third of the activations of 1F1B", Chunks::two, v_min, v_rule},
    Entry{"dualpipe_v",
          "down and back again, forward and backward overlapped in pairs; 2 p + 1 activations of half a size",
          Chunks::two, dualpipe_v, dualpipe_v_rule},
    Entry{"dualpipe", "two copies of the pipeline from both ends, overlapped in pairs; p + 1 activations", Chunks::two,
          dualpipe, dualpipe_rule, 2},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kEntries.size()> names;
  std::ranges::transform(kEntries, names.begin(), &Entry::name);
  return names;
}();

const Entry* find(std::string_view name) {
  const auto* entry = std::ranges::find(kEntries, name, &Entry::name);
  return entry == kEntries.end() ? nullptr : entry;
}

/// Fills in the number of chunks that the schedule wants where none is asked for.
ScheduleRequest settled(ScheduleRequest request, const Entry& entry) {
  if (request.chunks == 0) request.chunks = entry.chunks == Chunks::one ? 1 : 2;
  return request;
}

std::string broken_rule(const ScheduleRequest& request, const Entry& entry) {
  if (request.ranks < 1 || request.microbatches < 1 || request.chunks < 1) {
    return fmt::format("schedule {} with {} ranks, {} micro-batches and {} chunks; each must be at least 1", entry.name,
                       request.ranks, request.microbatches, request.chunks);
  }
  const int wanted = entry.chunks == Chunks::one ? 1 : 2;
  if (entry.chunks != Chunks::any && request.chunks != wanted) {
    return fmt::format("schedule {} puts {} stage{} on a rank, not {}; use chunks = {}", entry.name, wanted,
                       wanted == 1 ? "" : "s", request.chunks, wanted);
  }
  const auto stages = static_cast<std::size_t>(request.ranks * request.chunks / entry.copies);
  if (request.costs.stages.size() != 1 && request.costs.stages.size() != stages) {
    return fmt::format("schedule {} has {} stages but costs of {} are given; give one set, or one for each stage",
                       entry.name, stages, request.costs.stages.size());
  }
  return entry.rule(request);
}

}  // namespace

std::span<const std::string_view> schedule_names() { return kNames; }

std::string_view summary_of(std::string_view name) {
  const Entry* entry = find(name);
  return entry == nullptr ? std::string_view() : entry->summary;
}

int default_chunks(std::string_view name) {
  const Entry* entry = find(name);
  return entry == nullptr ? 0 : entry->chunks == Chunks::one ? 1 : 2;
}

std::vector<int> possible_chunks(std::string_view name) {
  const Entry* entry = find(name);
  if (entry != nullptr && entry->chunks == Chunks::any) return {2, 4};
  return {default_chunks(name)};
}

std::string broken_rule(const ScheduleRequest& request) {
  const Entry* entry = find(request.name);
  if (entry == nullptr)
    return fmt::format("schedule = \"{}\" is not known; use one of {}", request.name, fmt::join(kNames, ", "));
  return broken_rule(settled(request, *entry), *entry);
}

Schedule make_schedule(const ScheduleRequest& request) {
  const std::string fault = broken_rule(request);
  if (!fault.empty()) throw ConfigError(fault);
  const Entry& entry = *find(request.name);
  return entry.make(settled(request, entry));
}

}  // namespace orthant::pipeline
