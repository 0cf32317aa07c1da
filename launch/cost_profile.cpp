// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/cost_profile.hpp>

#include <algorithm>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>

namespace orthant::launch {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRoundTrips = 10;

/// Half the median round trip over one edge and its way back, seen from its source; 0 elsewhere.
double half_round_trip_us(const mesh::DeviceMesh& mesh, const mesh::PipelineEdge& edge, std::int64_t bytes,
                          std::chrono::milliseconds timeout) {
  const int me = mesh.coordinate().pp;
  const mesh::PipelineEdge back{edge.destination, edge.source, true};
  std::vector<std::byte> message(static_cast<std::size_t>(bytes));
  const comm::Span span{message.data(), bytes, DType::u8};
  std::vector<double> trips_us;
  for (int i = 0; i < kRoundTrips; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (me == edge.source) {
      mesh.pipeline(edge).channel->send(span).wait(timeout);
      mesh.pipeline(back).channel->receive(span).wait(timeout);
      trips_us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count() /
                         2);
    } else if (me == edge.destination) {
      mesh.pipeline(edge).channel->receive(span).wait(timeout);
      mesh.pipeline(back).channel->send(span).wait(timeout);
    }
  }
  if (trips_us.empty()) return 0;
  std::ranges::sort(trips_us);
  return trips_us[trips_us.size() / 2];
}

Json layer_json(int layer, const step::LayerCost& cost) {
  return {{"layer", layer}, {"F_us", cost.forward_us}, {"I_us", cost.input_us}, {"W_us", cost.weight_us}};
}

step::LayerCost layer_cost(const Json& json) {
  return {json.at("F_us").get<double>(), json.at("I_us").get<double>(), json.at("W_us").get<double>()};
}

}  // namespace

double measure_message_us(const mesh::DeviceMesh& mesh, const mesh::PipelineTopology& topology, std::int64_t bytes,
                          std::chrono::milliseconds timeout) {
  double slowest = 0;
  for (const auto& edge : topology.edges) {
    if (!edge.gradient) slowest = std::max(slowest, half_round_trip_us(mesh, edge, bytes, timeout));
  }
  mesh.control().collectives->all_reduce({&slowest, 1, DType::f64}, comm::Reduction::max).wait(timeout);
  return slowest;
}

MeasuredCosts gather_costs(ParallelModel& model, double message_us) {
  Json mine{{"place", model.mesh().text()}, {"pp", model.mesh().coordinate().pp}, {"layers", Json::array()}};
  for (const auto& [layer, cost] : model.layer_costs()) mine["layers"].push_back(layer_json(layer.value, cost));
  const auto all = comm::gather_strings(*model.mesh().control().collectives, mine.dump(), model.context().timeout);
  MeasuredCosts costs{
      .profile = {.layers = std::vector<step::LayerCost>(static_cast<std::size_t>(model.run().model.layers) + 2),
                  .message_us = message_us},
      .ranks = {}};
  for (const auto& text : all) {
    const auto of_rank = Json::parse(text);
    RankCost rank{.place = of_rank.at("place"), .pp = of_rank.at("pp")};
    for (const auto& json : of_rank.at("layers")) {
      const auto cost = layer_cost(json);
      costs.profile.layers[json.at("layer").get<std::size_t>()] = cost;
      rank.us += cost.forward_us + cost.input_us + cost.weight_us;
    }
    costs.ranks.push_back(std::move(rank));
  }
  return costs;
}

std::vector<double> over_fastest(const std::vector<RankCost>& ranks) {
  std::map<int, double> fastest;  // by pipeline coordinate
  for (const auto& rank : ranks) {
    auto& best = fastest.try_emplace(rank.pp, rank.us).first->second;
    best = std::min(best, rank.us);
  }
  std::vector<double> ratios;
  for (const auto& rank : ranks) {
    const double best = fastest.at(rank.pp);
    ratios.push_back(best > 0 ? rank.us / best : 1);
  }
  return ratios;
}

std::vector<std::string> describe_slow_ranks(const std::vector<RankCost>& ranks) {
  constexpr double kSlow = 1.5;
  const auto ratios = over_fastest(ranks);
  std::vector<std::string> lines;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ratios[rank] < kSlow) continue;
    lines.push_back(
        fmt::format("rank {} ({}) is slow: {:.1f} ms for the layers of a micro-batch, {:.1f} times what "
                    "the fastest rank with the same layers takes",
                    rank, ranks[rank].place, ranks[rank].us / 1e3, ratios[rank]));
  }
  return lines;
}

std::string profile_json(const RunConfig& run, const PipelinePlan& plan, const MeasuredCosts& measured) {
  const auto& profile = measured.profile;
  Json json{{"blocks", run.model.layers},
            {"seq_len", run.train.seq_len},
            {"micro_batch", run.train.micro_batch},
            {"mesh", {{"pp", run.mesh.pp}, {"dp", run.mesh.dp}, {"tp", run.mesh.tp}}},
            {"message_us", profile.message_us},
            {"stages", Json::array()},
            {"layers", Json::array()},
            {"ranks", Json::array()}};
  const auto costs = stage_costs(profile, plan.stages);
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    const auto& cost = costs.stages[s];
    json["stages"].push_back({{"stage", s}, {"F_us", cost.forward}, {"I_us", cost.input}, {"W_us", cost.weight}});
  }
  for (std::size_t layer = 0; layer < profile.layers.size(); ++layer) {
    json["layers"].push_back(layer_json(static_cast<int>(layer), profile.layers[layer]));
  }
  const auto ratios = over_fastest(measured.ranks);
  for (std::size_t rank = 0; rank < ratios.size(); ++rank) {
    const auto& cost = measured.ranks[rank];
    json["ranks"].push_back({{"place", cost.place}, {"us", cost.us}, {"over_fastest", ratios[rank]}});
  }
  return json.dump(2) + "\n";
}

CostProfile read_profile(const std::filesystem::path& path, std::int64_t blocks) {
  std::ifstream file(path);
  if (!file)
    throw ConfigError(fmt::format("{} cannot be read; a run writes profile.json in its run folder", path.string()));
  CostProfile profile;
  try {
    const auto json = Json::parse(file);
    profile.message_us = json.at("message_us").get<double>();
    for (const auto& layer : json.at("layers")) profile.layers.push_back(layer_cost(layer));
  } catch (const nlohmann::json::exception& error) {
    throw ConfigError(
        fmt::format("{} is no cost profile: {}; take the profile.json of a run folder", path.string(), error.what()));
  }
  if (static_cast<std::int64_t>(profile.layers.size()) != blocks + 2) {
    throw ConfigError(
        fmt::format("{} has {} layers with embedding and head, the model has {}; take the profile of a run "
                    "of this model",
                    path.string(), profile.layers.size(), blocks + 2));
  }
  return profile;
}

pipeline::Costs stage_costs(const CostProfile& profile, const std::vector<step::StageSpan>& stages) {
  pipeline::Costs costs{.stages = {}, .message = profile.message_us, .overlapped = 0};
  for (const auto& span : stages) {
    pipeline::StageCosts sum{0, 0, 0};
    for (int layer = span.first.value; layer <= span.last.value; ++layer) {
      const auto& cost = profile.layers[static_cast<std::size_t>(layer)];
      sum.forward += cost.forward_us;
      sum.input += cost.input_us;
      sum.weight += cost.weight_us;
    }
    costs.stages.push_back(sum);
  }
  return costs;
}

}  // namespace orthant::launch
