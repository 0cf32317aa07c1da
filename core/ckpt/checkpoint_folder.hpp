// SPDX-License-Identifier: Apache-2.0
// The folder that holds a run's checkpoints, as rank 0 keeps it. What is under way and what is thrown away have names
// that no reader takes; one rename commits a step:
//   step-00000050                   committed
//   step-00000050.tmp-<run>         being written
//   set-aside-step-00000050-<run>   newer than what a later start went on from
//   .trash-step-00000050-<run>      being deleted
//   latest                          a hint for people; no program reads it
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <orthant/core/ckpt/checkpoint_index.hpp>

namespace orthant::ckpt {

class CheckpointFolder {
 public:
  /// run  id of this start, hexadecimal.
  CheckpointFolder(std::filesystem::path path, std::string run) : path_(std::move(path)), run_(std::move(run)) {}

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path committed(std::int64_t step) const;
  std::filesystem::path pending(std::int64_t step) const;
  /// Steps whose folder has an index, be that sound or not; ascending. A folder that is not there has none.
  std::vector<std::int64_t> steps() const;

  // On one rank only. All throw CheckpointError.
  /// Makes the folder (0700) and finds out whether files can be made, flushed and renamed in it. On every rank, after
  /// the first has: each host sees for itself.
  void prepare(int rank) const;
  /// Removes what earlier starts left half-written or half-deleted. Returns names. Only under the lock.
  std::vector<std::string> clean_up() const;
  void begin(std::int64_t step) const;
  void abandon(std::int64_t step) const noexcept;
  /// Writes the index, durably, and puts the step in its place; a step of that number is replaced. What goes wrong
  /// after that takes nothing back: it is returned, one line each.
  std::vector<std::string> commit(const CheckpointIndex& index) const;
  /// Deletes all but the newest `keep` steps.
  void retain(std::int64_t keep) const;
  /// Steps above `step` get a name of their own, so that nobody goes on from them unasked. Returns them.
  std::vector<std::int64_t> set_aside_above(std::int64_t step) const;

 private:
  void discard(const std::filesystem::path& folder, std::int64_t step) const;

  std::filesystem::path path_;
  std::string run_;
};

}  // namespace orthant::ckpt
