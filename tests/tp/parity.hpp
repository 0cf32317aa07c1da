// SPDX-License-Identifier: Apache-2.0
// Runs the same layers dense on one rank and sharded on t ranks that are threads, each layer's phases as compute tasks
// with what it declares, and compares outputs, input gradients and gathered weight gradients.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <orthant/core/model/declare.hpp>
#include <orthant/core/model/layer_factory.hpp>

namespace orthant::tp::tests {

struct Cell {
  int tp = 1;
  bool sequence_parallel = true;
  bool split = false;  ///< backward as I and W
  at::ScalarType type = at::kFloat;
  bool overlap = true;

  double tolerance() const { return type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-5 : 2e-2; }
};

/// {1, 2, 3, 4, 8} x sequence parallel x split x {fp32, fp64}; a few in bf16 and without overlap.
std::vector<Cell> all_cells();
std::string name_of(const testing::TestParamInfo<Cell>& info);

/// A test of each cell, with the same random inputs every time.
class CellTest : public testing::TestWithParam<Cell> {
 protected:
  void SetUp() override;
};

/// The layers under test, run as a stage's program runs them. By default one differentiable function of `input`.
class Subject {
 public:
  virtual ~Subject() = default;
  /// Keeps input and output.
  virtual at::Tensor forward(const at::Tensor& input, model::LayerPass& pass) = 0;
  /// Returns the gradient of `input`, or an undefined tensor.
  virtual at::Tensor backward(const at::Tensor& output_grad, model::LayerPass& pass);
  virtual void backward_weight(model::LayerPass& pass) { pass.run_deferred(); }
  virtual void declare(Phase phase, model::Declaration& out) const = 0;

 protected:
  at::Tensor input_, output_;
};

/// Which part of a global tensor a rank has.
struct Cut {
  enum class Kind : std::uint8_t {
    whole,
    rows,     ///< a range of rows, with sequence parallelism; else all
    columns,  ///< a range of the columns of each of `parts`, which stand side by side
  };
  Kind kind = Kind::rows;
  std::vector<std::int64_t> parts;

  at::Tensor of(const at::Tensor& full, int rank, const Cell& cell) const;
};

struct Case {
  at::Tensor input;        ///< global; floating-point ones are cast to the cell's type
  at::Tensor output_grad;  ///< global
  Cut input_part;
  Cut output_part;
  std::vector<shard::FlatUnit> units;
  std::function<std::unique_ptr<Subject>(model::LayerFactory&, model::Parameters)> make;
};

void expect_parity(const Case& test, const model::ModelConfig& config, const Cell& cell);

}  // namespace orthant::tp::tests
