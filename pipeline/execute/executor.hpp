// SPDX-License-Identifier: Apache-2.0
// The executor turns one rank's layer tasks into stream tasks. It orders nothing itself: it states claims, and the
// scheduler makes the waits. Messages run on streams of their own, so receives are posted as early as their slot allows
// and no computation waits for a send. What travels belongs to the message's closure until the message is through.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <orthant/core/comm/lane.hpp>
#include <orthant/core/stream/scheduler.hpp>
#include <orthant/core/train/param_lifecycle.hpp>
#include <orthant/core/train/stage_program.hpp>
#include <orthant/pipeline/execute/routes.hpp>
#include <orthant/pipeline/plan/layer_task.hpp>

namespace orthant::pipeline {

/// What the executor works with; everything outlives it and its tasks.
struct ExecutorParts {
  stream::Scheduler& scheduler;
  stream::StreamId compute;
  train::StageProgram& program;
  train::ParamLifecycle& lifecycle;
  train::GradSync& grads;
  Routes routes;
  int slots = 1;                                   ///< as in lower()
  std::function<void(const LayerTask&)> tail;      ///< called for NORM_UNITS, TIE, NORM and STEP, at their place
  std::function<std::string(LayerId)> layer_name;  ///< for the timeline: "layers.2"
  /// Posts each receive only when the computation before its reader has ended: what a just-in-time order would do. For
  /// showing what it costs.
  bool late_receives = false;
};

enum class PassKind : std::uint8_t { training, evaluation };

class Executor {
 public:
  explicit Executor(ExecutorParts parts);

  /// Begins a pass: a training step, or an evaluation (whose activations are not kept).
  void begin(PassKind kind);
  /// Submits tasks of the pass and returns without waiting; passes may follow each other at once.
  /// tasks   of one rank, from expand() of a schedule that validate() accepts; all at once or in consecutive parts.
  /// Throws  what Scheduler::submit throws.
  void submit(std::span<const LayerTask> tasks);
  /// Gives up what was received and not yet read, so that the pass may begin again (from begin()).
  void drop_unread();

  /// Most activations that were alive at once on this rank, as counted while it ran: chunks between the begin of F and
  /// the end of B or I. Evaluation keeps none.
  int peak_activations() const { return peak_.load(); }

 private:
  using Place = std::tuple<train::Payload, StageId, MicrobatchId>;
  struct Inbox {                          ///< of one channel
    std::vector<stream::BufferId> slots;  ///< bound how many messages are received ahead
    std::int64_t received = 0;            ///< messages submitted so far
  };

  void compute(const LayerTask& task, const LayerTask* partner);
  void take(const Place& place);
  void claim_progress(stream::Task& submitted);
  void receive(const Place& place);
  void post_receive(const Place& place);
  void send(const Place& place);
  void claim_cargo(const LayerTask& task, stream::Task& submitted);
  stream::Claim cargo(const Place& place, const char* state);
  void count_activation(StageId stage, MicrobatchId microbatch, bool begins);

  ExecutorParts parts_;
  std::map<const comm::Channel*, Inbox> inboxes_;
  std::map<Place, stream::BufferId> cargo_;  ///< the program's place for what came in, then for what goes out
  std::map<Place, stream::Claim> unread_;    ///< the slot of each message that was received and not yet taken
  std::optional<Place> joined_;  ///< the F of the pair that is being submitted: its output comes with the B's
  std::set<Place> late_;         ///< late_receives: to be posted just before their readers
  stream::BufferId progress_;    ///< late_receives: written by each computation
  std::int64_t computations_ = 0;
  std::int64_t pass_ = -1;
  PassKind kind_ = PassKind::training;
  std::set<std::pair<StageId, MicrobatchId>> live_;  ///< activations; touched on the compute stream only
  std::atomic<int> peak_ = 0;
};

}  // namespace orthant::pipeline
