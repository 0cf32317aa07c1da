// SPDX-License-Identifier: Apache-2.0
// The one place where ranks' values are added. One row per rank, added in rank order, element by element: the result
// depends neither on the offset of an element nor on how the rows were cut into pieces, so every CPU back end makes the
// same bits.
#pragma once

#include <span>

#include <orthant/core/comm/collectives.hpp>

namespace orthant::comm {

/// out = rows[0] + rows[1] + … (or max, min), from left to right.
/// rows  one per rank in rank order, each out.count elements of `type`: bf16, fp32, fp64 or i64.
/// out   the same type, or fp32 where rows are bf16; may be one of the rows. bf16 rows are added in fp32 and rounded at
/// most once. into  accumulate: out + (sum of rows), fp32 or fp64 out only, sum only. NaN stays NaN under max and min.
/// Throws InternalError for types that it does not add.
void reduce_rows(std::span<const void* const> rows, DType type, Span out, Reduction op = Reduction::sum,
                 Into into = Into::replace);

}  // namespace orthant::comm
