// SPDX-License-Identifier: Apache-2.0
#include <orthant/tests/parity/parity_check.hpp>

#include <cmath>

#include <ATen/ops/norm.h>
#include <gtest/gtest.h>

namespace orthant::tests {
namespace {

void expect_equal(const Tensors& got, const Tensors& want, double tolerance, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (const auto& [name, tensor] : want) {
    const double difference = relative_difference(got.at(name), tensor);
    EXPECT_LE(difference, tolerance) << what << " of " << name;
  }
}

double difference_of_all(const Tensors& got, const Tensors& want) {
  double difference = 0, size = 0;
  for (const auto& [name, tensor] : want) {
    const double norm = tensor.to(at::kDouble).norm().item<double>();
    difference += std::pow(relative_difference(got.at(name), tensor) * norm, 2);
    size += norm * norm;
  }
  return std::sqrt(difference / size);
}

}  // namespace

void expect_parity(const Trajectory& got, const Trajectory& want, const Tolerance& tolerance) {
  expect_equal(got.initial, want.initial, 0.0, "initial weights");
  expect_equal(got.gradients, want.gradients, tolerance.gradient, "gradient of step 1");
  EXPECT_LE(difference_of_all(got.gradients, want.gradients), tolerance.together) << "all gradients of step 1";
  for (std::size_t i = 0; i < want.losses.size(); ++i) {
    EXPECT_NEAR(got.losses[i], want.losses[i], tolerance.later * want.losses[i]) << "loss of step " << i + 1;
    EXPECT_NEAR(got.norms[i], want.norms[i], tolerance.later * want.norms[i]) << "gradient norm of step " << i + 1;
  }
  expect_equal(got.final, want.final, tolerance.later, "weights after all steps");
}

void expect_bit_equal(const Trajectory& a, const Trajectory& b) {
  expect_equal(a.gradients, b.gradients, 0.0, "gradient of step 1, bit for bit,");
  expect_equal(a.final, b.final, 0.0, "weights after all steps, bit for bit,");
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
}

}  // namespace orthant::tests
