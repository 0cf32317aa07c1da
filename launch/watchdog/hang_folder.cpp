// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/watchdog/hang_folder.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>

namespace orthant::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestDump = 64U << 20;

/// The r of "rank<r>.json".
std::optional<int> rank_in(std::string_view name) {
  if (!name.starts_with("rank") || !name.ends_with(".json")) return std::nullopt;
  name.remove_prefix(4);
  name.remove_suffix(5);
  int rank = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
  if (error != std::errc{} || end != name.data() + name.size() || std::to_string(rank) != name) return std::nullopt;
  return rank;
}

fs::path dump_path(const fs::path& folder, int rank) { return folder / fmt::format("rank{}.json", rank); }

std::vector<int> list_ranks(const fs::path& folder) {
  std::vector<int> ranks;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (const auto rank = rank_in(entry->path().filename().string()); rank && *rank >= 0) ranks.push_back(*rank);
  }
  std::ranges::sort(ranks);
  return ranks;
}

Result<RankDump> read_dump(const fs::path& path, int rank) {
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) return Failure{"not a file"};
  const auto bytes = fs::file_size(path, error);
  if (error) return Failure{error.message()};
  if (bytes > kLargestDump) return Failure{fmt::format("{} bytes, too many for a dump", bytes)};
  std::string text(bytes, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(bytes))) return Failure{"cannot be read"};
  auto dump = parse_dump(text);
  if (dump && dump->rank != rank) return Failure{fmt::format("holds the dump of rank {}", dump->rank)};
  return dump;
}

void make(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    throw CommError(fmt::format("cannot make '{}' for dumps: {}", folder.string(), std::strerror(errno)));
}

}  // namespace

const RankDump* HangDumps::find(int rank) const {
  const auto found = std::ranges::find(dumps, rank, &RankDump::rank);
  return found == dumps.end() ? nullptr : &*found;
}

HangDumps read_dumps(const fs::path& folder) {
  HangDumps all;
  for (const int rank : list_ranks(folder)) {
    if (auto dump = read_dump(dump_path(folder, rank), rank)) {
      all.size = std::max(all.size, dump->size);
      all.dumps.push_back(std::move(*dump));
    } else {
      all.damaged.push_back({rank, dump.why()});
    }
  }
  return all;
}

void HangFolder::write(const RankDump& dump) const {
  make(path_);
  const std::string text = to_json_text(dump);
  AtomicFile file(dump_path(path_, dump.rank), 0600, raise_as<CommError>);
  file.append(std::as_bytes(std::span(text)));
  file.commit();
}

std::vector<int> HangFolder::ranks_with_dumps() const { return list_ranks(path_); }

HangDumps HangFolder::read() const { return read_dumps(path_); }

bool HangFolder::claim_verdict(const std::string& text) const {
  const int fd = ::open((path_ / "verdict.txt").c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd < 0) return errno != EEXIST;                         // where nothing can be written nobody can be before us
  static_cast<void>(!::write(fd, text.data(), text.size()));  // it is printed, too
  ::close(fd);
  return true;
}

bool HangFolder::has_verdict() const {
  std::error_code error;
  return fs::exists(path_ / "verdict.txt", error);
}

}  // namespace orthant::launch
