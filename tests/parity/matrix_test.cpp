// SPDX-License-Identifier: Apache-2.0
// The headline: every mesh, schedule, sharding and layout trains like one rank. ORTHANT_PARITY picks a part of the
// matrix (ctest runs the parts side by side): adamw-fp32, adamw-fp64, sgd-fp32, sgd-fp64, each also with "-cross".
// schedules_test.cpp has the other schedules, on fewer meshes.
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/tests/parity/parity_check.hpp>

namespace orthant::tests {
namespace {

using launch::RunConfig;

struct Part {
  DType precision = DType::f32;
  bool sgd = false;
  bool cross = false;
  Tolerance tolerance() const { return precision == DType::f64 ? Tolerance{1e-11, 1e-10} : Tolerance{1e-5, 1e-5}; }
};

struct Mesh {
  int pp, dp, tp;
};

constexpr Mesh kMeshes[] = {{1, 1, 1}, {1, 1, 2}, {1, 1, 4}, {1, 1, 8}, {1, 2, 1}, {1, 2, 2}, {1, 2, 4}, {1, 3, 1},
                            {1, 3, 2}, {1, 4, 1}, {1, 4, 2}, {1, 8, 1}, {2, 1, 1}, {2, 1, 2}, {2, 1, 4}, {2, 2, 1},
                            {2, 2, 2}, {2, 3, 1}, {2, 4, 1}, {4, 1, 1}, {4, 1, 2}, {4, 2, 1}, {8, 1, 1}};

struct Sharding {
  int stage;
  const char* residency;
};
constexpr const char* kSchedules[] = {"gpipe", "1f1b", "zb_h1"};
constexpr Sharding kShardings[] = {{0, "auto"}, {3, "layer"}, {3, "chunk"}};

RunConfig config(const Part& part, Mesh mesh, bool tied) {
  RunConfig run;
  run.mesh = {.pp = mesh.pp, .dp = mesh.dp, .tp = mesh.tp};
  run.model = {.layers = mesh.pp == 8 ? 8 : 5,  // 5 on 2 and 4 stages is uneven
               .hidden = 32,
               .heads = 8,
               .kv_heads = 8,
               .head_dim = 4,
               .ffn = 40,
               .vocab = 97,
               .tie_embeddings = tied};
  run.train = {.steps = 20,
               .global_batch = 3 * mesh.dp,
               .micro_batch = 1,
               .seq_len = 16,
               .seed = 7,
               .precision = part.precision,
               .grad_clip = part.sgd ? 0.0 : 1.0};
  run.lr = {.kind = optim::LrKind::cosine, .peak = part.sgd ? 0.1 : 1e-3, .warmup = 5, .min_ratio = 0.1};
  run.optimizer.kind = part.sgd ? optim::OptimizerKind::sgd : optim::OptimizerKind::adamw;
  run.optimizer.adamw.weight_decay = 0.1;
  return run;
}

std::string name_of_cell(const RunConfig& run) {
  return fmt::format("pp{} dp{} tp{} {} stage {} {} sp {} {}", run.mesh.pp, run.mesh.dp, run.mesh.tp,
                     run.pipeline.schedule, run.fsdp.stage, run.fsdp.residency, run.sequence_parallel,
                     run.model.tie_embeddings ? "tied" : "untied");
}

/// One run of a mesh: where the mesh has no tensor axis, sequence_parallel does not matter.
struct Cell {
  const char* schedule;
  Sharding sharding;
  bool sequence_parallel, tied;
};

std::vector<Cell> cells_of(const Part& part) {
  constexpr Sharding replicated = kShardings[0], layer = kShardings[1], chunk = kShardings[2];
  if (part.cross) {
    std::vector<Cell> cells;
    for (const bool tied : {false, true})
      for (const bool sequence_parallel : {true, false})
        for (const auto& sharding : kShardings)
          for (const char* schedule : kSchedules) cells.push_back({schedule, sharding, sequence_parallel, tied});
    return cells;
  }
  if (part.sgd) {  // every pair of sharding and layout
    return {{"zb_h1", chunk, true, false},       {"zb_h1", layer, false, false}, {"zb_h1", replicated, true, true},
            {"zb_h1", replicated, false, false}, {"zb_h1", layer, true, true},   {"zb_h1", chunk, false, true}};
  }
  return {
      // every schedule with one sharding and layout, which their bits are compared in; then every pair of two choices
      {"gpipe", chunk, true, false},      {"1f1b", chunk, true, false},      {"zb_h1", chunk, true, false},
      {"gpipe", layer, false, true},      {"1f1b", layer, true, true},       {"zb_h1", layer, false, false},
      {"gpipe", replicated, true, false}, {"1f1b", replicated, false, true}, {"zb_h1", replicated, true, true},
      {"zb_h1", chunk, false, true}};
}

/// The cells of one mesh against one rank.
void check_mesh(const Part& part, Mesh mesh) {
  std::map<bool, Trajectory> alone;  // by tied
  for (const bool tied : {false, true}) {
    auto one = config(part, mesh, tied);
    one.mesh = {};
    one.fsdp.stage = 0;
    alone[tied] = run_trajectory(one);
  }
  std::map<std::string, Trajectory> first;  // of the schedules with the same sharding and layout
  for (const Cell& cell : cells_of(part)) {
    if (mesh.tp == 1 && part.cross && !cell.sequence_parallel) continue;
    auto run = config(part, mesh, cell.tied);
    run.fsdp = {.stage = cell.sharding.stage, .residency = cell.sharding.residency};
    run.sequence_parallel = cell.sequence_parallel;
    const std::string layout = name_of_cell(run);
    run.pipeline.schedule = cell.schedule;
    SCOPED_TRACE(name_of_cell(run));
    const auto got = run_trajectory(run);
    expect_parity(got, alone.at(cell.tied), part.tolerance());
    if (::testing::Test::HasFailure()) return;  // the rest would say the same
    const auto& same = first.try_emplace(layout, got).first->second;
    if (part.precision == DType::f32 && !cell.tied) expect_bit_equal(got, same);
  }
}

Part part_from_environment() {
  const char* text = std::getenv("ORTHANT_PARITY");
  const std::string name = text != nullptr ? text : "adamw-fp32";
  return {.precision = name.find("fp64") != name.npos ? DType::f64 : DType::f32,
          .sgd = name.starts_with("sgd"),
          .cross = name.ends_with("cross")};
}

class ParityMatrix : public ::testing::TestWithParam<Mesh> {};

TEST_P(ParityMatrix, TrainsLikeOneRank) { check_mesh(part_from_environment(), GetParam()); }

INSTANTIATE_TEST_SUITE_P(Meshes, ParityMatrix, ::testing::ValuesIn(kMeshes), [](const auto& cell) {
  return fmt::format("pp{}dp{}tp{}", cell.param.pp, cell.param.dp, cell.param.tp);
});

}  // namespace
}  // namespace orthant::tests
