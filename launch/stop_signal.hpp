// SPDX-License-Identifier: Apache-2.0
// Requests to stop: SIGINT (Ctrl-C), SIGTERM and SIGUSR1 ask for an orderly end, which all ranks agree on at a step's
// end; the same signal again, a second later or more, ends the process at once. (USR1 and then TERM is one request: a
// scheduler sends the one ahead of time and the other at its limit; launchers may send one twice.) Install first thing
// in main: a signal may come before MPI is up. One that came even before, while libraries were being loaded, is waiting
// if the launcher had it blocked ('env --block-signal=USR1 orthant …'); else it has ended the process.
#pragma once

namespace orthant::launch {

void install_stop_signals();

/// The signal that asked this process to stop, or 0.
int stop_requested();

}  // namespace orthant::launch
