// SPDX-License-Identifier: Apache-2.0
// What a run is about at the moment: each phase has its own time-out in the hang watchdog.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orthant::launch {

enum class RunPhase : std::uint8_t { init, load, step, evaluation, save, exit };
constexpr std::size_t kRunPhases = 6;

constexpr const char* name_of(RunPhase phase) {
  switch (phase) {
    case RunPhase::init:
      return "init";
    case RunPhase::load:
      return "load";
    case RunPhase::step:
      return "step";
    case RunPhase::evaluation:
      return "evaluation";
    case RunPhase::save:
      return "save";
    case RunPhase::exit:
      return "exit";
  }
  return "?";
}

}  // namespace orthant::launch
