// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/rank_sum.hpp>

#include <algorithm>
#include <string>

#include <orthant/core/base/error.hpp>

namespace orthant::comm {
namespace {

// Rows are added through a block that stays in the first-level cache; `out` is written after all rows of a block were
// read, which is what lets it be one of them.
constexpr std::int64_t kBlock = 1024;

struct Bf16 {
  std::uint16_t bits;
};

float load(Bf16 v) { return bf16_to_float(v.bits); }
template <class T>
T load(T v) {
  return v;
}
void store(Bf16& to, float v) { to.bits = float_to_bf16(v); }
template <class T>
void store(T& to, T v) {
  to = v;
}

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return a + b;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return (b > a || b != b) ? b : a;
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return (b < a || b != b) ? b : a;
  }
};

template <class In, class Acc, class Out, class Op>
void reduce(std::span<const void* const> rows, Out* out, std::int64_t count, bool accumulate) {
  Acc acc[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const In* first = static_cast<const In*>(rows[0]) + begin;
    for (std::int64_t i = 0; i < n; ++i) acc[i] = load(first[i]);
    for (const void* row : rows.subspan(1)) {
      const In* in = static_cast<const In*>(row) + begin;
      for (std::int64_t i = 0; i < n; ++i) acc[i] = Op::template apply<Acc>(acc[i], load(in[i]));
    }
    Out* to = out + begin;
    if (accumulate) {
      for (std::int64_t i = 0; i < n; ++i) store(to[i], static_cast<Acc>(load(to[i]) + acc[i]));
    } else {
      for (std::int64_t i = 0; i < n; ++i) store(to[i], acc[i]);
    }
  }
}

template <class In, class Acc, class Out>
void dispatch(std::span<const void* const> rows, Span out, Reduction op, Into into) {
  auto* to = static_cast<Out*>(out.data);
  const bool accumulate = into == Into::accumulate;
  switch (op) {
    case Reduction::sum:
      return reduce<In, Acc, Out, Sum>(rows, to, out.count, accumulate);
    case Reduction::max:
      return reduce<In, Acc, Out, Max>(rows, to, out.count, accumulate);
    case Reduction::min:
      return reduce<In, Acc, Out, Min>(rows, to, out.count, accumulate);
  }
}

}  // namespace

void reduce_rows(std::span<const void* const> rows, DType type, Span out, Reduction op, Into into) {
  invariant(into == Into::replace || (op == Reduction::sum && (out.type == DType::f32 || out.type == DType::f64)),
            "reduce_rows accumulates sums, into fp32 or fp64 only");
  if (type == DType::bf16 && out.type == DType::bf16) return dispatch<Bf16, float, Bf16>(rows, out, op, into);
  if (type == DType::bf16 && out.type == DType::f32) return dispatch<Bf16, float, float>(rows, out, op, into);
  if (type == DType::f32 && out.type == DType::f32) return dispatch<float, float, float>(rows, out, op, into);
  if (type == DType::f64 && out.type == DType::f64) return dispatch<double, double, double>(rows, out, op, into);
  if (type == DType::i64 && out.type == DType::i64)
    return dispatch<std::int64_t, std::int64_t, std::int64_t>(rows, out, op, into);
  throw InternalError(std::string("reduce_rows does not add ") + name_of(type) + " rows into " + name_of(out.type));
}

}  // namespace orthant::comm
