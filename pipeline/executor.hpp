// SPDX-License-Identifier: Apache-2.0
// The executor turns one rank's layer tasks into stream tasks. It orders nothing itself: it states claims, and the
// scheduler makes the waits. Messages run on streams of their own, so receives are posted as early as their slot allows
// and no computation waits for a send. What travels belongs to the message's closure until the message is through.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <orthant/core/comm/lane.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/train/param_lifecycle.hpp>
#include <orthant/core/train/stage_program.hpp>
#include <orthant/pipeline/layer_task.hpp>

namespace orthant::pipeline {

/// One channel a neighbour and direction, each with a request stream of its own; null at the pipeline's ends.
struct StageLinks {
  comm::ChannelLane receive_activation;  ///< from the stage before
  comm::ChannelLane send_gradient;       ///< to the stage before
  comm::ChannelLane send_activation;     ///< to the stage after
  comm::ChannelLane receive_gradient;    ///< from the stage after
};

/// What the executor works with; everything outlives it and its tasks.
struct ExecutorParts {
  stream::Scheduler& scheduler;
  stream::StreamId compute;
  train::StageProgram& program;
  train::ParamLifecycle& lifecycle;
  train::GradSync& grads;
  StageLinks links;
  int slots = 1;                                   ///< as in lower()
  std::function<void(const LayerTask&)> tail;      ///< called for NORM_UNITS, TIE, NORM and STEP, at their place
  std::function<std::string(LayerId)> layer_name;  ///< for the timeline: "layers.2"
};

class Executor {
 public:
  explicit Executor(ExecutorParts parts);

  /// Submits one pass (a step, or an evaluation) and returns without waiting; passes may follow each other at once.
  /// tasks   of one rank, from expand() of a schedule that validate() accepts.
  /// Throws  what Scheduler::submit throws.
  void submit(std::span<const LayerTask> tasks);

 private:
  /// One direction of data: in from one neighbour, out to the other.
  struct Flow {
    train::Payload payload;
    comm::ChannelLane in;
    comm::ChannelLane out;
    std::vector<stream::BufferId> slots;  ///< bound how many messages are received ahead
    std::vector<stream::BufferId>
        cargo;  ///< per micro-batch: the program's place for what came in, then for what goes out
  };

  Flow& flow_of(OpKind kind);
  void compute(const LayerTask& task);
  void receive(Flow& flow, MicrobatchId microbatch);
  void send(Flow& flow, MicrobatchId microbatch);
  void claim_cargo(const LayerTask& task, stream::Task& submitted);
  stream::Claim slot(Flow& flow, MicrobatchId microbatch);
  stream::Claim cargo(Flow& flow, MicrobatchId microbatch, const char* state);

  ExecutorParts parts_;
  Flow activations_;
  Flow gradients_;
  std::int64_t pass_ = -1;
};

}  // namespace orthant::pipeline
