// SPDX-License-Identifier: Apache-2.0
// What activation_bytes.hpp says a layer takes is what the counting allocator sees the layer take: kept bytes exactly,
// on one rank and on two tensor-parallel ones, in both precisions, with whole and split backward; peaks never over the
// prediction, and not far below it.
#include <orthant/core/step/activation_bytes.hpp>

#include <algorithm>
#include <barrier>
#include <memory>
#include <numeric>

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <orthant/core/memory/counting_allocator.hpp>
#include <orthant/core/model/dense_factory.hpp>
#include <orthant/core/model/kernels/product.hpp>
#include <orthant/core/model/tensor_span.hpp>
#include <orthant/core/step/llama_program.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/tests/harness/run_ranks.hpp>
#include <orthant/tp/sharded_factory.hpp>

namespace orthant::step {
namespace {

using memory::CountingAllocator;

CountingAllocator& allocator = CountingAllocator::install();

constexpr model::ModelConfig kPlain{
    .layers = 2, .hidden = 48, .heads = 8, .kv_heads = 4, .head_dim = 6, .ffn = 92, .vocab = 194};
constexpr model::ModelConfig kRich{.layers = 2,
                                   .hidden = 48,
                                   .heads = 8,
                                   .kv_heads = 1,  // which two ranks share
                                   .head_dim = 6,
                                   .ffn = 92,
                                   .vocab = 194,
                                   .dropout = 0.1,
                                   .z_loss = 1e-3,
                                   .loss_rows = 24,
                                   .qk_norm = true};
constexpr model::RowShape kRows{.seq = 40, .batch = 2};

enum class Layer : std::uint8_t { embedding, block, head };
enum class Factory : std::uint8_t { dense, sharded };

struct Case {
  Layer layer = Layer::block;
  Factory factory = Factory::sharded;
  int tp = 1;
  bool sequence_parallel = true;
  DType precision = DType::f32;
  bool split = false;
  model::Recompute recompute = {};
  bool rich =
      false;  ///< norms of queries and keys, dropout, a shared key/value head, logits by chunks, gathered rows kept

  const model::ModelConfig& model() const { return rich ? kRich : kPlain; }
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  const char* layers[] = {"Embedding", "Block", "Head"};
  std::string recompute = c.recompute.block ? "FullRecompute" : "";
  if (c.recompute.attention) recompute += "Attention";
  if (c.recompute.mlp) recompute += "Mlp";
  return fmt::format("{}{}{}{}{}{}{}", layers[static_cast<int>(c.layer)],
                     c.factory == Factory::dense ? "Dense" : fmt::format("Tp{}", c.tp),
                     c.sequence_parallel ? "SequenceParallel" : "", name_of(c.precision), c.split ? "Split" : "Whole",
                     recompute, c.rich ? "Rich" : "");
}

constexpr model::Recompute kRecomputes[] = {
    {}, {.block = true}, {.attention = true}, {.mlp = true}, {.attention = true, .mlp = true}};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const auto add = [&](Case c) {
    for (const DType precision : {DType::f32, DType::bf16}) {
      for (const bool split : {false, true}) {
        c.precision = precision;
        c.split = split;
        c.layer = Layer::block;
        for (const model::Recompute& recompute : kRecomputes) {
          c.recompute = recompute;
          cases.push_back(c);
        }
        c.recompute = {};
        for (const Layer layer : {Layer::embedding, Layer::head}) {
          c.layer = layer;
          cases.push_back(c);
        }
      }
    }
  };
  add({.factory = Factory::dense, .sequence_parallel = false});
  for (const int tp : {1, 2}) {
    for (const bool sequence_parallel : {false, true}) {
      add({.tp = tp, .sequence_parallel = sequence_parallel});
      add({.tp = tp, .sequence_parallel = sequence_parallel, .rich = true});
    }
  }
  return cases;
}

/// One rank with one layer.
class Bench {
 public:
  Bench(const Case& test, comm::Fabric& fabric)
      : test_(test),
        scheduler_({.on_failure = [&fabric](std::exception_ptr) { fabric.abort("another rank failed"); }}) {
    std::vector<int> all(static_cast<std::size_t>(test.tp));
    std::iota(all.begin(), all.end(), 0);
    group_ = fabric.make_collectives("tp", all);
    compute_ = scheduler_.add_stream("compute", stream::StreamKind::compute);
    const comm::Lane lane{group_.get(), scheduler_.add_stream("tp", stream::StreamKind::request)};
    const model::Parameters parameters{table_, store_};
    if (test.factory == Factory::dense) {
      factory_ = std::make_unique<model::DenseFactory>(test.model(), parameters);
    } else {
      factory_ = std::make_unique<tp::ShardedFactory>(
          test.model(), parameters, lane,
          tp::TpOptions{.sequence_parallel = test.sequence_parallel, .keep_gathered = test.rich});
    }
    layer_ = LayerId{test.layer == Layer::embedding ? 0 : test.layer == Layer::block ? 1 : 3};
    const RankSpec spec{.model = test.model(),
                        .rows = kRows,
                        .stages = {{StageId{0}, layer_, layer_}},
                        .microbatches = 1,
                        .precision = test.precision,
                        .checkpoint = {.recompute = test.recompute}};
    program_ = std::make_unique<LlamaProgram>(
        spec, *factory_, parameters, [](const StepInput&, MicrobatchId, std::int64_t* inputs, std::int64_t* targets) {
          std::fill_n(inputs, kRows.rows(), 5);
          std::fill_n(targets, kRows.rows(), 7);
        });
    const auto type = model::scalar_type(test.precision);
    for (const auto& unit : table_.units()) {
      store_.bind(unit.id, at::zeros({unit.numel}, type), at::zeros({unit.numel}, at::kFloat));
    }
    program_->begin({});
  }

