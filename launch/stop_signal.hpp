// SPDX-License-Identifier: Apache-2.0
// Requests to stop: SIGINT (Ctrl-C), SIGTERM and SIGUSR1 ask for an orderly end, which all ranks agree on at a step's
// end; a second one ends the process at once. Install first thing in main: a signal may come before MPI is up.
#pragma once

namespace orthant::launch {

void install_stop_signals();

/// The signal that asked this process to stop, or 0.
int stop_requested();

}  // namespace orthant::launch
