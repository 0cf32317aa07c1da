// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/base/mapped_file.hpp>

#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace orthant {

MappedFile::MappedFile(const std::filesystem::path& path, RaiseFileError raise) {
  const auto fail = [&](const std::string& why) { raise(path.string() + ": cannot be read: " + why); };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail(std::strerror(errno));
  struct stat status {};
  std::string why;
  if (::fstat(fd, &status) != 0) {
    why = std::strerror(errno);
  } else if (!S_ISREG(status.st_mode)) {
    why = "it is not a regular file";
  } else if (status.st_size > 0) {
    const auto size = static_cast<std::size_t>(status.st_size);
    void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      why = std::strerror(errno);
    } else {
      bytes_ = {static_cast<const std::byte*>(data), size};
    }
  }
  ::close(fd);
  stamp_ = stamp_of(status);
  if (!why.empty()) fail(why);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::Stamp MappedFile::stamp_of(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = status.st_size,
          .modified_s = status.st_mtim.tv_sec,
          .modified_ns = status.st_mtim.tv_nsec};
}

bool MappedFile::is_unchanged(const std::filesystem::path& path) const {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return true;
  const Stamp now = stamp_of(status);
  return now == stamp_ || now.device != stamp_.device || now.inode != stamp_.inode;
}

}  // namespace orthant
