// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/device_fabric.hpp>

#include <algorithm>
#include <string>
#include <vector>

#include <orthant/core/comm/agree.hpp>
#include <orthant/core/cuda/nccl_fabric.hpp>
#include <orthant/core/cuda/staged_fabric.hpp>

namespace orthant::cuda {

std::unique_ptr<DeviceFabric> make_device_fabric(Driver& driver, comm::Fabric& host,
                                                 std::chrono::milliseconds timeout) {
  const auto world = host.make_collectives("devices", host.all_ranks());
  std::vector<std::string> devices = comm::gather_strings(*world, driver.device_identity(), timeout);
  std::ranges::sort(devices);
  if (std::ranges::adjacent_find(devices) != devices.end()) return std::make_unique<StagedFabric>(driver, host);
  return std::make_unique<NcclFabric>(driver, host, timeout);
}

}  // namespace orthant::cuda
