// SPDX-License-Identifier: Apache-2.0
// What the pipeline executor runs: layers of this rank's stages as task bodies, and the memory that crosses stage
// borders. ATen-free, so that the executor can be tested (and run under a thread sanitizer) with a program made of
// numbers.
#pragma once

#include <memory>

#include <orthant/core/base/id.hpp>
#include <orthant/core/base/phase.hpp>
#include <orthant/core/comm/span.hpp>
#include <orthant/core/stream/task.hpp>

namespace orthant::train {

/// What crosses a stage border.
enum class Payload : std::uint8_t { activation, gradient };

/// Memory and what keeps it alive.
struct Held {
  comm::Span span;
  std::shared_ptr<void> owner;
};

class StageProgram {
 public:
  virtual ~StageProgram() = default;

  /// Runs one layer for one micro-batch: the body of a compute task. What is said of main and norms comes with the
  /// phase that writes their gradients.
  struct Step {
    Phase phase = Phase::forward;
    StageId stage;
    LayerId layer;
    MicrobatchId microbatch;
    bool overwrite_main = false;
    bool overwrite_norms = false;
    bool main_trains = true;
    bool norms_train = true;
  };
  virtual void run(const Step& step, stream::TaskScope& scope) = 0;

  /// Nested collectives, segments and cost of that task.
  struct Outline {
    std::vector<stream::NestedCollective> nested;
    std::vector<stream::Segment> segments;
  };
  virtual Outline outline(Phase phase, LayerId layer) const = 0;

  // The next two run on whichever thread starts the message, while run() may be at work on other micro-batches or on
  // the other payload of this one; what touches the same payload of the same stage and micro-batch is ordered before or
  // after them.

  /// Memory for a payload to be received; it becomes the stage's input (or its output's gradient).
  virtual Held make_input(Payload payload, StageId, MicrobatchId) = 0;
  /// The stage's output (or its input's gradient), to be sent; the program gives it up.
  virtual Held take_output(Payload payload, StageId, MicrobatchId) = 0;
  /// The output of `from` becomes the input of `to`, both of this rank (the turn of a V). On the compute stream.
  virtual void hand_over(Payload payload, StageId from, StageId to, MicrobatchId) = 0;
};

}  // namespace orthant::train
