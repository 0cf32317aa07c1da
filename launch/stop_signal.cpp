// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/stop_signal.hpp>

#include <csignal>
#include <ctime>
#include <initializer_list>
#include <unistd.h>

namespace orthant::launch {
namespace {

// The one thing that cannot be passed down: a signal handler has no context.
volatile std::sig_atomic_t requested = 0;
volatile std::sig_atomic_t first_ms[NSIG] = {};  ///< when a signal first came

constexpr int kSameRequestMs = 1000;

std::sig_atomic_t now_ms() {
  struct timespec time {};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::sig_atomic_t>((time.tv_sec % 1'000'000) * 1000 + time.tv_nsec / 1'000'000 + 1);
}

void on_signal(int signal) {
  if (first_ms[signal] == 0) first_ms[signal] = now_ms();
  if (now_ms() - first_ms[signal] > kSameRequestMs) ::_exit(128 + signal);
  requested = signal;
}

}  // namespace

void install_stop_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  sigset_t handled;
  ::sigemptyset(&handled);
  for (int signal : {SIGINT, SIGTERM, SIGUSR1}) {
    ::sigaction(signal, &action, nullptr);
    ::sigaddset(&handled, signal);
  }
  ::sigprocmask(SIG_UNBLOCK, &handled, nullptr);
  ::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is a failed write
}

int stop_requested() { return requested; }

}  // namespace orthant::launch
