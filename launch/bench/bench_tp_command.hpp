// SPDX-License-Identifier: Apache-2.0
// orthant bench tp: how much communication tensor parallelism exposes on emulated devices, with and without its
// overlap.
#pragma once

namespace CLI {
class App;
}

namespace orthant::launch {

/// Adds the command to `bench`; when it was given and has run, `code` is its exit code.
void add_bench_tp_command(CLI::App& bench, int& code);

}  // namespace orthant::launch
