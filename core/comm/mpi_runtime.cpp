// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/mpi_runtime.hpp>

#include <algorithm>
#include <chrono>
#include <new>
#include <numeric>

#include <orthant/core/comm/mpi_group.hpp>

namespace orthant::comm {

void MpiRuntime::start() {
  int provided = 0;
  require_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  bells_.assign(static_cast<std::size_t>(size_), nullptr);
  require_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &abort_comm_), "communicator for aborts");
  require_mpi(MPI_Irecv(abort_text_.data(), static_cast<int>(abort_text_.size()), MPI_CHAR, MPI_ANY_SOURCE, 0,
                        abort_comm_, &abort_request_),
              "receive for aborts");
}

void MpiRuntime::share_bells() {
  require_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host_comm_),
              "communicator of the host");
  // Room to align inside the segment, which MPI aligns to less than a Doorbell wants.
  constexpr MPI_Aint kBytes = 2 * sizeof(Doorbell);
  void* segment = nullptr;
  require_mpi(MPI_Win_allocate_shared(kBytes, 1, MPI_INFO_NULL, host_comm_, &segment, &bell_window_),
              "shared memory for doorbells");

  int neighbours = 0;
  MPI_Comm_size(host_comm_, &neighbours);
  std::vector<int> on_host(static_cast<std::size_t>(neighbours)), in_world(on_host.size());
  std::iota(on_host.begin(), on_host.end(), 0);
  MPI_Group host = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  MPI_Comm_group(host_comm_, &host);
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_translate_ranks(host, neighbours, on_host.data(), world, in_world.data());
  MPI_Group_free(&host);
  MPI_Group_free(&world);

  for (const int neighbour : on_host) {
    MPI_Aint bytes = 0;
    int unit = 0;
    void* base = nullptr;
    require_mpi(MPI_Win_shared_query(bell_window_, neighbour, &bytes, &unit, &base), "doorbell of a neighbour");
    // Every process must come to the same place in the segment, whatever address it has there: so by the offset in the
    // page.
    const auto address = reinterpret_cast<std::uintptr_t>(base);
    const auto aligned = (address + alignof(Doorbell) - 1) / alignof(Doorbell) * alignof(Doorbell);
    const auto r = static_cast<std::size_t>(in_world[static_cast<std::size_t>(neighbour)]);
    bells_[r] = reinterpret_cast<Doorbell*>(aligned);
    if (in_world[static_cast<std::size_t>(neighbour)] == rank_) new (bells_[r]) Doorbell;
  }
  require_mpi(MPI_Barrier(host_comm_), "first use of the doorbells");
}

bool MpiRuntime::rings_everyone() const {
  return std::ranges::none_of(bells_, [](const Doorbell* bell) { return bell == nullptr; });
}

MPI_Comm MpiRuntime::make_communicator(std::span<const int> members, int tag, const std::string& where) const {
  const std::string what = "creation of communicator " + where;
  MPI_Group world = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  require_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world), what);
  require_mpi(MPI_Group_incl(world, static_cast<int>(members.size()), members.data(), &group), what);
  require_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, group, tag, &comm), what);
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  return comm;
}

void MpiRuntime::tell_abort(const std::string& why) {
  std::array<char, 1024> text{};
  const std::size_t length = std::min(why.size(), text.size() - 1);
  std::copy_n(why.begin(), length, text.begin());
  std::vector<MPI_Request> sends;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    MPI_Isend(text.data(), static_cast<int>(length), MPI_CHAR, peer, 0, abort_comm_, &sends.emplace_back());
    if (Doorbell* bell = bells_[static_cast<std::size_t>(peer)]) bell->ring_loudly();
  }
  int sent = 0;
  const auto enough = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
  while (sent == 0 && std::chrono::steady_clock::now() < enough) {
    if (MPI_Testall(static_cast<int>(sends.size()), sends.data(), &sent, MPI_STATUSES_IGNORE) != MPI_SUCCESS) return;
  }
}

std::optional<std::string> MpiRuntime::heard_abort() {
  int heard = 0;
  MPI_Status status;
  if (abort_request_ == MPI_REQUEST_NULL || MPI_Test(&abort_request_, &heard, &status) != MPI_SUCCESS || heard == 0)
    return std::nullopt;
  return std::string(abort_text_.data());
}

void MpiRuntime::finish() {
  MPI_Cancel(&abort_request_);
  MPI_Wait(&abort_request_, MPI_STATUS_IGNORE);
  if (bell_window_ != MPI_WIN_NULL) MPI_Win_free(&bell_window_);
  require_mpi(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace orthant::comm
