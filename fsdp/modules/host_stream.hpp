// SPDX-License-Identifier: Apache-2.0
// The caller's own thread as a stream of the scheduler. Code that is no task (a module's forward, autograd's backward)
// claims its buffers all the same: it occupies the stream from begin to end, so that a gather or a reduction which
// claims the same buffers waits for it, contents are checked, and it stands in the timeline.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <orthant/core/stream/scheduler.hpp>

namespace orthant::fsdp {

class HostStream {
  struct End {
    void operator()(stream::Promise* end) const;
  };

 public:
  /// Its destruction ends the occupation: buffers that were claimed must not be touched afterwards.
  using Occupation = std::unique_ptr<stream::Promise, End>;

  HostStream(stream::Scheduler& scheduler, const std::string& name);

  /// Blocks until the claims are met. One at a time: the next one waits for the end of the one before.
  /// Throws  what Scheduler::submit() and wait() throw.
  [[nodiscard]] Occupation occupy(const std::string& name, std::vector<stream::Claim> reads,
                                  std::vector<stream::Claim> writes);
  /// A reader that does nothing: what was gathered in vain may be written over.
  void discard(const std::string& name, stream::Claim content);

 private:
  stream::Scheduler& scheduler_;
  stream::StreamId stream_;
};

}  // namespace orthant::fsdp
