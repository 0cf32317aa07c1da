// SPDX-License-Identifier: Apache-2.0
// Whether what several tensor-parallel ranks hold (norms, shared key/value heads) is still the same on all of them, bit
// for bit: a difference is a fault of hardware or program, and grows unseen.
#pragma once

#include <orthant/launch/parallel_model.hpp>

namespace orthant::launch {

/// Compares a 64-bit hash (XXH64) of every such parameter's master weights. Collective over the tp axis; only after
/// drain(). Throws  ReplicaError that names parameters and ranks, on all ranks of the axis.
void check_replicas(ParallelModel& model);

/// A drill: changes one such parameter on this rank. Only after drain().
void make_replicas_differ(ParallelModel& model);

}  // namespace orthant::launch
