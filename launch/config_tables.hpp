// SPDX-License-Identifier: Apache-2.0
// The tables of a config, key by key: types, ranges, names, and the rules within one table.
#pragma once

#include <cstdint>

#include <orthant/core/config/reader.hpp>
#include <orthant/launch/run_config.hpp>

namespace orthant::launch {

/// world          ranks that were started
/// vocab_of_data  0: unknown
/// Faults are noted in the reader.
void read_tables(config::ConfigReader& in, RunConfig& run, int world, std::int64_t vocab_of_data);

}  // namespace orthant::launch
