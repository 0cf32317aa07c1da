// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/base/atomic_file.hpp>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace orthant {

AtomicFile::AtomicFile(std::filesystem::path path, unsigned mode, RaiseFileError raise)
    : path_(std::move(path)), temporary_(path_.string() + ".tmp-XXXXXX"), raise_(raise) {
  fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  if (fd_ < 0) fail("create", errno);
  if (::fchmod(fd_, mode) != 0) {
    const int error = errno;
    ::close(std::exchange(fd_, -1));
    ::unlink(temporary_.c_str());
    fail("set the mode of", error);
  }
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::move(other.temporary_)),
      fd_(std::exchange(other.fd_, -1)),
      end_(other.end_),
      raise_(other.raise_) {}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::uint64_t>(written);
  }
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  write_at(end_, bytes);
  end_ += bytes.size();
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail("flush", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename into place", errno);
  const int closed = ::close(std::exchange(fd_, -1));  // from here on the file is no longer temporary
  if (closed != 0) fail("close", errno);
  flush_folder(path_.parent_path(), raise_);
}

void AtomicFile::fail(const char* operation, int error) const {
  std::string what = path_.string() + ": cannot " + operation + " it: " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) what += "; make room or choose another folder";
  if (error == ENOENT) what += "; make the folder first";
  raise_(what);
  std::abort();  // unreachable: raise_ throws
}

void flush_folder(const std::filesystem::path& folder, RaiseFileError raise) {
  const auto fail = [&](const char* operation, int error) {
    raise(folder.string() + ": cannot " + operation + " it: " + std::strerror(error));
  };
  const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail("open", errno);
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0 && error != EINVAL) fail("flush", error);  // EINVAL: a file system that cannot
}

void write_text_file(const std::filesystem::path& path, std::string_view text, RaiseFileError raise, unsigned mode) {
  AtomicFile file(path, mode, raise);
  file.append(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace orthant
