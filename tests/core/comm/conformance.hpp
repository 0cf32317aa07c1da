// SPDX-License-Identifier: Apache-2.0
// What every fabric must do, as functions that a rank calls: the same for threads and for processes. Inputs are a pure
// function of (rank, element), so each rank computes by itself, serially and in rank order, what it must get, and
// compares bits.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include <orthant/core/comm/fabric.hpp>

namespace orthant::tests {

inline constexpr std::chrono::seconds kPatience{60};

std::unique_ptr<comm::Collectives> make_world(comm::Fabric&);

// Each throws std::runtime_error on the rank that got something wrong.

/// Every collective, type and size (0, 1, odd, several pieces).
/// returns a hash over all results of all ranks, the same on every rank and on every fabric of as many ranks
std::uint64_t check_collectives(comm::Fabric&);
/// Several operations under way on each of several communicators, waited for in the reverse order.
void check_concurrency(comm::Fabric&);
/// Completion follows the order of the calls.
void check_order(comm::Fabric&);
/// A ring of channels, sends before receives, messages of several sizes in order.
void check_channels(comm::Fabric&);
/// Two ranks that call different things both get an error that names both calls. At least two ranks.
void check_mismatch(comm::Fabric&);
/// gather_strings, barrier and check_same.
void check_agreement(comm::Fabric&);

}  // namespace orthant::tests
