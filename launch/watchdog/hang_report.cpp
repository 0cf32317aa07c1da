// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/watchdog/hang_report.hpp>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace orthant::launch {
namespace {

using Ranks = std::vector<int>;

constexpr std::size_t kMostNamed = 16;    // ranks in one list
constexpr std::size_t kMostEvidence = 8;  // lines

std::string list(const Ranks& ranks, const char* separator) {
  const Ranks named(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), kMostNamed)));
  std::string text = fmt::format("{}", fmt::join(named, separator));
  if (ranks.size() > kMostNamed) text += fmt::format("{}… {} in all", separator, ranks.size());
  return text;
}

std::string name(const Ranks& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", list(ranks, ", "));
}

const char* agree(const Ranks& ranks, const char* one, const char* many) { return ranks.size() == 1 ? one : many; }

std::string name_of_group(const DumpedGroup& group) {
  return fmt::format("{} [{}]", group.name, list(group.members, " "));
}

/// A channel's "transfer" as this end sees it.
std::string call_of(const DumpedOperation& operation, const DumpedGroup& group, int rank) {
  constexpr std::string_view transfer = "transfer";
  if (!operation.what.starts_with(transfer) || group.members.empty()) return operation.what;
  return (group.members.front() == rank ? "send" : "receive") + operation.what.substr(transfer.size());
}

std::string place_of(const RankDump& dump) { return fmt::format("phase {}, step {}", dump.phase, dump.step); }

Ranks missing_members(const HangDumps& dumps, const DumpedGroup& group, std::int64_t sequence, int waiter) {
  Ranks missing;
  for (const int member : group.members) {
    if (member == waiter) continue;
    const RankDump* dump = dumps.find(member);
    const DumpedGroup* theirs = dump == nullptr ? nullptr : dump->find_group(group.communicator);
    if (theirs == nullptr || theirs->posted <= sequence) missing.push_back(member);
  }
  return missing;
}

/// The operation in which each rank is stuck, for each of its groups; the same one of several ranks once.
std::vector<HangWait> find_waits(const HangDumps& dumps) {
  std::map<std::tuple<int, std::int64_t, std::string>, HangWait> found;
  for (const RankDump& dump : dumps.dumps) {
    std::set<int> seen;
    for (const DumpedOperation& operation : dump.operations) {
      if (operation.completed_s || !seen.insert(operation.communicator).second) continue;
      const DumpedGroup& group = *dump.find_group(operation.communicator);
      const std::string what = call_of(operation, group, dump.rank);
      HangWait& wait = found[{operation.communicator, operation.sequence, what}];
      if (wait.waiters.empty()) {
        wait = {.communicator = operation.communicator,
                .group = name_of_group(group),
                .sequence = operation.sequence,
                .what = what,
                .missing = missing_members(dumps, group, operation.sequence, dump.rank)};
      }
      wait.waiters.push_back(dump.rank);
      wait.seconds = std::max(wait.seconds, operation.posted_s);
    }
  }
  std::vector<HangWait> waits;
  for (auto& [key, wait] : found) waits.push_back(std::move(wait));
  std::ranges::stable_sort(waits, std::greater<>{}, [](const HangWait& wait) { return wait.waiters.size(); });
  return waits;
}

std::vector<HangMismatch> find_mismatches(const HangDumps& dumps, const std::vector<HangWait>& waits) {
  std::vector<HangMismatch> mismatches;
  std::set<std::pair<int, std::int64_t>> seen;
  for (const HangWait& wait : waits) {
    if (!seen.insert({wait.communicator, wait.sequence}).second) continue;
    HangMismatch mismatch{.group = wait.group, .sequence = wait.sequence};
    for (const RankDump& dump : dumps.dumps) {
      const auto* operation = dump.find_operation(wait.communicator, wait.sequence);
      if (operation != nullptr) mismatch.calls[operation->what].push_back(dump.rank);
    }
    if (mismatch.calls.size() > 1) mismatches.push_back(std::move(mismatch));
  }
  return mismatches;
}

