// SPDX-License-Identifier: Apache-2.0
// One run at a time in a folder: flock(2) on a file in it, which says who holds it. The kernel lets go of it when the
// process ends, however it ends.
#pragma once

#include <filesystem>
#include <string>

namespace orthant::ckpt {

class FolderLock {
 public:
  /// run  id of this start.
  /// Throws  ConfigError naming host, process and run of the holder if another process holds it; CheckpointError if the
  ///         file cannot be made.
  FolderLock(const std::filesystem::path& folder, const std::string& run);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int fd_ = -1;
};

}  // namespace orthant::ckpt
