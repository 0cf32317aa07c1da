// SPDX-License-Identifier: Apache-2.0
// A pp2 x dpN x tp2 mesh over processes: every communicator holds the ranks that the shape says, and a token goes down
// and up the pipeline. Prints what the making of the mesh takes. Run by mpirun on a multiple of four ranks.
#include <cstdio>
#include <numeric>
#include <stdexcept>

#include <orthant/core/comm/agree.hpp>
#include <orthant/core/comm/mpi_fabric.hpp>
#include <orthant/core/stream/virtual_clock.hpp>
#include <orthant/mesh/device_mesh.hpp>

namespace {

using namespace orthant;
using mesh::Axis;
using namespace std::chrono_literals;

void expect_members(const comm::Lane& lane, int rank, const std::vector<int>& wanted) {
  std::vector<std::string> texts;
  for (const int member : wanted) texts.push_back(std::to_string(member));
  if (comm::gather_strings(*lane.collectives, std::to_string(rank), 60s) != texts) {
    throw std::runtime_error("other ranks than expected on " + lane.collectives->name());
  }
}

void pass_token(comm::Channel* from, comm::Channel* to, float& token) {
  if (from != nullptr) from->receive({&token, 1, DType::f32}).wait(60s);
  token += 1;
  if (to != nullptr) to->send({&token, 1, DType::f32}).wait(60s);
}

void run(comm::Fabric& fabric) {
  const mesh::MeshShape shape{.pp = 2, .dp_shard = fabric.size() / 4, .tp = 2};
  stream::VirtualClock scheduler;
  const auto begin = stream::Clock::now();
  const mesh::DeviceMesh mesh(fabric, scheduler, shape);
  const double ms = std::chrono::duration<double, std::milli>(stream::Clock::now() - begin).count();

  std::vector<int> all(static_cast<std::size_t>(fabric.size()));
  std::iota(all.begin(), all.end(), 0);
  const int me = fabric.rank();
  expect_members(mesh.stage(), me,
                 me < fabric.size() / 2 ? std::vector<int>(all.begin(), all.begin() + fabric.size() / 2)
                                        : std::vector<int>(all.begin() + fabric.size() / 2, all.end()));
  expect_members(mesh.pp(), me, shape.group(Axis::pp, me));
  expect_members(mesh.control(), me, all);
  expect_members(mesh.tp(), me, shape.group(Axis::tp, me));
  expect_members(mesh.dp_gather(), me, shape.group(Axis::dp, me));
  expect_members(mesh.dp_reduce(), me, shape.group(Axis::dp, me));
  expect_members(mesh.tie(), me, shape.group(Axis::pp, me));  // two stages: the first and the last

  const int pp = mesh.coordinate().pp;
  float token = 0;
  pass_token(mesh.pipeline({pp - 1, pp, false}).channel, mesh.pipeline({pp, pp + 1, false}).channel, token);
  pass_token(mesh.pipeline({pp + 1, pp, true}).channel, mesh.pipeline({pp, pp - 1, true}).channel, token);
  if (token != (mesh.coordinate().pp == 0 ? 4.0F : 3.0F))
    throw std::runtime_error("the token lost its way at " + mesh.text());
  comm::barrier(*mesh.control().collectives, 60s);
  if (me == 0) std::printf("mesh of %d ranks made in %.0f ms\n", fabric.size(), ms);
}

}  // namespace

int main() {
  orthant::comm::MpiFabric fabric;
  try {
    run(fabric);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", fabric.rank(), error.what());
    fabric.kill(1);
  }
}