/// Those who called what fewer did; all where there is no majority.
Ranks minority(const HangMismatch& mismatch) {
  std::size_t most = 0;
  for (const auto& [what, ranks] : mismatch.calls) most = std::max(most, ranks.size());
  Ranks few, all;
  std::size_t largest = 0;
  for (const auto& [what, ranks] : mismatch.calls) {
    std::ranges::copy(ranks, std::back_inserter(all));
    if (ranks.size() < most) {
      std::ranges::copy(ranks, std::back_inserter(few));
    } else {
      ++largest;
    }
  }
  Ranks& blamed = largest == 1 ? few : all;
  std::ranges::sort(blamed);
  return blamed;
}

/// Who waits for whom.
struct WaitGraph {
  std::map<int, std::set<int>> out;  ///< rank: for whom it waits
  std::map<int, std::set<int>> in;   ///< rank: who waits for it

  explicit WaitGraph(const std::vector<HangWait>& waits) {
    for (const HangWait& wait : waits)
      for (const int waiter : wait.waiters)
        for (const int missing : wait.missing) {
          if (waiter == missing) continue;
          out[waiter].insert(missing);
          in[missing].insert(waiter);
        }
  }

  /// Waited for, and waiting for nobody.
  Ranks roots() const {
    Ranks ranks;
    for (const auto& [rank, waiters] : in)
      if (!out.contains(rank)) ranks.push_back(rank);
    return ranks;
  }

  /// Where everybody who is waited for waits too: of the ranks that wait in a circle, those with the most waiters.
  Ranks most_waited_for() {
    while (true) {  // whoever nobody waits for is only a victim
      const auto victim = std::ranges::find_if(out, [&](const auto& entry) { return !in.contains(entry.first); });
      if (victim == out.end()) break;
      for (const int missing : victim->second) {
        in[missing].erase(victim->first);
        if (in[missing].empty()) in.erase(missing);
      }
      out.erase(victim);
    }
    std::size_t most = 0;
    for (const auto& [rank, waiters] : in) most = std::max(most, waiters.size());
    Ranks ranks;
    for (const auto& [rank, waiters] : in)
      if (waiters.size() == most) ranks.push_back(rank);
    return ranks;
  }
};

std::string last_of(const RankDump& dump) {
  const DumpedOperation* last = nullptr;
  for (const auto& operation : dump.operations)
    if (operation.completed_s && (last == nullptr || *operation.completed_s <= *last->completed_s)) last = &operation;
  if (last == nullptr) return "it has finished no operation";
  const DumpedGroup& group = *dump.find_group(last->communicator);
  return fmt::format("its last operation, {}, #{} on {}, ended {:.1f} s before", call_of(*last, group, dump.rank),
                     last->sequence, name_of_group(group), *last->completed_s);
}

/// What is known of a rank that keeps others waiting.
std::string describe_culprit(const HangDumps& dumps, int rank, const std::vector<HangWait>& waits) {
  const RankDump* dump = dumps.find(rank);
  if (dump == nullptr) {
    const auto damaged = std::ranges::find(dumps.damaged, rank, &HangDumps::Damaged::rank);
    return damaged == dumps.damaged.end()
               ? fmt::format("rank {} has no dump (stopped, dead, or its host is gone)", rank)
               : fmt::format("rank {} left a damaged dump", rank);
  }
  for (const HangWait& wait : waits) {
    if (std::ranges::find(wait.waiters, rank) == wait.waiters.end() || wait.missing.empty()) continue;
    return fmt::format("rank {} itself waits for {} in {}, #{} on {} ({})", rank, name(wait.missing), wait.what,
                       wait.sequence, wait.group, place_of(*dump));
  }
  return fmt::format(
      "rank {} ({}) waits for nobody, {}; {}", rank, place_of(*dump),
      dump->has_expired ? "so it is stuck in compute, data or files" : "and its own time-out has not expired",
      last_of(*dump));
}

/// "ranks 0, 3 wait in all_reduce sum of 4 fp64, #17 on stage [0 2 3], for 60.1 s"
std::string describe_wait(const HangWait& wait, const std::string& for_whom) {
  return fmt::format("{} {}{} in {}, #{} on {}, for {:.1f} s", name(wait.waiters), agree(wait.waiters, "waits", "wait"),
                     for_whom, wait.what, wait.sequence, wait.group, wait.seconds);
}

