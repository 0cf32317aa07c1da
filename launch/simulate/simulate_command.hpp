// SPDX-License-Identifier: Apache-2.0
// orthant simulate: what a schedule costs, before anything runs.
#pragma once

namespace CLI {
class App;
}

namespace orthant::launch {

/// Adds the command; when it was given and has run, `code` is its exit code. Throws  ConfigError while it runs.
void add_simulate_command(CLI::App& app, int& code);

}  // namespace orthant::launch
