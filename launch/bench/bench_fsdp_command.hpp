// SPDX-License-Identifier: Apache-2.0
// orthant bench fsdp: how much communication fsdp::Engine exposes on emulated devices, beside the schedules of other
// engines: the comparison of the YaFSDP article.
#pragma once

namespace CLI {
class App;
}

namespace orthant::launch {

/// Adds the command to `bench`; when it was given and has run, `code` is its exit code. Throws  ConfigError.
void add_bench_fsdp_command(CLI::App& bench, int& code);

}  // namespace orthant::launch
