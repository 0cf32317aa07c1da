// SPDX-License-Identifier: Apache-2.0
// orthant data: from a text to token files, and a look into them.
#pragma once

#include <orthant/core/data/dataset.hpp>

namespace orthant::launch {

int data_prepare_command(const data::PrepareOptions& options, bool json);
int data_inspect_command(const std::string& folder, bool json);

}  // namespace orthant::launch
