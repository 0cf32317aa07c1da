// SPDX-License-Identifier: Apache-2.0
// The rules of a config that look at several tables: what must divide what, what fills the pipeline, what is left to
// train.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <orthant/core/config/reader.hpp>
#include <orthant/launch/run_config.hpp>

namespace orthant::launch {

/// "{1, 2, 4}": every degree up to `most` that is legal.
std::string legal_degrees(std::int64_t most, const std::function<bool(int degree)>& is_legal);
/// A name of the catalog, "auto" or "file:PATH".
bool is_known_schedule(const std::string& schedule);

/// Faults are noted in the reader.
void check_rules(config::ConfigReader& in, const RunConfig& run);

}  // namespace orthant::launch
