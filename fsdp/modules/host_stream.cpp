// SPDX-License-Identifier: Apache-2.0
#include <orthant/fsdp/modules/host_stream.hpp>

#include <algorithm>
#include <utility>

namespace orthant::fsdp {

void HostStream::End::operator()(stream::Promise* end) const {
  end->complete();
  delete end;
}

HostStream::HostStream(stream::Scheduler& scheduler, const std::string& name)
    : scheduler_(scheduler), stream_(scheduler.add_stream(name, stream::StreamKind::request)) {}

HostStream::Occupation HostStream::occupy(const std::string& name, std::vector<stream::Claim> reads,
                                          std::vector<stream::Claim> writes) {
  // Two tasks, since only the end of a task can be waited for: the first ends as soon as the claims are met, the second
  // stays open right behind it, and what the first wrote it reads and leaves as it is.
  std::vector<stream::Claim> held = writes;
  std::ranges::copy_if(reads, std::back_inserter(held), [&](const stream::Claim& read) {
    return std::ranges::find(writes, read.buffer, &stream::Claim::buffer) == writes.end();
  });
  const auto met = scheduler_.submit(
      {.name = name + " begins", .stream = stream_, .reads = std::move(reads), .writes = writes, .start = [] {
         return stream::Work::done();
       }});
  Occupation occupation(new stream::Promise(name));
  scheduler_.submit({.name = name,
                     .stream = stream_,
                     .reads = std::move(held),
                     .writes = std::move(writes),
                     .start = [work = occupation->work()] { return work; }});
  scheduler_.wait(met);
  return occupation;
}

void HostStream::discard(const std::string& name, stream::Claim content) {
  scheduler_.submit(
      {.name = name, .stream = stream_, .reads = {content}, .start = [] { return stream::Work::done(); }});
}

}  // namespace orthant::fsdp
