// SPDX-License-Identifier: Apache-2.0
// What "trains alike" means, as GoogleTest expectations that name the tensor or the step.
#pragma once

#include <orthant/tests/parity/trajectory.hpp>

namespace orthant::tests {

struct Tolerance {
  double gradient;      ///< each gathered gradient of step 1: norm of the difference over norm
  double later;         ///< losses, gradient norms and gathered weights over all steps
  double together = 1;  ///< all gradients of step 1 as one vector
};

/// Initial weights must be equal bit for bit.
void expect_parity(const Trajectory& got, const Trajectory& want, const Tolerance& tolerance);
void expect_bit_equal(const Trajectory& a, const Trajectory& b);

}  // namespace orthant::tests
