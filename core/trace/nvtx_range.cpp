// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/trace/nvtx_range.hpp>

#include <nvtx3/nvToolsExt.h>

namespace orthant::trace {

NvtxRange::NvtxRange(const std::string& name) : id_(nvtxRangeStartA(name.c_str())) {}
NvtxRange::~NvtxRange() { nvtxRangeEnd(id_); }

}  // namespace orthant::trace
