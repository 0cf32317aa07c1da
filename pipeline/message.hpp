// SPDX-License-Identifier: Apache-2.0
// Which messages a compute operation needs and makes: the one place that knows that activations go to the stage after
// and gradients to the stage before. A SEND and a RECV carry the stage that owns them: `s SEND a m` pairs with `s+1
// RECV a m`. Neighbouring stages lie on different ranks.
#pragma once

#include <optional>

#include <orthant/pipeline/schedule.hpp>

namespace orthant::pipeline {

/// The RECV that must stand before F, B or I on its rank; none at the pipeline's ends, for W and for what is no
/// computation.
std::optional<Op> receive_before(const Schedule& schedule, const Op& op);
/// The SEND of what F, B or I makes; none likewise.
std::optional<Op> send_after(const Schedule& schedule, const Op& op);
/// The RECV at the other end of a SEND.
Op matching_receive(const Op& send);

}  // namespace orthant::pipeline
