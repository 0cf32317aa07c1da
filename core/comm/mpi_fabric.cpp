// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/mpi_fabric.hpp>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/local_fabric.hpp>
#include <orthant/core/comm/mpi_group.hpp>
#include <orthant/core/comm/mpi_runtime.hpp>

namespace orthant::comm {

using namespace std::chrono_literals;

class MpiFabric::Core {
 public:
  explicit Core(const MpiOptions& options) : engine_(options.blocking_timeout) {
    sends_.synchronous = options.synchronous_sends;
    engine_.call("MPI_Init_thread", [this, wake = options.wake] {
      runtime_.start();
      if (wake == MpiOptions::Wake::doorbell) runtime_.share_bells();
      // Where everybody rings, the longest sleep is only a safety net.
      const Pacing pacing = runtime_.rings_everyone() ? Pacing{.longest = 1000us} : Pacing{};
      engine_.use(runtime_.bells()[static_cast<std::size_t>(runtime_.rank())], pacing);
      engine_.watch([this] { return listen(); });
    });
  }

  int rank() const { return runtime_.rank(); }
  int size() const { return runtime_.size(); }
  bool aborted() const { return aborted_; }
  bool heard_abort() const { return heard_abort_; }
  std::int64_t open_requests() const { return sends_.open; }
  int next_tag() { return made_++; }

  std::shared_ptr<MpiGroup> make_group(const std::string& where, const std::vector<int>& members, int tag) {
    const auto made = std::make_shared<std::shared_ptr<MpiGroup>>();
    engine_.call("creation of communicator " + where, [this, made, where, members, tag] {
      if (aborted_) throw CommError(why_);
      std::vector<Doorbell*> bells;
      for (const int member : members) bells.push_back(runtime_.bells()[static_cast<std::size_t>(member)]);
      *made = std::make_shared<MpiGroup>(runtime_.make_communicator(members, tag, where), where, members,
                                         std::move(bells), sends_);
    });
    return *made;
  }

  void submit(const std::shared_ptr<MpiGroup>& group, MpiGroup::Posted posted) {
    engine_.post([this, group, posted = std::move(posted)] {
      if (aborted_) return posted.promise.complete(std::make_exception_ptr(CommError(why_)));
      group->enqueue(posted);
      engine_.drive(group);
    });
  }

  void abort(const std::string& why) {
    engine_.post([this, why] {
      if (aborted_) return;
      runtime_.tell_abort(fmt::format("rank {} aborted: {}", rank(), why));
      give_up(why);
    });
  }

  void post_abort_of_job(int exit_code) {
    engine_.post([exit_code] { MPI_Abort(MPI_COMM_WORLD, exit_code); });
  }

  void finish() {
    engine_.call("MPI_Finalize", [this] {
      engine_.watch([] { return false; });
      engine_.use(nullptr, {});
      runtime_.finish();
    });
  }

 private:
  // After giving up MPI is left alone, so that nothing arrives in buffers whose owners have been told that it is over.
  void give_up(const std::string& why) {
    why_ = why;
    aborted_ = true;
    engine_.watch([] { return false; });
    engine_.fail_all(why);
  }

  bool listen() {
    const auto heard = runtime_.heard_abort();
    heard_abort_ = heard.has_value();
    if (heard) give_up(*heard);
    return heard.has_value();
  }

  MpiRuntime runtime_;
  MpiSends sends_;
  std::string why_;                   ///< progress thread only
  std::atomic<bool> aborted_{false};  ///< set there
  std::atomic<bool> heard_abort_{false};
  int made_ = 0;
  ProgressEngine engine_;  // last: its thread uses the others
};

namespace {

/// This rank's end of a communicator: numbers its operations and hands them over.
class End {
 public:
  End(MpiFabric::Core& core, std::shared_ptr<MpiGroup> group, std::string where)
      : core_(core), group_(std::move(group)), where_(std::move(where)) {}

  Work post(const Operation& operation) {
    const std::int64_t sequence = next_++;
    stream::Promise promise(describe(operation, sequence, where_));
    Work work = promise.work();
    core_.submit(group_, {operation, sequence, std::move(promise)});
    return work;
  }

 private:
  MpiFabric::Core& core_;
  std::shared_ptr<MpiGroup> group_;
  std::string where_;
  std::int64_t next_ = 0;
};

class MpiCollectives final : public PostingCollectives {
 public:
  MpiCollectives(const std::string& name, int rank, int size, End end)
      : PostingCollectives(name, rank, size), end_(std::move(end)) {}

 private:
  Work post(const Operation& operation) override { return end_.post(operation); }
  End end_;
};

class MpiChannel final : public Channel {
 public:
  MpiChannel(const std::string& name, int peer, End end) : Channel(name, peer), end_(std::move(end)) {}
  Work send(ConstSpan data) override { return end_.post(Operation::send(data)); }
  Work receive(Span data) override { return end_.post(Operation::receive(data)); }

 private:
  End end_;
};

}  // namespace

MpiFabric::MpiFabric(MpiOptions options) : core_(std::make_unique<Core>(options)) {}

MpiFabric::~MpiFabric() {
  if (core_->aborted()) kill(static_cast<int>(ExitCode::timed_out));
  try {
    core_->finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "orthant: rank %d cannot leave the run: %s\n", rank(), error.what());
    kill(static_cast<int>(ExitCode::timed_out));
  }
}

int MpiFabric::rank() const { return core_->rank(); }
int MpiFabric::size() const { return core_->size(); }
bool MpiFabric::heard_abort() const { return core_->heard_abort(); }
std::int64_t MpiFabric::open_requests() const { return core_->open_requests(); }

std::unique_ptr<Collectives> MpiFabric::make_collectives(const std::string& name, std::span<const int> members) {
  const int tag = core_->next_tag();
  const auto me = std::ranges::find(members, rank());
  if (me == members.end()) return nullptr;
  if (members.size() == 1) return make_self_collectives(name, rank());
  const std::string where = describe_group(name, members);
  return std::make_unique<MpiCollectives>(
      name, static_cast<int>(me - members.begin()), static_cast<int>(members.size()),
      End(*core_, core_->make_group(where, {members.begin(), members.end()}, tag), where));
}

std::unique_ptr<Channel> MpiFabric::make_channel(const std::string& name, int source, int destination) {
  invariant(source != destination, "a channel joins two ranks");
  const int tag = core_->next_tag();
  if (rank() != source && rank() != destination) return nullptr;
  const std::vector ends{source, destination};
  const std::string where = describe_group(name, ends);
  return std::make_unique<MpiChannel>(name, rank() == source ? destination : source,
                                      End(*core_, core_->make_group(where, ends, tag), where));
}

void MpiFabric::abort(const std::string& why) noexcept {
  try {
    core_->abort(why);
  } catch (...) {  // no memory left to say why
    kill(static_cast<int>(ExitCode::internal));
  }
}

void MpiFabric::kill(int exit_code) noexcept {
  std::fflush(nullptr);
  try {
    core_->post_abort_of_job(exit_code);
    std::this_thread::sleep_for(5s);
  } catch (...) {  // ended below
  }
  std::_Exit(exit_code);  // the progress thread is stuck; the launcher ends the others when it sees this
}

}  // namespace orthant::comm
