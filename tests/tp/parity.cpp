// SPDX-License-Identifier: Apache-2.0
#include <orthant/tests/tp/parity.hpp>

#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <orthant/core/model/dense_factory.hpp>
#include <orthant/core/model/init.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/tests/harness/run_ranks.hpp>
#include <orthant/tests/tp/tasks.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace orthant::tp::tests {
namespace {

using model::Declaration;
using model::LayerPass;

/// What one rank (or the dense model) made.
struct Outcome {
  at::Tensor output, input_grad;
  std::map<std::string, at::Tensor> weight_grads;  ///< global, flat; zero where this rank has nothing
};

at::Tensor cast(const at::Tensor& t, at::ScalarType type) { return t.is_floating_point() ? t.to(type) : t; }

/// A rank's parameters with buffers of their own: weights from the seed, gradients that must be overwritten.
class Weights {
 public:
  explicit Weights(const std::vector<shard::FlatUnit>& units) {
    for (const auto& unit : units) table_.add_unit(unit);
  }

  model::Parameters parameters() { return {table_, store_}; }

  void bind(at::ScalarType type) {
    const bool is_double = type == at::kDouble;
    for (const auto& unit : table_.units()) {
      auto values = at::zeros({unit.numel}, is_double ? at::kDouble : at::kFloat);
      model::init_unit(table_, {.seed = 7, .std = 0.3}, {.unit = unit, .begin = 0, .values = values});
      auto grads = at::full({unit.numel}, std::numeric_limits<double>::quiet_NaN(), values.options());
      store_.bind(unit.id, values.to(type), grads);
      grads_[unit.id.value] = grads;
    }
  }

  std::map<std::string, at::Tensor> gathered_grads() const {
    std::map<std::string, at::Tensor> all;
    for (const auto& parameter : table_.parameters()) {
      const auto& grads = grads_.at(parameter.unit.value);
      auto global = at::zeros({shard::numel(parameter.placement.global_shape)}, grads.options());
      for (const auto& run : parameter.placement.runs()) {
        global.narrow(0, run.global, run.length).copy_(grads.narrow(0, parameter.offset + run.local, run.length));
      }
      all[parameter.name] = global;
    }
    return all;
  }

  /// Whether each rank has the whole gradient, and not one part or term of it.
  bool is_whole(const std::string& name) const {
    for (const auto& parameter : table_.parameters()) {
      if (parameter.name == name) return parameter.placement.is_replicated() && !parameter.partial;
    }
    return false;
  }

 private:
  shard::ParameterTable table_;
  model::ParameterStore store_;
  std::map<int, at::Tensor> grads_;
};

/// All that bodies touch. Made before the scheduler, so that it outlives the body that another rank's failure leaves
/// running.
struct State {
  explicit State(const Case& test) : weights(test.units) {}

  void make(const Case& test, std::unique_ptr<model::LayerFactory> from, const Cell& cell) {
    factory = std::move(from);
    subject = test.make(*factory, weights.parameters());
    weights.bind(cell.type);
  }

