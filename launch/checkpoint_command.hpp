// SPDX-License-Identifier: Apache-2.0
// orthant checkpoint list | verify: what a run has saved, and whether it is sound.
#pragma once

namespace CLI {
class App;
}

namespace orthant::launch {

/// Adds the command and its own commands; when one was given and has run, `code` is its exit code.
/// Throws  CheckpointError while it runs.
void add_checkpoint_command(CLI::App& app, int& code);

}  // namespace orthant::launch
