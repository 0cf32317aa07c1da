// SPDX-License-Identifier: Apache-2.0
// Lowering: from compute operations to what each rank submits. SEND and RECV are appended to both ranks' lists at the
// same moment, so all lists are subsequences of one global sequence and no timing can make unbuffered sends deadlock;
// an operation that sends is emitted only while its receiver has a free slot, so a receiver never holds more than
// `slots` messages of a channel. The sequence is that of a clock of unit costs: in it, even unbuffered in-line sends
// cost no time. Writing each RECV just before its reader instead deadlocks in most plans.
#pragma once

#include <orthant/pipeline/schedule.hpp>

namespace orthant::pipeline {

/// Adds messages and, for schedules with a backward, each rank's tail NORM_UNITS, TIE, NORM, STEP. Compute order is
/// kept. schedule  compute operations only. slots     >= 1; 1 is enough for all schedules of schedule.hpp. Throws
/// InternalError, saying where each rank stands, when the order needs more slots or can never run.
Schedule lower(const Schedule& schedule, int slots);

}  // namespace orthant::pipeline
