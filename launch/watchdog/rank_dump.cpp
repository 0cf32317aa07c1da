// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/watchdog/rank_dump.hpp>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace orthant::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr int kMostRanks = 1 << 20;  // more in a file is damage

double seconds_between(stream::Clock::time_point from, stream::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

Json json_of(const DumpedGroup& group) {
  return {{"communicator", group.communicator},
          {"name", group.name},
          {"members", group.members},
          {"posted", group.posted},
          {"completed", group.completed}};
}

Json json_of(const DumpedOperation& operation, const RankDump& dump) {
  const auto* group = dump.find_group(operation.communicator);
  Json json{{"group", group == nullptr ? "" : comm::describe_group(group->name, group->members)},
            {"communicator", operation.communicator},
            {"sequence", operation.sequence},
            {"what", operation.what},
            {"bytes", operation.bytes},
            {"posted_s_ago", operation.posted_s}};
  if (operation.completed_s) json["completed_s_ago"] = *operation.completed_s;
  if (operation.has_failed) json["failed"] = true;
  return json;
}

DumpedGroup group_from(const Json& json) {
  return {.communicator = json.at("communicator").get<int>(),
          .name = json.at("name").get<std::string>(),
          .members = json.at("members").get<std::vector<int>>(),
          .posted = json.at("posted").get<std::int64_t>(),
          .completed = json.at("completed").get<std::int64_t>()};
}

DumpedOperation operation_from(const Json& json) {
  DumpedOperation operation{.communicator = json.at("communicator").get<int>(),
                            .sequence = json.at("sequence").get<std::int64_t>(),
                            .what = json.at("what").get<std::string>(),
                            .bytes = json.at("bytes").get<std::int64_t>(),
                            .posted_s = json.at("posted_s_ago").get<double>(),
                            .has_failed = json.value("failed", false)};
  if (json.contains("completed_s_ago")) operation.completed_s = json["completed_s_ago"].get<double>();
  return operation;
}

/// Throws  std::runtime_error where numbers cannot be, nlohmann's exceptions where something is missing.
RankDump dump_from(const Json& json) {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::runtime_error(what);
  };
  require(json.at("format").get<int>() == kFormat, "of another format than 1");
  RankDump dump{.rank = json.at("rank").get<int>(),
                .size = json.at("size").get<int>(),
                .has_expired = json.at("expired").get<bool>(),
                .phase = json.at("phase").get<std::string>(),
                .step = json.at("step").get<std::int64_t>(),
                .silent_s = json.at("silent_s").get<double>(),
                .timeout_s = json.at("timeout_s").get<double>(),
                .silent_since = json.at("silent_since").get<double>(),
                .host = json.at("host").get<std::string>(),
                .pid = json.at("pid").get<std::int64_t>()};
  require(dump.size > 0 && dump.size <= kMostRanks && dump.rank >= 0 && dump.rank < dump.size,
          "rank and size do not fit each other");
  for (const char* list : {"groups", "ring", "open"}) require(json.at(list).is_array(), "wanted a list");
  for (const auto& group : json.at("groups")) {
    dump.groups.push_back(group_from(group));
    for (const int member : dump.groups.back().members)
      require(member >= 0 && member < dump.size, "a group has a member outside the run");
  }
  for (const char* list : {"ring", "open"}) {
    for (const auto& operation : json.at(list)) {
      dump.operations.push_back(operation_from(operation));
      require(dump.find_group(dump.operations.back().communicator) != nullptr, "an operation belongs to no group");
    }
  }
  std::ranges::stable_sort(dump.operations, std::greater<>{}, &DumpedOperation::posted_s);
  return dump;
}

}  // namespace

const DumpedGroup* RankDump::find_group(int communicator) const {
  const auto found = std::ranges::find(groups, communicator, &DumpedGroup::communicator);
  return found == groups.end() ? nullptr : &*found;
}

const DumpedOperation* RankDump::find_operation(int communicator, std::int64_t sequence) const {
  const auto found = std::ranges::find_if(operations, [&](const DumpedOperation& operation) {
    return operation.communicator == communicator && operation.sequence == sequence;
  });
  return found == operations.end() ? nullptr : &*found;
}

void add_flight(const comm::FlightLog& log, stream::Clock::time_point now, RankDump& dump) {
  for (const auto& group : log.groups) {
    dump.groups.push_back({.communicator = group.communicator,
                           .name = group.name,
                           .members = group.members,
                           .posted = group.posted,
                           .completed = group.completed});
  }
  for (const auto& record : log.records) {
    DumpedOperation operation{.communicator = log.groups[record.group].communicator,
                              .sequence = record.sequence,
                              .what = comm::to_string(record.operation),
                              .bytes = static_cast<std::int64_t>(record.bytes),
                              .posted_s = seconds_between(record.posted, now),
                              .has_failed = record.has_failed};
    if (record.completed) operation.completed_s = seconds_between(*record.completed, now);
    dump.operations.push_back(std::move(operation));
  }
}

std::string to_json_text(const RankDump& dump) {
  Json json{{"format", kFormat},
            {"rank", dump.rank},
            {"size", dump.size},
            {"expired", dump.has_expired},
            {"phase", dump.phase},
            {"step", dump.step},
            {"silent_s", dump.silent_s},
            {"timeout_s", dump.timeout_s},
            {"silent_since", dump.silent_since},
            {"host", dump.host},
            {"pid", dump.pid}};
  for (const char* list : {"open", "ring", "groups"}) json[list] = Json::array();
  for (const auto& group : dump.groups) json["groups"].push_back(json_of(group));
  for (const auto& operation : dump.operations)
    json[operation.completed_s ? "ring" : "open"].push_back(json_of(operation, dump));
  // A host name may hold anything: what is not UTF-8 is replaced.
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result<RankDump> parse_dump(std::string_view text) {
  try {
    return dump_from(Json::parse(text));
  } catch (const std::exception& error) {
    return Failure{error.what()};
  }
}

}  // namespace orthant::launch
