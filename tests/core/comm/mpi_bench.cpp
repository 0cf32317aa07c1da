// SPDX-License-Identifier: Apache-2.0
// Latency and bandwidth of the MPI fabric, and what waiting costs; the figures of core/comm/decisions/0001-doorbell.md.
// mpirun -n N core_comm_bench_mpi [polling]
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <orthant/core/comm/mpi_fabric.hpp>
#include <string>
#include <thread>
#include <vector>

#include "conformance.hpp"

namespace {

using namespace orthant;
using Clock = std::chrono::steady_clock;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Prints time per repeat, the best of five rounds, and the processor time of all ranks as a share of one core.
template <class Body>
void measure(comm::Collectives& world, const char* what, int repeats, Body body) {
  double best = 1e9;
  double cpu = cpu_seconds();
  const auto begin = Clock::now();
  for (int round = 0; round < 5; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < repeats; ++i) body();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count() / repeats);
  }
  // The slowest rank; ranks that have no part wait here.
  world.all_reduce({&best, 1, DType::f64}, comm::Reduction::max).wait(tests::kPatience);
  cpu = cpu_seconds() - cpu;
  world.all_reduce({&cpu, 1, DType::f64}, comm::Reduction::sum).wait(tests::kPatience);
  cpu /= std::chrono::duration<double>(Clock::now() - begin).count();
  if (world.rank() == 0) std::printf("%-28s %10.1f us   %5.0f %% of a core\n", what, 1e6 * best, 100 * cpu);
}

}  // namespace

int main(int argc, char** argv) {
  const bool polling = argc > 1 && std::string(argv[1]) == "polling";
  comm::MpiFabric fabric({.wake = polling ? comm::MpiOptions::Wake::polling : comm::MpiOptions::Wake::doorbell});
  const auto world = tests::make_world(fabric);
  const auto there = fabric.make_channel("there", 0, 1);
  const auto back = fabric.make_channel("back", 1, 0);
  const int me = fabric.rank(), size = fabric.size();

  double one = 1;
  measure(*world, "all_reduce of 1 double", 300, [&] {
    world->all_reduce({&one, 1, DType::f64}, comm::Reduction::max).wait(tests::kPatience);
  });

  const auto ping_pong = [&](std::int64_t count) {
    std::vector<float> data(static_cast<std::size_t>(count));
    const comm::Span span{data.data(), count, DType::f32};
    return [&, data = std::move(data), span] {
      if (me == 0) {
        there->send(span).wait(tests::kPatience);
        back->receive(span).wait(tests::kPatience);
      } else if (me == 1) {
        there->receive(span).wait(tests::kPatience);
        back->send(span).wait(tests::kPatience);
      }
    };
  };
  measure(*world, "ping-pong of 4 B, there+back", 300, ping_pong(1));
  measure(*world, "ping-pong of 256 KiB", 100, ping_pong(65'536));

  const std::int64_t shard = (8 << 20) / size;
  std::vector<float> full(static_cast<std::size_t>(shard * size)), mine(static_cast<std::size_t>(shard));
  const comm::Span all{full.data(), shard * size, DType::f32}, part{mine.data(), shard, DType::f32};
  measure(*world, "all_gather of 32 MiB", 5, [&] { world->all_gather(part, all).wait(tests::kPatience); });
  measure(*world, "reduce_scatter of 32 MiB", 5,
          [&] { world->reduce_scatter(all, part, comm::Into::replace).wait(tests::kPatience); });

  measure(*world, "waiting for one late rank", 1, [&] {
    if (me == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    world->all_reduce({&one, 1, DType::f64}, comm::Reduction::max).wait(tests::kPatience);
  });
  return 0;
}
