// SPDX-License-Identifier: Apache-2.0
#include <orthant/pipeline/plan/joint_graph.hpp>

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>

namespace orthant::pipeline {
namespace {

using Tasks = std::vector<std::vector<PlannedTask>>;

/// A communicator's operations: per member rank the indices of its tasks.
using Members = std::map<int, std::vector<int>>;
using Communicators = std::map<std::string_view, Members>;

Communicators find_communicators(const Tasks& tasks) {
  std::unordered_map<std::string_view, Members> found;
  for (std::size_t rank = 0; rank < tasks.size(); ++rank) {
    for (std::size_t i = 0; i < tasks[rank].size(); ++i) {
      const std::string_view together = tasks[rank][i].together;
      if (!together.empty()) found[together][static_cast<int>(rank)].push_back(static_cast<int>(i));
    }
  }
  return {found.begin(), found.end()};
}

/// The first operation in which a member differs from the communicator's first member; "" if none does.
std::string find_mismatch(const Tasks& tasks, std::string_view communicator, const Members& members) {
  const auto& [rank_a, ops_a] = *members.begin();
  for (const auto& [rank_b, ops_b] : members) {
    const auto name = [&](int rank, const std::vector<int>& ops, std::size_t k) {
      return k < ops.size() ? fmt::format("asks for {}", tasks[rank][ops[k]].name) : std::string("has none left");
    };
    for (std::size_t k = 0; k < std::max(ops_a.size(), ops_b.size()); ++k) {
      const bool both = k < ops_a.size() && k < ops_b.size();
      if (both && tasks[rank_a][ops_a[k]].name == tasks[rank_b][ops_b[k]].name) continue;
      return fmt::format("{}: as operation {} rank {} {} where rank {} {}", communicator, k, rank_a,
                         name(rank_a, ops_a, k), rank_b, name(rank_b, ops_b, k));
    }
  }
  return {};
}

/// Begins and ends of tasks; the members of an event share its end. An edge: not before.
class Graph {
 public:
  Graph(const Tasks& tasks, const Communicators& communicators) : tasks_(tasks), nodes_(tasks.size()) {
    for (std::size_t rank = 0; rank < tasks.size(); ++rank) {
      nodes_[rank].resize(tasks[rank].size());
      for (Nodes& nodes : nodes_[rank]) nodes = {.begin = add_node(), .end = -1};
    }
    for (const auto& [name, members] : communicators) {
      for (std::size_t k = 0; k < members.begin()->second.size(); ++k) {
        const int end = add_node();
        for (const auto& [rank, ops] : members) nodes_[rank][ops[k]].end = end;
      }
    }
    for (auto& rank : nodes_) {
      for (Nodes& nodes : rank) {
        if (nodes.end < 0) nodes.end = add_node();
      }
    }
    for (std::size_t rank = 0; rank < tasks.size(); ++rank) add_edges(static_cast<int>(rank));
  }

  /// Whether task b of the rank begins only after a has ended, whatever the timing.
  bool is_ordered(int rank, int a, int b) const {
    std::vector<bool> seen(after_.size());
    std::vector<int> open = {nodes_[rank][a].end};
    while (!open.empty()) {
      const int node = open.back();
      open.pop_back();
      if (node == nodes_[rank][b].begin) return true;
      if (seen[node]) continue;
      seen[node] = true;
      open.insert(open.end(), after_[node].begin(), after_[node].end());
    }
    return false;
  }

  /// The tasks of a cycle, in order; "" if there is none.
  std::string find_cycle() const {
    std::vector<int> missing(after_.size());  // nodes that must come before, and have not
    for (const auto& next : after_) {
      for (const int node : next) ++missing[node];
    }
    std::vector<int> open;
    for (std::size_t node = 0; node < missing.size(); ++node) {
      if (missing[node] == 0) open.push_back(static_cast<int>(node));
    }
    while (!open.empty()) {
      const int node = open.back();
      open.pop_back();
      for (const int next : after_[node]) {
        if (--missing[next] == 0) open.push_back(next);
      }
    }
    if (std::ranges::none_of(missing, [](int count) { return count > 0; })) return {};
    return text_of(cycle_among(missing));
  }

 private:
  struct Nodes {
    int begin;
    int end;
  };

  int add_node() {
    after_.emplace_back();
    return static_cast<int>(after_.size()) - 1;
  }

