// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/stop_signal.hpp>

#include <csignal>
#include <initializer_list>
#include <unistd.h>

namespace orthant::launch {
namespace {

// The one thing that cannot be passed down: a signal handler has no context.
volatile std::sig_atomic_t requested = 0;

void on_signal(int signal) {
  if (requested != 0) ::_exit(128 + signal);
  requested = signal;
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) ::sigaction(signal, &action, nullptr);
}

int stop_requested() { return requested; }

}  // namespace orthant::launch
