// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/step/activation_bytes.hpp>

#include <algorithm>

#include <orthant/core/base/error.hpp>
#include <orthant/core/shard/placement.hpp>
#include <orthant/core/step/activation_tape.hpp>

namespace orthant::step {
namespace {

using model::Recompute;

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
  t.take(z.wide_norm(z.s.hidden) + z.nd() + z.rstd());
  t.give(z.wide_norm(z.s.hidden));
}

/// Leaves the input's gradient; gives up the output's, the input `x` that was kept and its statistics.
void norm_backward(Tape& t, const Sizes& z, std::int64_t x) {
  t.pass(z.wide_norm(z.s.hidden) + z.norm_partials(z.s.local_rows, z.s.hidden) + z.nd());
  t.take(z.nd());
  t.give(z.nd() + x + z.rstd());
}

/// [N, D] -> [T, columns]. Leaves what is kept of the input, which was a norm's alone.
void column_forward(Tape& t, const Sizes& z, std::int64_t out) {
  t.take(z.gathered() + out);
  t.give(z.gathered() + z.nd() - z.kept_input());
}

/// Leaves the input's gradient [N, D]. dy: [T, columns]. Whole: gives up dy and what was kept of the input.
void column_backward(Tape& t, const Sizes& z, std::int64_t dy, std::int64_t columns, bool split) {
  if (split) return sum_rows(t, z);
  const auto moved = z.gathered_again() + (z.s.gathers_rows ? z.td() : 0);  // the input's rows; the sum's terms
  t.take(moved + z.nd());
  t.pass(z.weight_grad(columns, z.s.hidden));
  t.give(moved + dy + z.kept_input());
}

/// Leaves the input's gradient [T, columns]. Whole: gives up the input x.
void row_backward(Tape& t, const Sizes& z, std::int64_t x, std::int64_t columns, bool split) {
  t.take(z.gathered() + x);
  if (split) return;
  t.pass(z.weight_grad(z.s.hidden, columns));
  t.give(z.gathered() + x);
}

/// Leaves the normed projection and the statistics. Each kind of heads is copied out, normed and copied back.
void head_norm_forward(Tape& t, const Sizes& z) {
  t.take(z.te());
  for (const auto columns : {z.s.query, z.s.key_value}) {
    const auto rstd = z.s.rows * columns / z.s.head_dim * z.wide;
    t.take(rstd);
    t.pass(z.wide_norm(z.s.head_dim) + 2 * z.rows(columns));
  }
}

/// Leaves the gradient of the projection; gives up the one that came in, the projection and the statistics.
void head_norm_backward(Tape& t, const Sizes& z) {
  t.take(z.te());
  for (const auto columns : {z.s.query, z.s.key_value}) {
    const auto rows = z.s.rows * columns / z.s.head_dim;
    t.pass(3 * z.rows(columns) + z.wide_norm(z.s.head_dim) + z.norm_partials(rows, z.s.head_dim));
  }
  t.give(2 * z.te() + z.head_rstd());
}

/// What attention makes from the fused projection, and its scratch. With norms of queries and keys the projection
/// stays.
void attention_forward(Tape& t, const Sizes& z) {
  if (z.s.qk_norm) head_norm_forward(t, z);
  t.take(z.te() + z.probabilities() + z.tq());
  t.pass(z.tq());
  if (z.s.qk_norm) t.give(z.te());
}

std::int64_t dropped_attention(const Sizes& z) { return z.te() + z.probabilities() + z.tq(); }
std::int64_t dropped_mlp(const Sizes& z) { return z.nd() + 3 * z.tf(); }

/// With a graph, kept are: both norms' outputs and statistics, heads, probabilities, context, the residual between,
/// gate and up, their product, and the output.
void block_forward(Tape& t, const Sizes& z, const Recompute& recompute) {
  norm_forward(t, z);
  column_forward(t, z, z.te());
  attention_forward(t, z);
  if (!recompute.attention && !z.s.qk_norm) t.give(z.te());  // the fused projection
  residual(t, z);
  if (recompute.attention) t.give(dropped_attention(z));
  norm_forward(t, z);
  column_forward(t, z, 2 * z.tf());
  if (recompute.mlp && z.keeps_gathered()) t.take(z.nd());  // until it is dropped
  t.take(z.tf());
  residual(t, z);
  if (recompute.mlp) t.give(dropped_mlp(z));
}

/// Only the output is left.
void block_forward_without_graph(Tape& t, const Sizes& z) {
  norm_forward(t, z);
  t.give(z.rstd());
  column_forward(t, z, z.te());
  t.give(z.kept_input());
  attention_forward(t, z);
  t.give(2 * z.te() + z.probabilities() + z.head_rstd());
  residual(t, z);
  t.give(z.tq());
  norm_forward(t, z);
  t.give(z.rstd());
  column_forward(t, z, 2 * z.tf());
  t.give(z.kept_input());
  t.take(z.tf());
  t.give(2 * z.tf());
  residual(t, z);
  t.give(z.tf() + z.nd());
}

void recompute_dropped(Tape& t, const Sizes& z, const Recompute& recompute) {
  if (recompute.attention) {
    attention_forward(t, z);
    t.give(z.head_rstd());
    if (!z.s.qk_norm) t.give(z.te());  // the fused projection
  }
  if (!recompute.mlp) return;
  norm_forward(t, z);
  t.give(z.rstd());
  t.take(z.gathered() + 2 * z.tf());
  t.give(z.gathered());
  t.take(z.tf());
  if (z.keeps_gathered()) t.give(z.nd());  // nobody needs the norm's output again
}

void attention_backward(Tape& t, const Sizes& z) {
  t.take(z.tq() + z.probabilities() + z.te());
  t.pass(z.tq());
  t.give(2 * z.tq() + z.probabilities());  // with the context's gradient
  t.give(z.te() + z.probabilities());      // what forward kept
  if (z.s.qk_norm) head_norm_backward(t, z);
}

void block_backward(Tape& t, const Sizes& z, const Recompute& recompute, bool split) {
  if (recompute.block) {
    block_forward(t, z, {});
  } else {
    recompute_dropped(t, z, recompute);
  }
  const auto e = z.s.query + 2 * z.s.key_value;
  // Without row gathers, what went into a row-parallel layer's backward waits with its weight gradient.
  const bool waits = split && !z.s.gathers_rows;
  const auto row_branch = [&](std::int64_t x, std::int64_t columns) {
    if (z.s.dropout) t.take(z.nd());
    row_backward(t, z, x, columns, split);
    if (z.s.dropout && !waits) t.give(z.nd());
  };
  row_branch(z.tf(), z.s.ffn);
  t.take(2 * z.tf());
  t.give(3 * z.tf());
  column_backward(t, z, 2 * z.tf(), 2 * z.s.ffn, split);
  norm_backward(t, z, z.nd());
  row_branch(z.tq(), z.s.query);
  attention_backward(t, z);
  column_backward(t, z, z.te(), e, split);
  norm_backward(t, z, 0);
  t.give(z.nd());  // the output
  // The gradient that came in, and the residual's: without dropout they are what waits.
  if (!waits || z.s.dropout) t.give(2 * z.nd());
}

/// Weight gradients wait with both ends of every product.
std::int64_t waiting(const Sizes& z) { return z.te() + z.tq() + 3 * z.tf() + 2 * z.kept_input() + 2 * z.td(); }

void block_backward_weight(Tape& t, const Sizes& z) {
  const auto d = z.s.hidden;
  t.pass(z.weight_grad(d, z.s.ffn));
  t.pass(z.gathered_again() + z.weight_grad(2 * z.s.ffn, d));
  t.pass(z.weight_grad(d, z.s.query));
  t.pass(z.gathered_again() + z.weight_grad(z.s.query + 2 * z.s.key_value, d));
  t.give(waiting(z));
}

/// A chunk of logits, where the head makes them by chunks.
std::int64_t logits_chunk(const Sizes& z) { return z.s.loss_rows * z.s.vocab * z.element; }
/// What such a head keeps of its rows.
std::int64_t row_statistics(const Sizes& z) { return 2 * z.s.rows * z.wide; }

void chunked_head_forward(Tape& t, const Sizes& z) {
  norm_forward(t, z);
  t.take(z.gathered() + row_statistics(z) + z.wide);
  t.pass(logits_chunk(z) + 3 * z.s.loss_rows * z.wide + 2 * z.wide);
  t.give(z.gathered());
}

void chunked_head_backward(Tape& t, const Sizes& z, bool split) {
  t.take(z.wide + z.gathered() + z.td());
  t.pass(logits_chunk(z) + (split ? 0 : z.weight_grad(z.s.vocab, z.s.hidden)));
  if (z.s.gathers_rows) {
    t.take(z.nd());
    t.give(z.td());
  }
  t.give(z.gathered());
  if (!split) t.give(z.nd() + row_statistics(z));
  norm_backward(t, z, 0);
  t.give(2 * z.wide);
}

void chunked_head_backward_weight(Tape& t, const Sizes& z) {
  t.pass(z.gathered() + logits_chunk(z) + z.weight_grad(z.s.vocab, z.s.hidden));
  t.give(z.nd() + row_statistics(z));
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
  invariant(rows % shards == 0 && model.heads % options.tp == 0,
            "activation_shape: rows and heads are divisible by tp");
  const auto part = [&](std::int64_t whole) {
    return shard::balanced_range(whole, options.tp_rank, options.tp).length();
  };
  return {.rows = rows,
          .local_rows = rows / shards,
          .seq = options.seq,
          .hidden = model.hidden,
          .query = model.heads / options.tp * model.head_dim,
          .key_value = std::max<std::int64_t>(model.kv_heads / options.tp, 1) * model.head_dim,
          .heads = model.heads / options.tp,
          .head_dim = model.head_dim,
          .qk_norm = model.qk_norm,
          .dropout = model.dropout > 0,
          .loss_rows = std::min(model.loss_rows, rows),
          .ffn = part(model.ffn),
          .vocab = part(model.vocab),
          .precision = options.precision,
          .gathers_rows = options.sequence_parallel,
          .keeps_gathered = options.keep_gathered};
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
  if (shape.loss_rows > 0) {
    return {.forward = phase(chunked_head_forward, z),
            .backward = phase(chunked_head_backward, z, false),
            .backward_input = phase(chunked_head_backward, z, true),
            .backward_weight = phase(chunked_head_backward_weight, z)};
  }
  const auto weight = [](Tape& t, const Sizes& size) {
    t.pass(size.gathered_again() + size.weight_grad(size.s.vocab, size.s.hidden));
    t.give(size.tv() + size.kept_input());
  };
  return {.forward = phase(head_forward, z),
          .backward = phase(head_backward, z, false),
          .backward_input = phase(head_backward, z, true),
          .backward_weight = phase(weight, z)};
}

}  // namespace orthant::step