  void add_edges(int rank) {
    const auto& tasks = tasks_[rank];
    const auto& nodes = nodes_[rank];
    std::unordered_map<std::string_view, int> last;  // end of the stream's last task
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      const auto [begin, end] = nodes[i];
      after_[begin].push_back(end);
      const auto [stream, is_new] = last.try_emplace(tasks[i].stream, end);
      if (!is_new) after_[std::exchange(stream->second, end)].push_back(begin);
      for (const int other : tasks[i].waits_for) after_[at(nodes, other).end].push_back(begin);
      if (tasks[i].nested_in < 0) continue;
      const Nodes& outer = at(nodes, tasks[i].nested_in);
      after_[outer.begin].push_back(begin);
      after_[end].push_back(outer.end);
    }
  }

  static const Nodes& at(const std::vector<Nodes>& nodes, int task) {
    invariant(task >= 0 && task < static_cast<int>(nodes.size()),
              "joint graph: a task waits for one that is not there");
    return nodes[static_cast<std::size_t>(task)];
  }

  /// Every node that misses one leads back to another that does: going back far enough ends in a circle.
  std::vector<int> cycle_among(const std::vector<int>& missing) const {
    std::vector<int> before(after_.size(), -1);
    int node = -1;
    for (std::size_t from = 0; from < after_.size(); ++from) {
      if (missing[from] == 0) continue;
      for (const int to : after_[from]) before[to] = static_cast<int>(from);
      node = static_cast<int>(from);
    }
    std::vector<bool> seen(after_.size());
    for (; !seen[node]; node = before[node]) seen[node] = true;
    std::vector<int> cycle = {node};
    for (int other = before[node]; other != node; other = before[other]) cycle.push_back(other);
    std::ranges::reverse(cycle);
    return cycle;
  }

  std::string text_of(const std::vector<int>& cycle) const {
    std::vector<std::string> names(after_.size());
    for (std::size_t rank = 0; rank < tasks_.size(); ++rank) {
      for (std::size_t i = 0; i < tasks_[rank].size(); ++i) {
        for (const int node : {nodes_[rank][i].begin, nodes_[rank][i].end}) {
          if (names[node].empty()) names[node] = fmt::format("rank {}: {}", rank, tasks_[rank][i].name);
        }
      }
    }
    std::vector<std::string> on_it;
    for (const int node : cycle) {
      if (on_it.empty() || on_it.back() != names[node]) on_it.push_back(names[node]);
    }
    if (on_it.size() > 1 && on_it.front() == on_it.back()) on_it.pop_back();
    return fmt::format("these wait for each other in a circle: {}", fmt::join(on_it, " -> "));
  }

  const Tasks& tasks_;
  std::vector<std::vector<Nodes>> nodes_;
  std::vector<std::vector<int>> after_;  ///< per node: nodes that come after it
};

/// Operations of one communicator follow each other on one stream; where they do not, waits must order them.
void find_unordered(const Tasks& tasks, const Graph& graph, std::string_view communicator, const Members& members,
                    std::vector<std::string>& problems) {
  for (const auto& [rank, ops] : members) {
    for (std::size_t k = 1; k < ops.size(); ++k) {
      const PlannedTask &a = tasks[rank][ops[k - 1]], &b = tasks[rank][ops[k]];
      if (a.stream == b.stream || graph.is_ordered(rank, ops[k - 1], ops[k])) continue;
      problems.push_back(
          fmt::format("{}: rank {} leaves the order of {} (on stream {}) and {} (on stream {}) to the timing",
                      communicator, rank, a.name, a.stream, b.name, b.stream));
      break;
    }
  }
}

}  // namespace

std::vector<std::string> check_joint_graph(const std::vector<std::vector<PlannedTask>>& tasks) {
  std::vector<std::string> problems;
  const Communicators communicators = find_communicators(tasks);
  for (const auto& [name, members] : communicators) {
    if (std::string mismatch = find_mismatch(tasks, name, members); !mismatch.empty())
      problems.push_back(std::move(mismatch));
  }
  if (!problems.empty()) return problems;  // who would meet whom is unknown

  const Graph graph(tasks, communicators);
  if (std::string cycle = graph.find_cycle(); !cycle.empty()) problems.push_back(std::move(cycle));
  for (const auto& [name, members] : communicators) find_unordered(tasks, graph, name, members, problems);
  return problems;
}

}  // namespace orthant::pipeline
