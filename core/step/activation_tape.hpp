// SPDX-License-Identifier: Apache-2.0
// What activation_bytes.cpp counts with: bytes as they are taken and given, and the sizes of everything a layer makes.
// Letters behind a name are its sizes, all on this rank: T rows of the whole sequence, N rows on this rank, D model,
// Q query columns, E = Q + 2 key/value columns, F ffn, V vocabulary.
#pragma once

#include <algorithm>

#include <orthant/core/model/kernels/product.hpp>
#include <orthant/core/model/kernels/rms_norm.hpp>
#include <orthant/core/step/activation_bytes.hpp>

namespace orthant::step {

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
  std::int64_t wide_norm(std::int64_t columns) const { return element == wide ? 0 : columns * wide; }
  std::int64_t norm_partials(std::int64_t rows, std::int64_t columns) const {
    constexpr auto kRows = model::kernels::kRowsPerPartial;
    return (rows + kRows - 1) / kRows * columns * wide;
  }
  /// Statistics of the norms of queries and keys.
  std::int64_t head_rstd() const { return s.qk_norm ? s.rows * (s.query + s.key_value) / s.head_dim * wide : 0; }
  /// The rows of all ranks, where they must be gathered.
  std::int64_t gathered() const { return s.gathers_rows ? td() : 0; }
  bool keeps_gathered() const { return s.gathers_rows && s.keeps_gathered; }
  /// The same in backward, of a column-parallel layer's input.
  std::int64_t gathered_again() const { return keeps_gathered() ? 0 : gathered(); }
  /// What such a layer keeps of it.
  std::int64_t kept_input() const { return keeps_gathered() ? td() : nd(); }
  /// A weight gradient before it is added to the buffer, where it is made in another type than the buffer's.
  std::int64_t weight_grad(std::int64_t out, std::int64_t in) const {
    const bool in_place = element == wide || model::kernels::widens(at::kBFloat16);
    return in_place ? 0 : out * in * element;
  }

  const ActivationShape& s;
  std::int64_t element;
  std::int64_t wide;  ///< of an element of a gradient buffer
};

}  // namespace orthant::step
