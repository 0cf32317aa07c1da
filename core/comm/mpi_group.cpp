// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/mpi_group.hpp>

#include <utility>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>

namespace orthant::comm {
namespace {

// Above this a send ends only after the receiver has taken the data, so the receiver rings when it has.
constexpr std::size_t kEagerBytes = 4096;

// Messages match by order alone; the tag says what they belong to. A receive takes any tag and compares: calls that do
// not belong together are found at once, where tags that never match would hang. 15 bits are what MPI guarantees.
int tag_of(const Operation& op, std::int64_t sequence) {
  return static_cast<int>(op.kind) | static_cast<int>(op.in.type) << 3 | static_cast<int>(sequence & 0x1ff) << 6;
}
std::string describe_tag(int tag) {
  return fmt::format("{} of {}, #{}", name_of(static_cast<Operation::Kind>(tag & 7)),
                     orthant::name_of(static_cast<DType>(tag >> 3 & 7)), tag >> 6);
}

std::string words_of(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, static_cast<std::size_t>(length));
}

}  // namespace

void require_mpi(int code, const std::string& what) {
  if (code != MPI_SUCCESS) throw CommError(what + ": " + words_of(code));
}

MpiGroup::MpiGroup(MPI_Comm comm, std::string where, std::vector<int> members, std::vector<Doorbell*> bells,
                   MpiSends& sends)
    : comm_(comm), where_(std::move(where)), members_(std::move(members)), bells_(std::move(bells)), sends_(sends) {
  require_mpi(MPI_Comm_rank(comm_, &rank_), where_);
}

void MpiGroup::enqueue(Posted posted) {
  if (over_) return posted.promise.complete(std::make_exception_ptr(CommError(*over_)));
  queue_.push_back(std::move(posted));
}

bool MpiGroup::advance() {
  if (queue_.empty()) return false;
  try {
    if (!plan_) {
      plan_.emplace(queue_.front().operation, rank_, static_cast<int>(members_.size()), scratch_);
      started_ = finished_ = 0;
    }
    bool moved = start_rounds();
    moved = test_oldest_round() || moved;
    return finish_operation() || moved;
  } catch (const CommError& error) {
    fail(error.what());
    return true;
  }
}

bool MpiGroup::start_rounds() {
  bool moved = false;
  while (started_ < plan_->rounds() && started_ - finished_ < RoundPlan::kInFlight &&
         !(plan_->starts_afresh(started_) && finished_ < started_)) {
    Round& round = rounds_.emplace_back();
    round.flows = plan_->flows(started_++);
    round.left = round.flows.size();
    round.requests.resize(round.left, MPI_REQUEST_NULL);
    for (std::size_t i = 0; i < round.left; ++i) start(round.flows[i], round.requests[i]);
    moved = true;
  }
  return moved;
}

void MpiGroup::start(const Flow& flow, MPI_Request& request) {
  const auto& [operation, sequence, promise] = queue_.front();
  const int bytes = static_cast<int>(flow.bytes);
  const bool sends = flow.direction == Flow::Direction::out;
  const auto send = sends_.synchronous ? MPI_Issend : MPI_Isend;
  const int code = sends ? send(flow.data, bytes, MPI_BYTE, flow.peer, tag_of(operation, sequence), comm_, &request)
                         : MPI_Irecv(flow.data, bytes, MPI_BYTE, flow.peer, MPI_ANY_TAG, comm_, &request);
  if (code != MPI_SUCCESS) require_mpi(code, naming(flow));
  ++sends_.open;
  Doorbell* bell = bells_[static_cast<std::size_t>(flow.peer)];
  if (sends && bell != nullptr) bell->ring();
}

bool MpiGroup::test_oldest_round() {
  if (rounds_.empty()) return false;
  Round& round = rounds_.front();
  int done = 0;
  if (round.left > 0) {
    indices_.resize(round.requests.size());
    statuses_.resize(round.requests.size());
    const int code = MPI_Testsome(static_cast<int>(round.requests.size()), round.requests.data(), &done,
                                  indices_.data(), statuses_.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
      require_mpi(code, describe(queue_.front().operation, queue_.front().sequence, where_));
    }
    for (int d = 0; d < done; ++d) {
      const Flow& flow = round.flows[static_cast<std::size_t>(indices_[static_cast<std::size_t>(d)])];
      MPI_Status& status = statuses_[static_cast<std::size_t>(d)];
      const int error = code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS;
      const bool too_long = error == MPI_ERR_TRUNCATE;
      if (error != MPI_SUCCESS && !too_long) require_mpi(error, naming(flow));
      if (flow.direction == Flow::Direction::out) continue;
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      check_arrival(flow, {status.MPI_TAG, static_cast<std::size_t>(bytes) + (too_long ? 1 : 0)});
      Doorbell* bell = bells_[static_cast<std::size_t>(flow.peer)];
      if (bell != nullptr && flow.bytes > kEagerBytes) bell->ring();
    }
    round.left -= static_cast<std::size_t>(done);
    sends_.open -= done;
  }
  if (round.left > 0) return done > 0;
  plan_->finish(finished_++);
  rounds_.pop_front();
  return true;
}

void MpiGroup::check_arrival(const Flow& flow, Arrival arrived) const {
  const auto& [operation, sequence, promise] = queue_.front();
  const int tag = tag_of(operation, sequence);
  if (arrived.tag == tag && arrived.bytes == flow.bytes) return;
  std::string theirs = describe_tag(arrived.tag);
  if (arrived.tag == tag) theirs += arrived.bytes < flow.bytes ? ", with fewer elements" : ", with more elements";
  throw CommError(fmt::format("mismatch at #{} on {}: rank {} called {}, rank {} called {}", sequence, where_,
                              members_[static_cast<std::size_t>(rank_)], to_string(operation),
                              members_[static_cast<std::size_t>(flow.peer)], theirs));
}

bool MpiGroup::finish_operation() {
  if (finished_ < plan_->rounds()) return false;
  const Posted posted = std::move(queue_.front());
  queue_.pop_front();
  plan_.reset();
  posted.promise.complete();
  return true;
}

void MpiGroup::fail(const std::string& why) {
  if (!over_) over_ = why;
  for (Round& round : rounds_) {
    for (std::size_t i = 0; i < round.requests.size(); ++i) {
      if (round.requests[i] == MPI_REQUEST_NULL) continue;
      if (round.flows[i].direction == Flow::Direction::in) MPI_Cancel(&round.requests[i]);  // its buffer may go now
      MPI_Request_free(&round.requests[i]);
      --sends_.open;
    }
  }
  rounds_.clear();
  plan_.reset();
  for (const Posted& posted : std::exchange(queue_, {}))
    posted.promise.complete(std::make_exception_ptr(CommError(*over_)));
}

std::string MpiGroup::naming(const Flow& flow) const {
  return fmt::format("{} {} rank {}", describe(queue_.front().operation, queue_.front().sequence, where_),
                     flow.direction == Flow::Direction::out ? "to" : "from",
                     members_[static_cast<std::size_t>(flow.peer)]);
}

}  // namespace orthant::comm
