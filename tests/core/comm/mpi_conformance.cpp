// SPDX-License-Identifier: Apache-2.0
// The conformance checks over MPI, in both ways of waking, and the same bits as threads: rank 0 runs as many ranks as
// threads, and the hashes must agree. Run by mpirun.
#include <cstdio>
#include <orthant/core/comm/mpi_fabric.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

#include "conformance.hpp"

int main(int argc, char** argv) {
  using namespace orthant;
  const bool polling = argc > 1 && std::string(argv[1]) == "polling";
  comm::MpiFabric fabric({.wake = polling ? comm::MpiOptions::Wake::polling : comm::MpiOptions::Wake::doorbell});
  try {
    const std::uint64_t hash = tests::check_collectives(fabric);
    tests::check_concurrency(fabric);
    tests::check_order(fabric);
    tests::check_channels(fabric);
    tests::check_agreement(fabric);
    if (fabric.size() > 1) tests::check_mismatch(fabric);
    if (fabric.rank() == 0) {
      std::uint64_t with_threads = 0;
      tests::run_ranks(fabric.size(), [&](comm::Fabric& local) {
        const std::uint64_t mine = tests::check_collectives(local);
        if (local.rank() == 0) with_threads = mine;
      });
      if (hash != with_threads) throw std::runtime_error("processes and threads got different bits");
      std::printf("%d ranks: %016llx\n", fabric.size(), static_cast<unsigned long long>(hash));
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", fabric.rank(), error.what());
    fabric.abort(error.what());
    fabric.kill(1);
  }
}
