// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/cuda/recording_driver.hpp>

#include <cstring>
#include <utility>

#include <orthant/core/base/error.hpp>
#include <orthant/core/cuda/rank_sum.cuh>

namespace orthant::cuda {
namespace {

void sum_rows(const SumRows& sum) {
  const bool known =
      with_sum_types(sum.in.data, sum.in.type, sum.out.data, sum.out.type, [&](auto acc, auto* in, auto* out) {
        for (std::int64_t i = 0; i < sum.out.count; ++i) {
          sum_element<decltype(acc)>(in, sum.rows, sum.out.count, out, i, sum.into == comm::Into::accumulate);
        }
      });
  invariant(known, "SumRows of types that it does not add");
}

}  // namespace

RecordingDriver::RecordingDriver(RecordingOptions options) : options_(std::move(options)), random_(options_.seed) {}
RecordingDriver::~RecordingDriver() = default;

// --- streams
// ------------------------------------------------------------------------------------------------------------

DeviceStream RecordingDriver::create_stream(Priority) {
  const std::lock_guard guard(mutex_);
  return {&streams_.emplace_back()};
}

Event RecordingDriver::create_event() {
  const std::lock_guard guard(mutex_);
  return {&events_.emplace_back()};
}

RecordingDriver::Stream& RecordingDriver::at(DeviceStream stream) {
  return stream ? *static_cast<Stream*>(stream.raw) : default_stream_;
}

void RecordingDriver::enqueue(DeviceStream stream, const Command& command) {
  if (options_.on_enqueue) options_.on_enqueue(command);
  const std::lock_guard guard(mutex_);
  push(stream, command, nullptr);
}

void RecordingDriver::launch(std::function<void()> kernel) {
  const DeviceStream stream = current_stream();
  const std::lock_guard guard(mutex_);
  push(stream, Copy{}, std::move(kernel));
}

void RecordingDriver::push(DeviceStream stream, const Command& command, std::function<void()> kernel) {
  log_.push_back({stream, command});
  Item item{command, std::move(kernel), 0, std::nullopt};
  if (const auto* record = std::get_if<Record>(&command)) {
    EventState& event = at(record->event);
    event.open.insert(item.generation = ++event.last);
  }
  if (const auto* wait = std::get_if<WaitFor>(&command)) item.generation = at(wait->event).last;
  at(stream).items.push_back(std::move(item));
}

bool RecordingDriver::is_complete(Event event) {
  const std::lock_guard guard(mutex_);
  if (!options_.by_hand) step_locked();
  return !at(event).open.contains(at(event).last);
}

bool RecordingDriver::step() {
  const std::lock_guard guard(mutex_);
  return step_locked();
}

bool RecordingDriver::step_locked() {
  std::vector<Stream*> movable;
  const auto consider = [&](Stream& stream) {
    if (!stream.items.empty() && can_move(stream.items.front())) movable.push_back(&stream);
  };
  consider(default_stream_);
  for (Stream& stream : streams_) consider(stream);
  if (movable.empty()) return false;
  Stream& stream = *movable[random_() % movable.size()];
  if (perform(stream.items.front())) stream.items.pop_front();
  return true;
}

bool RecordingDriver::can_move(const Item& item) {
  if (item.work) return item.work->is_done();
  const auto* wait = std::get_if<WaitFor>(&item.command);
  return !wait || !at(wait->event).open.contains(item.generation);
}

bool RecordingDriver::perform(Item& item) {
  if (item.work) return true;
  if (item.kernel) {
    item.kernel();
  } else if (const auto* record = std::get_if<Record>(&item.command)) {
    at(record->event).open.erase(item.generation);
  } else if (const auto* copy = std::get_if<Copy>(&item.command)) {
    if (copy->bytes > 0) std::memcpy(copy->to, copy->from, copy->bytes);
  } else if (const auto* sum = std::get_if<SumRows>(&item.command)) {
    sum_rows(*sum);
  } else if (!std::holds_alternative<WaitFor>(item.command) && options_.nccl) {
    item.work = options_.nccl(item.command);
    return item.work->is_done();
  }
  return true;
}

void RecordingDriver::with_stream(DeviceStream stream, const std::function<void()>& body) {
  struct Restore {
    RecordingDriver& driver;
    ~Restore() {
      const std::lock_guard guard(driver.mutex_);
      driver.current_[std::this_thread::get_id()].pop_back();
    }
  };
  {
    const std::lock_guard guard(mutex_);
    current_[std::this_thread::get_id()].push_back(stream);
  }
  const Restore restore{*this};
  body();
}

DeviceStream RecordingDriver::current_stream() {
  const std::lock_guard guard(mutex_);
  const auto& stack = current_[std::this_thread::get_id()];
  return stack.empty() ? DeviceStream{} : stack.back();
}

std::vector<RecordingDriver::Entry> RecordingDriver::log() const {
  const std::lock_guard guard(mutex_);
  return log_;
}

// --- memory
// -------------------------------------------------------------------------------------------------------------

void* RecordingDriver::allocate_pinned(std::size_t bytes) {
  auto block = std::make_unique<std::byte[]>(bytes);
  void* memory = block.get();
  const std::lock_guard guard(mutex_);
  pinned_[memory] = {bytes, std::move(block)};
  return memory;
}

void RecordingDriver::free_pinned(void* memory) noexcept {
  const std::lock_guard guard(mutex_);
  pinned_.erase(memory);
}

void* RecordingDriver::allocate_scratch(DeviceStream, std::size_t bytes) {
  auto block = std::make_unique<std::byte[]>(bytes);
  void* memory = block.get();
  const std::lock_guard guard(mutex_);
  scratch_[memory] = std::move(block);
  return memory;
}

// In stream order: the memory goes when the stream comes to this point.
void RecordingDriver::free_scratch(DeviceStream stream, void* memory) noexcept {
  const std::lock_guard guard(mutex_);
  at(stream).items.push_back({Copy{}, [this, memory] { scratch_.erase(memory); }, 0, std::nullopt});
}

std::size_t RecordingDriver::open_scratch() const {
  const std::lock_guard guard(mutex_);
  return scratch_.size();
}

bool RecordingDriver::is_device(const void* memory) {
  if (options_.is_device) return options_.is_device(memory);
  const std::lock_guard guard(mutex_);
  const auto* byte = static_cast<const std::byte*>(memory);
  for (const auto& [block, entry] : pinned_) {
    const auto* begin = static_cast<const std::byte*>(block);
    if (byte >= begin && byte < begin + entry.first) return false;
  }
  return true;
}

// --- nccl
// ---------------------------------------------------------------------------------------------------------------

UniqueId RecordingDriver::unique_id() {
  const std::lock_guard guard(mutex_);
  UniqueId id;
  for (std::byte& byte : id) byte = static_cast<std::byte>(random_());
  return id;
}

Communicator RecordingDriver::init(const UniqueId& id, int rank, int size, const std::string& name) {
  const std::lock_guard guard(mutex_);
  Group& group = groups_.emplace_back();
  group.id = id;
  group.rank = rank;
  group.size = size;
  group.name = name;
  return {&group};
}

void RecordingDriver::abort(Communicator communicator) noexcept {
  const std::lock_guard guard(mutex_);
  at(communicator).aborted = true;
}

std::optional<std::string> RecordingDriver::async_error(Communicator communicator) {
  const std::lock_guard guard(mutex_);
  return at(communicator).error;
}

void RecordingDriver::register_buffer(Communicator communicator, comm::Span buffer) {
  const std::lock_guard guard(mutex_);
  at(communicator).registered.push_back(buffer);
}

RecordingDriver::Group RecordingDriver::group(Communicator communicator) const {
  const std::lock_guard guard(mutex_);
  return at(communicator);
}

std::vector<Communicator> RecordingDriver::communicators() const {
  const std::lock_guard guard(mutex_);
  std::vector<Communicator> all;
  for (const Group& group : groups_) all.push_back({const_cast<Group*>(&group)});
  return all;
}

void RecordingDriver::set_async_error(Communicator communicator, const std::string& error) {
  const std::lock_guard guard(mutex_);
  at(communicator).error = error;
}

}  // namespace orthant::cuda
