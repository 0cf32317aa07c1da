// SPDX-License-Identifier: Apache-2.0
// RecordingDriver: writes every command down and plays the device on the host, with the rules of CUDA streams: each
// stream in order, the streams in any order that their waits allow (drawn at random from a seed), a WaitFor bound to
// the Record that stands before it, and ignored if there is none. "Device memory" is host memory. For tests.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <orthant/core/cuda/driver.hpp>

namespace orthant::cuda {

struct RecordingOptions {
  std::uint64_t seed = 0;
  /// The device moves in step() only; otherwise also a little in each is_complete().
  bool by_hand = false;
  /// Performs a NCCL command when its turn comes; the stream goes on when the work is done. Null: nothing happens to
  /// the data.
  std::function<comm::Work(const Command&)> nccl = {};
  /// Sees each command before it is written down; may throw, as a failing call.
  std::function<void(const Command&)> on_enqueue = {};
  /// Default: all memory is device memory, except what was allocated as pinned here.
  std::function<bool(const void*)> is_device = {};
  std::string identity = "device 0";
};

class RecordingDriver final : public Driver {
 public:
  explicit RecordingDriver(RecordingOptions options = {});
  ~RecordingDriver() override;

  DeviceStream create_stream(Priority priority) override;
  Event create_event() override;
  void enqueue(DeviceStream stream, const Command& command) override;
  bool is_complete(Event event) override;
  void* allocate_pinned(std::size_t bytes) override;
  void free_pinned(void* memory) noexcept override;
  void* allocate_scratch(DeviceStream stream, std::size_t bytes) override;
  void free_scratch(DeviceStream stream, void* memory) noexcept override;
  bool is_device(const void* memory) override;
  UniqueId unique_id() override;
  Communicator init(const UniqueId& id, int rank, int size, const std::string& name) override;
  void abort(Communicator communicator) noexcept override;
  std::optional<std::string> async_error(Communicator communicator) override;
  void register_buffer(Communicator communicator, comm::Span buffer) override;
  void with_stream(DeviceStream stream, const std::function<void()>& body) override;
  DeviceStream current_stream() override;
  std::string device_identity() override { return options_.identity; }

  /// A kernel on the current stream. In the log it is a Copy of nothing.
  void launch(std::function<void()> kernel);
  /// Performs one command of one stream, if any can; false if none can.
  bool step();

  struct Entry {
    DeviceStream stream;
    Command command;
  };
  struct Group {
    UniqueId id{};
    int rank = 0;
    int size = 0;
    std::string name;
    bool aborted = false;
    std::optional<std::string> error;
    std::vector<comm::Span> registered;
  };
  std::vector<Entry> log() const;
  /// As init() made it.
  Group group(Communicator communicator) const;
  /// The communicators by name, in order of creation.
  std::vector<Communicator> communicators() const;
  void set_async_error(Communicator communicator, const std::string& error);
  std::size_t open_scratch() const;

 private:
  struct Item {
    Command command;
    std::function<void()> kernel;
    std::int64_t generation = 0;  ///< Record: which of its event; WaitFor: the one it waits for
    std::optional<comm::Work> work;
  };
  struct Stream {
    std::deque<Item> items;
  };
  struct EventState {
    std::int64_t last = 0;        ///< number of its last Record
    std::set<std::int64_t> open;  ///< Records that the device has not passed; an event may be recorded again before
  };
  void push(DeviceStream stream, const Command& command, std::function<void()> kernel);
  bool step_locked();
  bool can_move(const Item& item);
  /// False: begun, but not done yet.
  bool perform(Item& item);
  Stream& at(DeviceStream stream);
  static EventState& at(Event event) { return *static_cast<EventState*>(event.raw); }
  static Group& at(Communicator communicator) { return *static_cast<Group*>(communicator.raw); }

  const RecordingOptions options_;
  mutable std::mutex mutex_;
  std::mt19937_64 random_;
  Stream default_stream_;
  std::deque<Stream> streams_;
  std::deque<EventState> events_;
  std::deque<Group> groups_;
  std::vector<Entry> log_;
  std::map<void*, std::unique_ptr<std::byte[]>> scratch_;
  std::map<void*, std::pair<std::size_t, std::unique_ptr<std::byte[]>>> pinned_;
  std::map<std::thread::id, std::vector<DeviceStream>> current_;
};

}  // namespace orthant::cuda
