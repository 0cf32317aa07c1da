// SPDX-License-Identifier: Apache-2.0
// orthant bench: measurements on emulated devices. Here `pipeline`, a schedule measured beside predicted; `fsdp` and
// `tp` are in bench_fsdp_command.hpp and bench_tp_command.hpp.
#pragma once

namespace CLI {
class App;
}

namespace orthant::launch {

/// Adds the commands; when one was given and has run, `code` is its exit code. Throws  ConfigError while it runs.
void add_bench_command(CLI::App& app, int& code);

}  // namespace orthant::launch