std::string describe_mismatch(const HangMismatch& mismatch) {
  std::vector<std::pair<Ranks, std::string>> calls;
  for (const auto& [what, ranks] : mismatch.calls) calls.emplace_back(ranks, what);
  std::ranges::stable_sort(calls, {}, [](const auto& call) { return call.first.size(); });  // the odd ones first
  std::vector<std::string> texts;
  for (const auto& [ranks, what] : calls) texts.push_back(fmt::format("{} called {}", name(ranks), what));
  return fmt::format("mismatch at #{} on {}: {}", mismatch.sequence, mismatch.group, fmt::join(texts, ", "));
}

bool overlap(const Ranks& a, const Ranks& b) {
  return std::ranges::any_of(a, [&](int rank) { return std::ranges::find(b, rank) != b.end(); });
}

std::string place_of_first(const HangDumps& dumps, const Ranks& ranks) {
  for (const int rank : ranks)
    if (const RankDump* dump = dumps.find(rank)) return "; " + place_of(*dump);
  return "";
}

void add_evidence(HangVerdict& verdict, const HangWait* told) {
  std::size_t left_out = 0, lines = 0;
  for (const HangWait& wait : verdict.waits) {
    if (&wait == told) continue;
    if (++lines > kMostEvidence) {
      ++left_out;
      continue;
    }
    verdict.lines.push_back(wait.missing.empty()
                                ? describe_wait(wait, "") + ": all members have posted it, and yet it does not end"
                                : describe_wait(wait, " for " + name(wait.missing)));
  }
  if (left_out > 0) verdict.lines.push_back(fmt::format("and {} more waits", left_out));
}

/// Several ranks wait for each other and no other sign tells them apart.
void add_first_silent(const HangDumps& dumps, HangVerdict& verdict) {
  const RankDump* first = nullptr;
  for (const int rank : verdict.culprits) {
    const RankDump* dump = dumps.find(rank);
    if (dump != nullptr && (first == nullptr || dump->silent_since < first->silent_since)) first = dump;
  }
  if (verdict.culprits.size() > 1 && first != nullptr)
    verdict.lines.push_back(fmt::format("by the hosts' clocks, rank {} was the first to fall silent", first->rank));
}

void blame_mismatch(const HangDumps& dumps, HangVerdict& verdict) {
  verdict.culprits = minority(verdict.mismatches.front());
  for (const auto& mismatch : verdict.mismatches) verdict.lines.push_back(describe_mismatch(mismatch));
  verdict.lines.front() += place_of_first(dumps, verdict.culprits);
  add_evidence(verdict, nullptr);
}

void blame_waited_for(const HangDumps& dumps, HangVerdict& verdict) {
  WaitGraph graph(verdict.waits);
  verdict.culprits = graph.roots();
  const bool is_circle = verdict.culprits.empty();
  if (is_circle) verdict.culprits = graph.most_waited_for();
  const auto& culprits = verdict.culprits;
  if (is_circle && culprits.size() > 1) {
    verdict.lines.push_back(fmt::format("{} wait for each other{}", name(culprits), place_of_first(dumps, culprits)));
    add_evidence(verdict, nullptr);
    return add_first_silent(dumps, verdict);
  }
  const auto told = std::ranges::find_if(verdict.waits, [&](const auto& w) { return overlap(w.missing, culprits); });
  verdict.lines.push_back(
      fmt::format("{} {} behind: {}; {}{}", name(culprits), agree(culprits, "is", "are"), describe_wait(*told, ""),
                  describe_culprit(dumps, culprits.front(), verdict.waits), place_of_first(dumps, told->waiters)));
  for (std::size_t i = 1; i < std::min(culprits.size(), kMostEvidence); ++i)
    verdict.lines.push_back(describe_culprit(dumps, culprits[i], verdict.waits));
  add_evidence(verdict, &*told);
}