  void receive(train::Payload payload) {
    const auto held = program_->make_input(payload, StageId{0}, MicrobatchId{0});
    std::memset(held.span.data, 0, held.span.bytes());
  }
  void send(train::Payload payload) { static_cast<void>(program_->take_output(payload, StageId{0}, MicrobatchId{0})); }

  void run(Phase phase) {
    const train::StageProgram::Step step{
        .phase = phase, .stage = StageId{0}, .layer = layer_, .microbatch = MicrobatchId{0}};
    auto outline = program_->outline(phase, layer_);
    scheduler_.wait(scheduler_.submit({.name = "phase",
                                       .stream = compute_,
                                       .body = [this, step](stream::TaskScope& scope) { program_->run(step, scope); },
                                       .nested = std::move(outline.nested),
                                       .segments = std::move(outline.segments)}));
  }

 private:
  const Case& test_;
  std::unique_ptr<comm::Collectives> group_;
  shard::ParameterTable table_;
  model::ParameterStore store_;
  std::unique_ptr<model::LayerFactory> factory_;
  std::unique_ptr<LlamaProgram> program_;
  LayerId layer_;
  stream::StreamId compute_;
  stream::CpuScheduler scheduler_;
};

/// Sums over all ranks, which take each phase together.
struct Seen {
  PhaseBytes forward, backward, weight;
};

Seen measure(const Case& test) {
  Seen seen;
  std::barrier together(test.tp);
  orthant::tests::run_ranks(test.tp, [&](comm::Fabric& fabric) {
    Bench bench(test, fabric);
    const auto phase = [&](Phase what, PhaseBytes& into) {
      std::int64_t before = 0;
      together.arrive_and_wait();
      if (fabric.rank() == 0) {
        allocator.reset_peak();
        before = allocator.live_bytes();
      }
      together.arrive_and_wait();
      bench.run(what);
      together.arrive_and_wait();
      if (fabric.rank() == 0) into = {allocator.peak_bytes() - before, allocator.live_bytes() - before};
      together.arrive_and_wait();
    };
    if (test.layer != Layer::embedding) bench.receive(train::Payload::activation);
    phase(Phase::forward, seen.forward);
    if (test.layer != Layer::head) {
      bench.send(train::Payload::activation);
      bench.receive(train::Payload::gradient);
    }
    phase(test.split ? Phase::backward_input : Phase::backward, seen.backward);
    if (test.layer != Layer::embedding) bench.send(train::Payload::gradient);
    if (test.split) phase(Phase::backward_weight, seen.weight);
  });
  return seen;
}

ActivationShape predict_shape(const Case& test, int rank) {
  return activation_shape(test.model(), {.seq = kRows.seq,
                                         .batch = kRows.batch,
                                         .precision = test.precision,
                                         .tp = test.tp,
                                         .tp_rank = rank,
                                         .sequence_parallel = test.sequence_parallel,
                                         .keep_gathered = test.rich});
}

LayerBytes predict(const Case& test, const ActivationShape& shape) {
  return test.layer == Layer::embedding ? embedding_bytes(shape)
         : test.layer == Layer::block   ? block_bytes(shape, test.recompute)
                                        : head_bytes(shape);
}

// V = 32000, 2048 rows, fp32, on one rank; the dense form takes four times as much.
TEST(HeadBytes, OfAChunkedHeadAreLittleMoreThanAChunkOfLogits) {
  model::ModelConfig config{.layers = 1, .hidden = 512, .heads = 8, .kv_heads = 8, .vocab = 32000, .loss_rows = 512};
  const auto shape = [&] { return activation_shape(config, {.seq = 1024, .batch = 2}); };
  const double logits = 4.0 * 32000 * 512;
  const auto bytes = head_bytes(shape());
  for (const auto& phase : {bytes.forward, bytes.backward, bytes.backward_input, bytes.backward_weight})
    EXPECT_LT(static_cast<double>(phase.peak), 1.2 * logits);
  config.loss_rows = 0;
  EXPECT_GT(static_cast<double>(head_bytes(shape()).backward.peak + head_bytes(shape()).forward.delta), 4 * logits);
}

/// Where the processor multiplies bf16, the library's products take scratch besides: at most as much as one whose every
/// dimension is the longest here.
std::int64_t product_scratch(const Case& test) {
  if (test.precision != DType::bf16 || model::kernels::widens(at::kBFloat16)) return 0;
  const auto longest = std::max(test.model().vocab, 2 * test.model().ffn);
  const auto factor = at::zeros({longest, longest}, at::kBFloat16), out = at::zeros_like(factor);
  allocator.reset_peak();
  const auto before = allocator.live_bytes();
  model::kernels::product_into(out, factor.t(), factor);
  return test.tp * (allocator.peak_bytes() - before);
}

class ActivationBytes : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Layers, ActivationBytes, testing::ValuesIn(all_cases()), name_of);