  Weights weights;
  std::unique_ptr<model::LayerFactory> factory;
  std::unique_ptr<Subject> subject;
  LayerPass pass;
  at::Tensor input, output_grad;
  Outcome outcome;
};

void run_phases(State& state, Tasks& tasks, bool split) {
  const auto run = [&](const char* name, Phase phase, std::function<void()> body) {
    Declaration declared;
    state.subject->declare(phase, declared);
    tasks.run(name, state.pass, std::move(declared), std::move(body));
  };
  state.pass.split = split;
  run("F", Phase::forward,
      [&state] { state.outcome.output = state.subject->forward(state.input, state.pass).detach(); });
  const auto backward = [&state] { state.outcome.input_grad = state.subject->backward(state.output_grad, state.pass); };
  const auto backward_weight = [&state] { state.subject->backward_weight(state.pass); };
  if (split) {
    run("I", Phase::backward_input, backward);
    run("W", Phase::backward_weight, backward_weight);
  } else {
    run("B", Phase::backward, [backward, backward_weight] {
      backward();
      backward_weight();
    });
  }
  EXPECT_TRUE(state.pass.deferred.empty());
  state.outcome.weight_grads = state.weights.gathered_grads();
}

std::vector<int> members(int count) {
  std::vector<int> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

Outcome run_dense(const Case& test, const model::ModelConfig& config, const Cell& cell) {
  Outcome outcome;
  orthant::tests::run_ranks(1, [&](comm::Fabric& fabric) {
    const auto group = fabric.make_collectives("tp", members(1));
    State state(test);
    stream::CpuScheduler scheduler;
    Tasks tasks(scheduler, *group);
    state.make(test, std::make_unique<model::DenseFactory>(config, state.weights.parameters()), cell);
    state.input = cast(test.input, cell.type);
    state.output_grad = cast(test.output_grad, cell.type);
    run_phases(state, tasks, false);
    outcome = state.outcome;
  });
  return outcome;
}

void expect_close(const at::Tensor& found, const at::Tensor& wanted, double tolerance, const std::string& what) {
  ASSERT_EQ(found.sizes(), wanted.sizes()) << what;
  const auto reference = wanted.to(at::kDouble);
  const double difference = found.to(at::kDouble).sub(reference).norm().item<double>();
  EXPECT_LE(difference, tolerance * reference.norm().item<double>()) << what;  // also false for NaN
}

}  // namespace

std::vector<Cell> all_cells() {
  std::vector<Cell> cells;
  for (int tp : {1, 2, 3, 4, 8})
    for (bool sequence_parallel : {false, true})
      for (bool split : {false, true})
        for (auto type : {at::kFloat, at::kDouble}) cells.push_back({tp, sequence_parallel, split, type});
  for (bool sequence_parallel : {false, true}) {
    cells.push_back({4, sequence_parallel, sequence_parallel, at::kBFloat16});
    cells.push_back({2, sequence_parallel, false, at::kDouble, false});
  }
  return cells;
}

std::string name_of(const testing::TestParamInfo<Cell>& info) {
  const Cell& cell = info.param;
  return fmt::format("Tp{}{}{}{}{}", cell.tp, cell.sequence_parallel ? "SequenceParallel" : "",
                     cell.split ? "Split" : "Whole", at::toString(cell.type), cell.overlap ? "" : "WithoutOverlap");
}

void CellTest::SetUp() {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);  // which starts anywhere
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(7);
}

at::Tensor Subject::backward(const at::Tensor& output_grad, LayerPass&) {
  output_.backward(output_grad);
  return input_.grad();
}

at::Tensor Cut::of(const at::Tensor& full, int rank, const Cell& cell) const {
  if (kind == Kind::whole || (kind == Kind::rows && !cell.sequence_parallel)) return full;
  if (kind == Kind::rows) return full.narrow(0, rank * full.size(0) / cell.tp, full.size(0) / cell.tp).clone();
  std::vector<at::Tensor> pieces;
  std::int64_t begin = 0;
  for (std::int64_t part : parts) {
    const auto range = shard::balanced_range(part, rank, cell.tp);
    pieces.push_back(full.narrow(1, begin + range.begin, range.length()));
    begin += part;
  }
  return at::cat(pieces, 1);
}

void expect_parity(const Case& test, const model::ModelConfig& config, const Cell& cell) {
  const Outcome dense = run_dense(test, config, cell);
  std::mutex mutex;
  std::map<std::string, at::Tensor> sums;

  orthant::tests::run_ranks(cell.tp, [&](comm::Fabric& fabric) {
    const auto group = fabric.make_collectives("tp", members(cell.tp));
    State state(test);
    stream::CpuScheduler scheduler({.deadline = std::chrono::seconds(30),
                                    .on_failure = [&](std::exception_ptr) { fabric.abort("another rank failed"); }});
    Tasks tasks(scheduler, *group);
    const TpOptions options{.sequence_parallel = cell.sequence_parallel, .overlap = cell.overlap};
    state.make(test, std::make_unique<ShardedFactory>(config, state.weights.parameters(), tasks.lane(), options), cell);

    const auto part = [&](const Cut& cut, const at::Tensor& full) { return cut.of(full, fabric.rank(), cell); };
    state.input = cast(part(test.input_part, test.input), cell.type);
    state.output_grad = cast(part(test.output_part, test.output_grad), cell.type);
    run_phases(state, tasks, cell.split);

    const std::lock_guard guard(mutex);
    expect_close(state.outcome.output, part(test.output_part, dense.output), cell.tolerance(), "output");
    ASSERT_EQ(state.outcome.input_grad.defined(), dense.input_grad.defined());
    if (dense.input_grad.defined()) {
      expect_close(state.outcome.input_grad, part(test.input_part, dense.input_grad), cell.tolerance(),
                   "input gradient");
    }
    for (const auto& [name, grad] : state.outcome.weight_grads) {
      if (state.weights.is_whole(name)) {
        expect_close(grad, dense.weight_grads.at(name), cell.tolerance(), name);
      } else {
        auto& sum = sums.try_emplace(name, at::zeros_like(grad)).first->second;
        sum.add_(grad);
      }
    }
  });
  for (const auto& [name, sum] : sums) expect_close(sum, dense.weight_grads.at(name), cell.tolerance(), name);
}

}  // namespace orthant::tp::tests
