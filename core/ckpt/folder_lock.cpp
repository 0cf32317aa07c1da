// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/folder_lock.hpp>

#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/base/host_name.hpp>

namespace orthant::ckpt {

FolderLock::FolderLock(const std::filesystem::path& folder, const std::string& run) {
  const auto path = folder / "lock";
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd_ < 0) throw CheckpointError(fmt::format("{}: cannot be made: {}", path.string(), std::strerror(errno)));
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    const int error = errno;
    std::array<char, 256> text{};
    const auto length = ::pread(fd_, text.data(), text.size() - 1, 0);
    ::close(fd_);
    if (error != EWOULDBLOCK)
      throw CheckpointError(fmt::format("{}: cannot be locked: {}", path.string(), std::strerror(error)));
    throw ConfigError(fmt::format("checkpoint.dir: another run is using '{}' ({}); wait for it, or use another folder",
                                  folder.string(), length > 0 ? text.data() : "it does not say who"));
  }
  const auto text = fmt::format("host {}, process {}, run {}", host_name(), ::getpid(), run);
  // For people only: that it could not be written does not matter.
  if (::ftruncate(fd_, 0) != 0 || ::pwrite(fd_, text.data(), text.size(), 0) < 0) return;
}

FolderLock::~FolderLock() { ::close(fd_); }

}  // namespace orthant::ckpt
