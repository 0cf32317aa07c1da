// SPDX-License-Identifier: Apache-2.0
// A simulated step in figures, for people and for programs. What is a whole number prints as one.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include <orthant/pipeline/cost/simulate.hpp>

namespace orthant::pipeline {

/// "1310405", "0.25": whole numbers without a fraction, others with at most `digits` after the point.
std::string number_text(double number, int digits = 3);

/// The distance of an axis' ticks: 1, 2 or 5 times a power of ten, so that `about` fit.
double tick_step(double longest, int about);
/// A whole number as an integer.
nlohmann::ordered_json number_json(double number);

/// Bubble over makespan; 0 of an empty step.
double bubble_rate(const Timing& timing);

/// The headline and a line a rank: work, idle, peak activations, communication that is not hidden.
std::string report_table(const Schedule& lowered, const Simulation& simulation);

/// The object of `orthant simulate --json`. `order` holds the computations of each rank, as in short_text(); an
/// overlapped pair is one: "F0.3&B7.1".
nlohmann::ordered_json report_json(const Schedule& lowered, const Simulation& simulation);

}  // namespace orthant::pipeline
