// SPDX-License-Identifier: Apache-2.0
#include <orthant/tests/harness/plan/conditions.hpp>

#include <algorithm>
#include <map>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>

namespace orthant::tests {
namespace {

enum class Role { initial, gather, forward, backward, reduce, step };

struct Event {
  Role role;
  std::vector<std::string> units;
  bool uses_weights() const { return role == Role::forward || role == Role::backward; }
  bool makes_weights() const { return role == Role::initial || role == Role::step; }
};

Event event_of(const std::string& name, const PlanRules& rules) {
  std::istringstream words(name);
  std::string verb, unit;
  words >> verb >> unit;
  const auto with_norms = [&] {
    return unit == "embedding" ? std::vector{unit} : std::vector<std::string>{unit, "norms"};
  };
  if (verb == "INIT") return {Role::initial, {}};
  if (verb == "AG") return {Role::gather, {unit}};
  if (verb == "F") return {Role::forward, with_norms()};
  if (verb == "B") return {Role::backward, with_norms()};
  if (verb == "RS") return {Role::reduce, {unit}};
  if (verb == "AR") return {Role::reduce, rules.bucket(name)};
  if (verb == "STEP") return {Role::step, {unit}};
  throw std::logic_error("unknown task " + name);
}

class Finder {
 public:
  Finder(const std::vector<LoggedTask>& tasks, const PlanRules& rules) : rules_(rules), sharded_(!rules.bucket) {
    for (const auto& task : tasks) events_.push_back(event_of(task.name, rules));
  }

  std::vector<Condition> find() {
    for (int after = 0; after < static_cast<int>(events_.size()); ++after) {
      for (int before = 0; before < after; ++before) add_pair(before, after);
      if (events_[after].uses_weights() || events_[after].role == Role::gather) add_sources(after);
    }
    return std::move(found_);
  }

 private:
  static bool share(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    return std::ranges::any_of(a, [&](const auto& unit) { return std::ranges::find(b, unit) != b.end(); });
  }
  bool share_slot(const Event& a, const Event& b) const {
    for (const auto& x : a.units) {
      for (const auto& y : b.units) {
        if (rules_.slot(x) == rules_.slot(y)) return true;
      }
    }
    return false;
  }

  void add_pair(int before, int after) {
    const Event& a = events_[before];
    const Event& b = events_[after];
    const bool same_unit = a.role == Role::initial || share(a.units, b.units);
    const auto add = [&](const char* why) { found_.push_back({before, after, 0, why}); };
    switch (b.role) {
      case Role::gather:
        if (a.uses_weights() && share_slot(a, b)) add("a gather waits for its buffer's last user");
        if (a.makes_weights() && same_unit) add("a gather waits for its shard's new weights");
        break;
      case Role::backward:
        if (a.role == Role::reduce && share_slot(a, b))
          add("a backward waits for its gradient buffer's last reduction");
        if (a.role == Role::step && same_unit && !sharded_)
          add("a backward waits for the optimizer that reads its gradient");
        break;
      case Role::reduce:
        if (a.role == Role::backward && same_unit) add("a reduction waits for its backward");
        if (a.role == Role::reduce && same_unit) add("a reduction waits for the last one of its unit");
        if (a.role == Role::step && same_unit) add("a reduction waits for the optimizer that reads its result");
        break;
      case Role::step:
        if (a.role == Role::reduce && same_unit) add("the optimizer waits for its gradient");
        if (a.role == Role::gather && same_unit) add("the optimizer waits for the readers of its shard");
        if (a.uses_weights() && same_unit && !sharded_) add("the optimizer waits for the users of its weights");
        break;
      case Role::initial:
      case Role::forward:
        break;
    }
  }

  /// Weights are read where they come from: the last gather of the unit, or for a gather (and without shards) the last
  /// optimizer step.
  void add_sources(int after) {
    const bool from_gather = sharded_ && events_[after].uses_weights();
    std::map<int, int> reads;
    for (const auto& unit : events_[after].units) {
      int before = after - 1;
      const auto is_source = [&](const Event& a) {
        return (from_gather ? a.role == Role::gather : a.makes_weights()) &&
               (a.role == Role::initial || share(a.units, {unit}));
      };
      while (!is_source(events_.at(before))) --before;
      ++reads[before];
    }
    for (const auto& [before, count] : reads)
      found_.push_back({before, after, count, "weights are read where they come from"});
  }

  const PlanRules& rules_;
  bool sharded_;
  std::vector<Event> events_;
  std::vector<Condition> found_;
};

}  // namespace

std::vector<Condition> conditions(const std::vector<LoggedTask>& tasks, const PlanRules& rules) {
  return Finder(tasks, rules).find();
}

std::string first_violation(const std::vector<LoggedTask>& tasks, const PlanRules& rules) {
  const ClaimGraph graph(tasks);
  for (const auto& c : conditions(tasks, rules)) {
    if (graph.waits(c.after, c.before) && graph.reads_from(c.after, c.before) >= c.reads) continue;
    return fmt::format("{}: '{}' does not wait for '{}'", c.why, tasks[c.after].name, tasks[c.before].name);
  }
  return "";
}

std::string first_overlap(std::span<const stream::TaskRecord> records, const std::vector<Condition>& conditions) {
  for (const auto& c : conditions) {
    if (records[c.before].end_us <= records[c.after].begin_us) continue;
    return fmt::format("{}: '{}' begins before '{}' ends", c.why, records[c.after].name, records[c.before].name);
  }
  return "";
}

}  // namespace orthant::tests
