// SPDX-License-Identifier: Apache-2.0
// One rank gives up; what is open at the others fails with its words, and rank 0 ends them all. mpirun must return 43.
#include <cstdio>
#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/mpi_fabric.hpp>
#include <thread>

#include "conformance.hpp"

int main() {
  using namespace orthant;
  comm::MpiFabric fabric;
  const auto world = tests::make_world(fabric);
  float value = 1;
  const comm::Span data{&value, 1, DType::f32};
  world->all_reduce(data, comm::Reduction::sum).wait(tests::kPatience);
  if (fabric.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(1));  // the others wait in the second one
    fabric.abort("on purpose");
    std::this_thread::sleep_for(tests::kPatience);
  }
  for (int attempt = 0; attempt < 2; ++attempt) {  // open, and later
    try {
      world->all_reduce(data, comm::Reduction::sum).wait(tests::kPatience);
      std::fprintf(stderr, "rank %d: nothing failed\n", fabric.rank());
      fabric.kill(1);
    } catch (const CommError& error) {
      if (std::string(error.what()) != "rank 1 aborted: on purpose") {
        std::fprintf(stderr, "rank %d: %s\n", fabric.rank(), error.what());
        fabric.kill(2);
      }
    }
  }
  if (fabric.rank() == 0) fabric.kill(43);
  std::this_thread::sleep_for(tests::kPatience);
  return 0;
}