/// No rank waits for another: what is known is who fell silent.
void blame_silent(const HangDumps& dumps, HangVerdict& verdict) {
  const bool is_open = !verdict.waits.empty();
  verdict.culprits = verdict.without_dump;
  if (verdict.culprits.empty()) {
    for (const RankDump& dump : dumps.dumps)
      if (dump.has_expired) verdict.culprits.push_back(dump.rank);
  }
  if (!verdict.without_dump.empty()) {
    verdict.lines.push_back(fmt::format("{} {} no dump (stopped, dead, or its host is gone){}",
                                        name(verdict.without_dump), agree(verdict.without_dump, "has", "have"),
                                        dumps.dumps.empty() ? "" : "; " + place_of(dumps.dumps.front())));
  } else if (is_open) {
    verdict.lines.push_back("no member is behind, yet operations do not end: the network or the thread that drives it" +
                            place_of_first(dumps, verdict.culprits));
  }
  if (!is_open) {
    for (std::size_t i = 0; i < std::min(dumps.dumps.size(), kMostEvidence); ++i)
      verdict.lines.push_back(describe_culprit(dumps, dumps.dumps[i].rank, verdict.waits));
  }
  add_evidence(verdict, nullptr);
}

}  // namespace

HangVerdict judge(const HangDumps& dumps) {
  HangVerdict verdict;
  const auto is_damaged = [&](int rank) {
    return std::ranges::find(dumps.damaged, rank, &HangDumps::Damaged::rank) != dumps.damaged.end();
  };
  for (int rank = 0; rank < dumps.size; ++rank)
    if (dumps.find(rank) == nullptr && !is_damaged(rank)) verdict.without_dump.push_back(rank);
  verdict.waits = find_waits(dumps);
  verdict.mismatches = find_mismatches(dumps, verdict.waits);

  const bool is_waited_for = std::ranges::any_of(verdict.waits, [](const auto& wait) { return !wait.missing.empty(); });
  if (!verdict.mismatches.empty()) {
    blame_mismatch(dumps, verdict);
  } else if (is_waited_for) {
    blame_waited_for(dumps, verdict);
  } else {
    blame_silent(dumps, verdict);
  }
  if (is_waited_for) {
    Ranks others;
    std::ranges::set_difference(verdict.without_dump, verdict.culprits, std::back_inserter(others));
    if (!others.empty())
      verdict.lines.push_back(fmt::format("{} {} no dump either", name(others), agree(others, "has", "have")));
  }
  for (const auto& [rank, why] : dumps.damaged)
    verdict.lines.push_back(fmt::format("the dump of rank {} is damaged: {}", rank, why));
  return verdict;
}

HangVerdict judge_alone(const RankDump& dump) {
  HangVerdict verdict;
  HangDumps alone{.size = dump.size, .dumps = {dump}, .damaged = {}};
  for (auto& wait : find_waits(alone)) {
    wait.missing.clear();  // not known
    verdict.lines.push_back(describe_wait(wait, ""));
    verdict.waits.push_back(std::move(wait));
  }
  if (verdict.lines.empty()) {
    verdict.lines.push_back(describe_culprit(alone, dump.rank, {}));
  } else {
    verdict.lines.front() += "; " + place_of(dump);
  }
  verdict.lines.push_back("what the other ranks do is not known: there is no folder for dumps, or it does not answer");
  return verdict;
}

std::string to_text(const HangVerdict& verdict) { return fmt::format("{}\n", fmt::join(verdict.lines, "\n  ")); }

nlohmann::ordered_json to_json(const HangVerdict& verdict) {
  auto waits = nlohmann::ordered_json::array();
  for (const auto& wait : verdict.waits) {
    waits.push_back({{"group", wait.group},
                     {"communicator", wait.communicator},
                     {"sequence", wait.sequence},
                     {"what", wait.what},
                     {"waiters", wait.waiters},
                     {"missing", wait.missing},
                     {"seconds", wait.seconds}});
  }
  auto mismatches = nlohmann::ordered_json::array();
  for (const auto& mismatch : verdict.mismatches)
    mismatches.push_back({{"group", mismatch.group}, {"sequence", mismatch.sequence}, {"calls", mismatch.calls}});
  return {{"culprits", verdict.culprits},
          {"without_dump", verdict.without_dump},
          {"waits", std::move(waits)},
          {"mismatches", std::move(mismatches)},
          {"lines", verdict.lines}};
}

}  // namespace orthant::launch
