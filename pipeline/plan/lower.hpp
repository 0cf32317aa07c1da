// SPDX-License-Identifier: Apache-2.0
// Lowering: from compute operations to what each rank submits. SEND and RECV are appended to both ranks' lists at the
// same moment, so all lists are subsequences of one global sequence and no timing can make unbuffered sends deadlock. A
// message leaves when its producer has ended and its slot is free: the k-th of a channel (channel_of() in message.hpp)
// when the reader of the one `slots` before it has begun. The sequence is that of a clock of unit costs: for gpipe,
// 1f1b and zb_h1, even unbuffered sends in line cost no time in it. A RECV just before its reader deadlocks in most
// plans.
#pragma once

#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::pipeline {

/// Adds messages and, for schedules with a backward, each rank's tail NORM_UNITS, TIE, NORM, STEP. Compute order is
/// kept; nothing stands between the two operations of a pair; data between two stages of a rank takes no message.
/// schedule  compute operations only.
/// slots     >= 1.
/// Throws  InternalError, saying where each rank stands, when the order needs more slots or can never run, and for an
///         operation that this pipeline does not have.
Schedule lower(const Schedule& schedule, int slots);

/// The fewest slots with which the lowered schedule runs on streams as fast as with any number of them (on the same
/// clock, with a small message cost). 1 where each channel's messages are read in the order of their arrival, as in all
/// schedules of the catalog: the next one travels while the last is computed with. That holds for any costs with which
/// no message takes longer than a computation. Throws  as lower().
int slots_for(const Schedule& schedule);

}  // namespace orthant::pipeline
