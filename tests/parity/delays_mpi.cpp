// SPDX-License-Identifier: Apache-2.0
// Four processes, synchronous sends everywhere, every message held back for a random time: no hang, and the bits of a
// run without delays. Argument: number of seeds.
#include <cstdio>
#include <cstdlib>

#include <orthant/core/comm/agree.hpp>
#include <orthant/core/comm/mpi_fabric.hpp>
#include <orthant/tests/harness/delayed_fabric.hpp>
#include <orthant/tests/parity/trajectory.hpp>

namespace orthant::tests {
namespace {

using namespace std::chrono_literals;

/// rows x hidden of fp32 cross a stage border: 16 x 16 are 1 KiB, 256 x 64 are 64 KiB.
launch::RunConfig config(bool large, const char* schedule) {
  launch::RunConfig run;
  run.model = {.layers = 8,
               .hidden = large ? 64 : 16,
               .heads = 4,
               .kv_heads = 4,
               .head_dim = large ? 16 : 4,
               .ffn = 24,
               .vocab = 61};
  run.mesh.pp = 4;
  run.train = {.steps = 10, .global_batch = 8, .micro_batch = 1, .seq_len = large ? 256 : 16, .seed = 3};
  run.lr = {.kind = optim::LrKind::constant, .peak = 1e-2};
  run.fsdp.stage = 0;
  run.pipeline.schedule = schedule;
  return run;
}

bool same_bits(const Trajectory& a, const Trajectory& b) {
  if (a.losses != b.losses || a.norms != b.norms || a.final.size() != b.final.size()) return false;
  for (const auto& [name, tensor] : a.final) {
    if (!tensor.equal(b.final.at(name))) return false;
  }
  return true;
}

int run(comm::MpiFabric& fabric, int seeds) {
  const char* schedules[] = {"1f1b", "zb_h1", "interleaved", "zb_v", "dualpipe_v"};
  int wrong = 0, runs = 0;
  for (const bool large : {false, true}) {
    for (const char*& schedule : schedules) {
      const auto want = train_on(fabric, config(large, schedule));
      for (int seed = 0; seed < seeds; ++seed) {
        if (seed % static_cast<int>(std::size(schedules)) != &schedule - schedules) continue;
        DelayedFabric delayed(fabric, 5ms, static_cast<unsigned>(seed));
        ++runs;
        if (same_bits(train_on(delayed, config(large, schedule)), want)) continue;
        std::fprintf(stderr, "rank %d: %s, %s messages, seed %d: other bits\n", fabric.rank(), schedule,
                     large ? "64 KiB" : "1 KiB", seed);
        ++wrong;
      }
    }
  }
  std::vector<int> everybody{0, 1, 2, 3};
  const auto all = fabric.make_collectives("end", everybody);
  comm::barrier(*all, 60s);
  const auto open = fabric.open_requests();
  if (open != 0) std::fprintf(stderr, "rank %d: %lld requests are open\n", fabric.rank(), static_cast<long long>(open));
  if (fabric.rank() == 0)
    std::printf("%d runs of 10 steps with delays: %d with other bits; open requests %lld\n", runs, wrong,
                static_cast<long long>(open));
  return wrong + static_cast<int>(open);
}

}  // namespace
}  // namespace orthant::tests

int main(int argc, char** argv) {
  orthant::comm::MpiFabric fabric({.synchronous_sends = true});
  try {
    return orthant::tests::run(fabric, argc > 1 ? std::atoi(argv[1]) : 10) == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", fabric.rank(), error.what());
    fabric.kill(1);
  }
}
