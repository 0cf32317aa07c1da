// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/step/activation_bytes.hpp>

#include <algorithm>

#include <orthant/core/base/error.hpp>
#include <orthant/core/model/kernels/product.hpp>
#include <orthant/core/model/kernels/rms_norm.hpp>
#include <orthant/core/shard/placement.hpp>

// T rows of the whole sequence  N rows on this rank  D model  Q query columns  E = Q + 2 key/value columns  F ffn  V
// vocabulary, all on this rank. Letters behind a name are its sizes.

namespace orthant::step {
namespace {

using model::Recompute;

/// Bytes as they are taken and given.
class Tape {
 public:
  void take(std::int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void give(std::int64_t bytes) { live_ -= bytes; }
  /// Taken and given at once.
  void pass(std::int64_t bytes) {
    take(bytes);
    give(bytes);
  }
  PhaseBytes end() const { return {peak_, live_}; }

 private:
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

/// Bytes of everything a layer makes.
struct Sizes {
  explicit Sizes(const ActivationShape& shape)
      : s(shape),
        element(static_cast<std::int64_t>(size_of(shape.precision))),
        wide(shape.precision == DType::f64 ? 8 : 4) {}

  std::int64_t rows(std::int64_t columns) const { return s.rows * columns * element; }
  std::int64_t nd() const { return s.activation_bytes(); }
  std::int64_t td() const { return rows(s.hidden); }
  std::int64_t te() const { return rows(s.query + 2 * s.key_value); }
  std::int64_t tq() const { return rows(s.query); }
  std::int64_t tf() const { return rows(s.ffn); }
  std::int64_t tv() const { return rows(s.vocab); }
  std::int64_t probabilities() const { return rows(s.heads * s.seq); }
  std::int64_t rstd() const { return s.local_rows * wide; }
  /// A norm's weights as its kernel computes with them, where that is another type.
  std::int64_t wide_norm() const { return element == wide ? 0 : s.hidden * wide; }
  std::int64_t norm_partials() const {
    constexpr auto kRows = model::kernels::kRowsPerPartial;
    return (s.local_rows + kRows - 1) / kRows * s.hidden * wide;
  }
  /// The rows of all ranks, where they must be gathered.
  std::int64_t gathered() const { return s.gathers_rows ? td() : 0; }
  /// A weight gradient before it is added to the buffer, where it is made in another type than the buffer's.
  std::int64_t weight_grad(std::int64_t out, std::int64_t in) const {
    const bool in_place = element == wide || model::kernels::widens(at::kBFloat16);
    return in_place ? 0 : out * in * element;
  }

  const ActivationShape& s;
  std::int64_t element;
  std::int64_t wide;  ///< of an element of a gradient buffer
};

/// The sum over ranks of [T, D], which leaves [N, D].
void sum_rows(Tape& t, const Sizes& z) {
  t.take(z.td());
  if (!z.s.gathers_rows) return;
  t.take(z.nd());
  t.give(z.td());
}

/// Adds such a sum to what is there: leaves another [N, D].
void residual(Tape& t, const Sizes& z) {
  sum_rows(t, z);
  t.take(z.nd());
  t.give(z.nd());
}

void norm_forward(Tape& t, const Sizes& z) {
  t.take(z.wide_norm() + z.nd() + z.rstd());
  t.give(z.wide_norm());
}

/// Leaves the input's gradient; gives up the output's, the input `x` that was kept and its statistics.
void norm_backward(Tape& t, const Sizes& z, std::int64_t x) {
  t.pass(z.wide_norm() + z.norm_partials() + z.nd());
  t.take(z.nd());
  t.give(z.nd() + x + z.rstd());
}

/// [N, D] -> [T, columns].
void column_forward(Tape& t, const Sizes& z, std::int64_t out) {
  t.take(z.gathered() + out);
  t.give(z.gathered());
}

/// Leaves the input's gradient [N, D]. dy: [T, columns]. Whole: gives up dy and the input [N, D].
void column_backward(Tape& t, const Sizes& z, std::int64_t dy, std::int64_t columns, bool split) {
  if (split) return sum_rows(t, z);
  const auto moved = z.gathered() + (z.s.gathers_rows ? z.td() : 0);  // the input's rows; the sum's terms
  t.take(moved + z.nd());
  t.pass(z.weight_grad(columns, z.s.hidden));
  t.give(moved + dy + z.nd());
}

/// Leaves the input's gradient [T, columns]. Whole: gives up the input x.
void row_backward(Tape& t, const Sizes& z, std::int64_t x, std::int64_t columns, bool split) {
  t.take(z.gathered() + x);
  if (split) return;
  t.pass(z.weight_grad(z.s.hidden, columns));
  t.give(z.gathered() + x);
}

/// What attention makes from the fused projection, and its scratch.
void attention_forward(Tape& t, const Sizes& z) {
  t.take(z.te() + z.probabilities() + z.tq());
  t.pass(z.tq());
}

std::int64_t dropped_attention(const Sizes& z) { return z.te() + z.probabilities() + z.tq(); }
std::int64_t dropped_mlp(const Sizes& z) { return z.nd() + 3 * z.tf(); }

/// With a graph, kept are: both norms' outputs and statistics, heads, probabilities, context, the residual between,
/// gate and up, their product, and the output.
void block_forward(Tape& t, const Sizes& z, const Recompute& recompute) {
  norm_forward(t, z);
  column_forward(t, z, z.te());
  attention_forward(t, z);
  if (!recompute.attention) t.give(z.te());  // the fused projection
  residual(t, z);
  if (recompute.attention) t.give(dropped_attention(z));
  norm_forward(t, z);
  column_forward(t, z, 2 * z.tf());
  t.take(z.tf());
  residual(t, z);
  if (recompute.mlp) t.give(dropped_mlp(z));
}

/// Only the output is left.
void block_forward_without_graph(Tape& t, const Sizes& z) {
  norm_forward(t, z);
  t.give(z.rstd());
  column_forward(t, z, z.te());
  t.give(z.nd());
  attention_forward(t, z);
  t.give(2 * z.te() + z.probabilities());
  residual(t, z);
  t.give(z.tq());
  norm_forward(t, z);
  t.give(z.rstd());
  column_forward(t, z, 2 * z.tf());
  t.give(z.nd());
  t.take(z.tf());
  t.give(2 * z.tf());
  residual(t, z);
  t.give(z.tf() + z.nd());
}

void recompute_dropped(Tape& t, const Sizes& z, const Recompute& recompute) {
  if (recompute.attention) {
    attention_forward(t, z);
    t.give(z.te());  // the fused projection
  }
  if (!recompute.mlp) return;
  norm_forward(t, z);
  t.give(z.rstd());
  column_forward(t, z, 2 * z.tf());
  t.take(z.tf());
}

void attention_backward(Tape& t, const Sizes& z) {
  t.take(z.tq() + z.probabilities() + z.te());
  t.pass(z.tq());
  t.give(2 * z.tq() + z.probabilities());  // with the context's gradient
  t.give(z.te() + z.probabilities());      // what forward kept
}

void block_backward(Tape& t, const Sizes& z, const Recompute& recompute, bool split) {
  if (recompute.block) {
    block_forward(t, z, {});
  } else {
    recompute_dropped(t, z, recompute);
  }
  const auto e = z.s.query + 2 * z.s.key_value;
  row_backward(t, z, z.tf(), z.s.ffn, split);
  t.take(2 * z.tf());
  t.give(3 * z.tf());
  column_backward(t, z, 2 * z.tf(), 2 * z.s.ffn, split);
  norm_backward(t, z, z.nd());
  row_backward(t, z, z.tq(), z.s.query, split);
  attention_backward(t, z);
  column_backward(t, z, z.te(), e, split);
  norm_backward(t, z, 0);
  // Without row gathers, both gradients of residual sums wait with the weight gradients that need them.
  const bool held = split && !z.s.gathers_rows;
  t.give(z.nd());                 // the output
  if (!held) t.give(2 * z.nd());  // the gradient that came in, and the residual's
}

/// Weight gradients wait with both ends of every product.
std::int64_t waiting(const Sizes& z) { return z.te() + z.tq() + 3 * z.tf() + 2 * z.nd() + 2 * z.td(); }

void block_backward_weight(Tape& t, const Sizes& z) {
  const auto d = z.s.hidden;
  t.pass(z.weight_grad(d, z.s.ffn));
  t.pass(z.gathered() + z.weight_grad(2 * z.s.ffn, d));
  t.pass(z.weight_grad(d, z.s.query));
  t.pass(z.gathered() + z.weight_grad(z.s.query + 2 * z.s.key_value, d));
  t.give(waiting(z));
}

/// The logits turn into their own gradient, which is kept.
void head_forward(Tape& t, const Sizes& z) {
  norm_forward(t, z);
  column_forward(t, z, z.tv());
  t.pass(3 * z.s.rows * z.wide + 2 * z.wide);  // largest logits, two sums; the loss, twice
  t.take(z.wide);
}

void head_backward(Tape& t, const Sizes& z, bool split) {
  t.take(z.wide);
  column_backward(t, z, z.tv(), z.s.vocab, split);
  norm_backward(t, z, 0);
  t.give(2 * z.wide);
}

template <class Phase, class... Arguments>
PhaseBytes phase(const Phase& body, const Arguments&... arguments) {
  Tape tape;
  body(tape, arguments...);
  return tape.end();
}

}  // namespace

ActivationShape activation_shape(const model::ModelConfig& model, const ActivationOptions& options) {
  const auto rows = options.seq * options.batch;
  const auto shards = options.sequence_parallel ? options.tp : 1;
  invariant(rows % shards == 0 && model.heads % options.tp == 0 && model.kv_heads % options.tp == 0,
            "activation_shape: rows and heads are divisible by tp");
  const auto part = [&](std::int64_t whole) {
    return shard::balanced_range(whole, options.tp_rank, options.tp).length();
  };
  return {.rows = rows,
          .local_rows = rows / shards,
          .seq = options.seq,
          .hidden = model.hidden,
          .query = model.heads / options.tp * model.head_dim,
          .key_value = model.kv_heads / options.tp * model.head_dim,
          .heads = model.heads / options.tp,
          .ffn = part(model.ffn),
          .vocab = part(model.vocab),
          .precision = options.precision,
          .gathers_rows = options.sequence_parallel};
}

LayerBytes embedding_bytes(const ActivationShape& shape) {
  const Sizes z(shape);
  return {.forward = phase(sum_rows, z),
          .backward = {.peak = z.gathered(), .delta = -z.nd()},
          .backward_input = {},  // the gradient waits
          .backward_weight = {.peak = z.gathered(), .delta = -z.nd()}};
}

LayerBytes block_bytes(const ActivationShape& shape, const model::Recompute& recompute) {
  const Sizes z(shape);
  return {.forward = recompute.block ? phase(block_forward_without_graph, z) : phase(block_forward, z, recompute),
          .backward = phase(block_backward, z, recompute, false),
          .backward_input = phase(block_backward, z, recompute, true),
          .backward_weight = phase(block_backward_weight, z),
          .keeps_output = !recompute.block};
}

LayerBytes head_bytes(const ActivationShape& shape) {
  const Sizes z(shape);
  const auto weight = [](Tape& t, const Sizes& size) {
    t.pass(size.gathered() + size.weight_grad(size.s.vocab, size.s.hidden));
    t.give(size.tv() + size.nd());
  };
  return {.forward = phase(head_forward, z),
          .backward = phase(head_backward, z, false),
          .backward_input = phase(head_backward, z, true),
          .backward_weight = phase(weight, z)};
}

}  // namespace orthant::step