TEST_P(ActivationBytes, AreWhatTheAllocatorCounts) {
  const Case& test = GetParam();
  Seen wanted;
  const auto add = [](PhaseBytes& sum, const PhaseBytes& part) {
    sum.peak += part.peak;
    sum.delta += part.delta;
  };
  for (int rank = 0; rank < test.tp; ++rank) {
    const auto shape = predict_shape(test, rank);
    const LayerBytes bytes = predict(test, shape);
    add(wanted.forward, bytes.forward);
    add(wanted.backward, test.split ? bytes.backward_input : bytes.backward);
    if (test.split) add(wanted.weight, bytes.backward_weight);
    const std::int64_t tokens = 2 * 8 * kRows.rows();  // inputs and targets, which stay
    if (test.layer != Layer::block) add(wanted.forward, {tokens, tokens});
    // Nobody else holds the layer's input.
    if (test.layer != Layer::embedding) wanted.backward.delta -= shape.activation_bytes();
    EXPECT_EQ(bytes.forward.delta + bytes.backward.delta,
              bytes.forward.delta + bytes.backward_input.delta + bytes.backward_weight.delta);
  }
  const Seen seen = measure(test);
  const auto scratch = product_scratch(test);
  const auto expect = [&](const char* what, const PhaseBytes& found, const PhaseBytes& predicted) {
    SCOPED_TRACE(what);
    EXPECT_EQ(found.delta, predicted.delta);
    EXPECT_LE(found.peak, predicted.peak + scratch);
    if (test.tp > 1) return;  // several ranks' peaks do not come at once
    // A sum under way keeps its terms until it is through, which on one rank is at once.
    const auto terms = predict_shape(test, 0).activation_bytes();
    EXPECT_GE(1.03 * static_cast<double>(found.peak + terms), static_cast<double>(predicted.peak));
  };
  expect("forward", seen.forward, wanted.forward);
  expect("backward", seen.backward, wanted.backward);
  if (test.split) expect("weight", seen.weight, wanted.weight);
}

}  // namespace
}  // namespace orthant::step
