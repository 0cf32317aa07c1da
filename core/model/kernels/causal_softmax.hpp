// SPDX-License-Identifier: Apache-2.0
// Scale, causal mask and softmax in one pass over attention scores, in place; and their derivative. Only the causal
// prefix of a row is read; the rest becomes zero.
#pragma once

#include <ATen/core/Tensor.h>

namespace orthant::model::kernels {

// M batch  R query heads stacked as rows  S sequence

/// scores [M, R S, S] -> probabilities; row r S + s keeps keys 0..s.
void causal_softmax_(const at::Tensor& scores, double scale);

/// dprobabilities [M, R S, S] -> dscores in place; probabilities as causal_softmax_ left them.
void causal_softmax_backward_(const at::Tensor& dprobabilities, const at::Tensor& probabilities, double scale);

}  // namespace orthant::model::kernels
