// SPDX-License-Identifier: Apache-2.0
// orthant schedule list | show | validate | export | compare: schedules as data.
#pragma once

namespace CLI {
class App;
}

namespace orthant::launch {

/// Adds the command and its own commands; when one was given and has run, `code` is its exit code.
/// Throws  ConfigError while it runs.
void add_schedule_command(CLI::App& app, int& code);

}  // namespace orthant::launch
