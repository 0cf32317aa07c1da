// SPDX-License-Identifier: Apache-2.0
// Both fabrics of device memory must do what every fabric does: they run the suite of the CPU fabrics, with a device
// that is played on the host and NCCL played over the local fabric.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/local_fabric.hpp>
#include <orthant/core/cuda/cuda_scheduler.hpp>
#include <orthant/core/cuda/recording_driver.hpp>
#include <orthant/core/cuda/staged_fabric.hpp>
#include <orthant/tests/harness/run_ranks.hpp>

#include "conformance.hpp"
#include "nccl_wire.hpp"

namespace orthant::cuda {
namespace {

using namespace std::chrono_literals;
using tests::kPatience;
using tests::run_ranks;
using Suite = void (*)(comm::Fabric&);

std::uint64_t seed_of(const comm::Fabric& fabric) { return static_cast<std::uint64_t>(fabric.rank()); }

void staged(int ranks, Suite suite) {
  run_ranks(ranks, [&](comm::Fabric& local) {
    RecordingDriver driver({.seed = seed_of(local)});
    StagedFabric fabric(driver, local);
    suite(fabric);
  });
}

void nccl(int ranks, Suite suite) {
  run_ranks(ranks, [&](comm::Fabric& local) {
    WiredFabric fabric(local, {.seed = seed_of(local)});
    suite(fabric);
  });
}

class DeviceFabricOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, DeviceFabricOf, testing::Values(1, 2, 3));

TEST_P(DeviceFabricOf, GivesTheBitsOfTheLocalFabric) {
  std::atomic<std::uint64_t> by_local, by_staged, by_nccl;
  run_ranks(GetParam(), [&](comm::Fabric& local) { by_local = tests::check_collectives(local); });
  run_ranks(GetParam(), [&](comm::Fabric& local) {
    RecordingDriver driver({.seed = seed_of(local)});
    StagedFabric fabric(driver, local);
    by_staged = tests::check_collectives(fabric);
  });
  run_ranks(GetParam(), [&](comm::Fabric& local) {
    WiredFabric fabric(local, {.seed = seed_of(local)});
    by_nccl = tests::check_collectives(fabric);
  });
  EXPECT_EQ(by_staged, by_local);
  EXPECT_EQ(by_nccl, by_local);
}
TEST_P(DeviceFabricOf, KeepsConcurrentOperationsApart) {
  staged(GetParam(), tests::check_concurrency);
  nccl(GetParam(), tests::check_concurrency);
}
TEST_P(DeviceFabricOf, CompletesInOrder) {
  staged(GetParam(), tests::check_order);
  nccl(GetParam(), tests::check_order);
}
TEST_P(DeviceFabricOf, SendsInOrder) {
  staged(GetParam(), tests::check_channels);
  nccl(GetParam(), tests::check_channels);
}
TEST_P(DeviceFabricOf, Agrees) {
  staged(GetParam(), tests::check_agreement);
  nccl(GetParam(), tests::check_agreement);
}

// F posts an all_reduce while it runs and reads its result; G gathers what F left; all on the device.
void run_tasks(comm::Fabric& fabric, RecordingDriver& driver) {
  const auto world = tests::make_world(fabric);
  const int size = fabric.size(), me = fabric.rank();
  CudaScheduler scheduler(driver, {.deadline = 30s});
  const auto compute = scheduler.add_stream("compute", stream::StreamKind::compute);
  const auto tp = scheduler.add_stream("tp", stream::StreamKind::request);
  const auto value_buffer = scheduler.add_buffer("value"), all_buffer = scheduler.add_buffer("all");
  float value = 0;
  std::vector<float> all(static_cast<std::size_t>(size));
  std::vector<float> found;
  for (int step = 0; step < 20; ++step) {
    const auto value_is = stream::content_of("value", step), all_is = stream::content_of("all", step);
    scheduler.submit(
        {.name = "F",
         .stream = compute,
         .writes = {{value_buffer, value_is}},
         .body =
             [&, step](stream::TaskScope& scope) {
               driver.launch([&, step] { value = static_cast<float>(me + step); });
               scope.post([&] { return world->all_reduce({&value, 1, DType::f32}, comm::Reduction::sum); });
               scope.wait(0);
               driver.launch([&] { value += 1000.0F * static_cast<float>(me); });
             },
         .nested = {{"AR", tp}},
         .segments = {{stream::Segment::Kind::post, 0, 0}, {stream::Segment::Kind::wait, 0, 0}}});
    scheduler.submit({.name = "AG",
                      .stream = tp,
                      .reads = {{value_buffer, value_is}},
                      .writes = {{all_buffer, all_is}},
                      .start = [&] {
                        return world->all_gather({&value, 1, DType::f32}, {all.data(), size, DType::f32});
                      }});
    scheduler.submit({.name = "G", .stream = compute, .reads = {{all_buffer, all_is}}, .body = [&](stream::TaskScope&) {
                        driver.launch([&] { found.insert(found.end(), all.begin(), all.end()); });
                      }});
  }
  scheduler.drain();
  std::vector<float> wanted;
  for (int step = 0; step < 20; ++step) {
    for (int r = 0; r < size; ++r) wanted.push_back(static_cast<float>(size * (size - 1) / 2 + size * step + 1000 * r));
  }
  EXPECT_EQ(found, wanted);
}

TEST(DeviceFabric, CarriesTheCollectivesOfTasks) {
  run_ranks(3, [&](comm::Fabric& local) {
    RecordingDriver driver({.seed = seed_of(local)});
    StagedFabric fabric(driver, local);
    run_tasks(fabric, driver);
  });
  run_ranks(3, [&](comm::Fabric& local) {
    WiredFabric fabric(local, {.seed = seed_of(local)});
    run_tasks(fabric, fabric.driver());
  });
}

TEST(DeviceFabric, IsStagedWhereRanksShareADevice) {
  for (const bool shared : {true, false}) {
    run_ranks(2, [&](comm::Fabric& local) {
      RecordingDriver driver({.identity = shared || local.rank() == 0 ? "GPU 7" : "GPU 8"});
      EXPECT_STREQ(make_device_fabric(driver, local, kPatience)->kind(), shared ? "staged" : "nccl");
    });
  }
}

TEST(StagedFabric, AbortEndsOpenAndLaterOperations) {
  run_ranks(2, [&](comm::Fabric& local) {
    RecordingDriver driver;
    StagedFabric fabric(driver, local);
    const auto world = tests::make_world(fabric);
    float value = 0;
    const auto sum = [&] { world->all_reduce({&value, 1, DType::f32}, comm::Reduction::sum).wait(kPatience); };
    sum();  // both ranks have made the communicator
    if (fabric.rank() == 1) fabric.abort("on purpose");
    EXPECT_THROW(sum(), CommError);
    EXPECT_THROW(sum(), CommError);
  });
}

TEST(StagedFabric, AFailingCopyFailsTheOperation) {
  RecordingDriver driver({.on_enqueue = [](const Command& command) {
    if (std::holds_alternative<Copy>(command)) throw InternalError("cudaMemcpyAsync: out of memory");
  }});
  comm::LocalFabric local(std::make_shared<comm::LocalWorld>(1), 0);
  StagedFabric fabric(driver, local);
  float value = 0;
  EXPECT_THROW((void)tests::make_world(fabric)->all_reduce({&value, 1, DType::f32}, comm::Reduction::sum),
               InternalError);
}

}  // namespace
}  // namespace orthant::cuda
