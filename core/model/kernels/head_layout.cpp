// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/kernels/head_layout.hpp>

#include <ATen/ops/empty.h>
#include <orthant/core/model/kernels/composed.hpp>
#include <orthant/core/model/kernels/expect.hpp>
#include <orthant/core/model/kernels/simd.hpp>

namespace orthant::model::kernels {
namespace {

/// Rotates one head by its position's cos and sin; sign -1 rotates back.
template <class T>
void rotate_head(const T* in, T* out, std::int64_t half, const compute_t<T>* cos, const compute_t<T>* sin,
                 compute_t<T> sign) {
  using C = compute_t<T>;
  const Block<C> signs(sign);
  for_blocks<C>(half, [&](std::int64_t i, std::int64_t n) {
    const auto low = load(in + i, n), high = load(in + half + i, n);
    const auto cos_i = load(cos + i, n), sin_i = load(sin + i, n) * signs;
    store<T>(low * cos_i - high * sin_i, out + i, n);
    store<T>(high * cos_i + low * sin_i, out + half + i, n);
  });
}

/// Where one head of one row stands, in elements.
struct HeadPlace {
  std::int64_t split;
  std::int64_t fused;
  std::int64_t position;
};

/// body(place) for every head of every row, in parallel. Groups are consecutive heads, so [B G, (heads/G) S, K] = [B,
/// heads, S, K].
template <class Body>
void for_each_head(const HeadColumns& columns, const AttentionShape& s, std::int64_t fused_columns, const Body& body) {
  parallel_rows(s.batch * columns.heads * s.seq, s.head_dim, [&](std::int64_t begin, std::int64_t end) {
    for (auto row = begin; row < end; ++row) {
      const auto position = row % s.seq, head = row / s.seq % columns.heads, batch = row / s.seq / columns.heads;
      body(HeadPlace{row * s.head_dim, (position * s.batch + batch) * fused_columns + columns.first + head * s.head_dim,
                     position});
    }
  });
}

/// Copies or rotates the heads from `in` to `out`; `to_split` says which of them is the fused tensor.
template <class T, class To>
void move_heads(const T* in, T* out, const HeadColumns& columns, const AttentionShape& s, std::int64_t fused_columns,
                const RotaryTable* rotary, To to_split) {
  using C = compute_t<T>;
  const auto half = s.head_dim / 2;
  const C* cos = rotary ? rotary->cos.const_data_ptr<C>() : nullptr;
  const C* sin = rotary ? rotary->sin.const_data_ptr<C>() : nullptr;
  for_each_head(columns, s, fused_columns, [&](const HeadPlace& place) {
    const T* from = in + (to_split ? place.fused : place.split);
    T* to = out + (to_split ? place.split : place.fused);
    if (rotary) {
      rotate_head<T>(from, to, half, cos + place.position * half, sin + place.position * half, to_split ? C(1) : C(-1));
    } else {
      std::copy_n(from, s.head_dim, to);
    }
  });
}

void expect_heads(const at::Tensor& fused, const HeadColumns& columns, const AttentionShape& s,
                  const RotaryTable* rotary) {
  const auto type = fused.scalar_type();
  expect(fused, "fused heads", type, {s.seq * s.batch, -1});
  invariant(columns.first + columns.heads * s.head_dim <= fused.size(1), "heads lie outside the fused row");
  if (!rotary) return;
  expect(rotary->cos, "rotary cos", compute_type(type), {-1, s.head_dim / 2});
  expect(rotary->sin, "rotary sin", compute_type(type), {rotary->cos.size(0), s.head_dim / 2});
  if (rotary->cos.size(0) < s.seq) throw ShapeError("the rotary table is shorter than the sequence");
}

}  // namespace

at::Tensor split_heads(const at::Tensor& fused, const HeadColumns& columns, const AttentionShape& shape,
                       const RotaryTable* rotary) {
  expect_heads(fused, columns, shape, rotary);
  if (!fused.is_cpu()) return composed::split_heads(fused, columns, shape, rotary);
  const auto rows_of_group = columns.heads / shape.kv_heads * shape.seq;
  auto split = at::empty({shape.batch * shape.kv_heads, rows_of_group, shape.head_dim}, fused.options());
  visit_type(fused.scalar_type(), [&]<class T>(T) {
    move_heads(fused.const_data_ptr<T>(), split.mutable_data_ptr<T>(), columns, shape, fused.size(1), rotary,
               std::true_type{});
  });
  return split;
}

void merge_heads(const at::Tensor& split, const HeadColumns& columns, const AttentionShape& shape,
                 const RotaryTable* rotary, const at::Tensor& fused) {
  expect_heads(fused, columns, shape, rotary);
  expect(split, "split heads", fused.scalar_type(),
         {shape.batch * shape.kv_heads, columns.heads / shape.kv_heads * shape.seq, shape.head_dim});
  if (!fused.is_cpu()) return composed::merge_heads(split, columns, shape, rotary, fused);
  visit_type(fused.scalar_type(), [&]<class T>(T) {
    move_heads(split.const_data_ptr<T>(), fused.mutable_data_ptr<T>(), columns, shape, fused.size(1), rotary,
               std::false_type{});
  });
}

}  // namespace orthant::model::kernels
