// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/ckpt/checkpoint_folder.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string_view>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>

namespace orthant::ckpt {
namespace {

namespace fs = std::filesystem;

std::string name_of_step(std::int64_t step) { return fmt::format("step-{:08}", step); }

/// The step of a name that is exactly name_of_step() of one.
std::optional<std::int64_t> step_of(std::string_view name) {
  constexpr std::string_view kBegin = "step-";
  if (!name.starts_with(kBegin) || name.size() < kBegin.size() + 8 || name.size() > kBegin.size() + 12)
    return std::nullopt;
  const auto digits = name.substr(kBegin.size());
  if (digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  const std::int64_t step = std::stoll(std::string(digits));
  if (name_of_step(step) != name) return std::nullopt;
  return step;
}

bool is_run_id(std::string_view text) {
  return !text.empty() && text.size() <= 32 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// "step-00000050.tmp-<run>" or ".trash-step-00000050-<run>"
bool is_leftover(std::string_view name) {
  constexpr std::string_view kTrash = ".trash-", kPending = ".tmp-";
  if (name.starts_with(kTrash)) {
    name.remove_prefix(kTrash.size());
    const auto dash = name.rfind('-');
    return dash != std::string_view::npos && step_of(name.substr(0, dash)) && is_run_id(name.substr(dash + 1));
  }
  const auto dot = name.find(kPending);
  return dot != std::string_view::npos && step_of(name.substr(0, dot)) && is_run_id(name.substr(dot + kPending.size()));
}

/// A file of a start that was killed while it wrote: "latest.tmp-<six>", "probe-<run>-<rank>", "probe-….tmp-<six>"
bool is_leftover_file(std::string_view name) {
  const auto temporary = name.rfind(".tmp-");
  const bool is_temporary = temporary != std::string_view::npos && name.size() == temporary + 11;
  if (is_temporary) name = name.substr(0, temporary);
  if (name == "latest") return is_temporary;
  constexpr std::string_view kProbe = "probe-";
  const auto dash = name.rfind('-');
  return name.starts_with(kProbe) && dash > kProbe.size() &&
         is_run_id(name.substr(kProbe.size(), dash - kProbe.size())) &&
         name.substr(dash + 1).find_first_not_of("0123456789") == std::string_view::npos;
}

[[noreturn]] void fail(const fs::path& path, const char* operation, int error) {
  throw CheckpointError(fmt::format("{}: cannot {} it: {}", path.string(), operation, std::strerror(error)));
}

void flush(const fs::path& folder) { flush_folder(folder, raise_as<CheckpointError>); }

void move(const fs::path& from, const fs::path& to, unsigned flags = 0) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) != 0) fail(from, "rename", errno);
}

/// With those above it that are missing.
void make_folder(const fs::path& path) {
  std::error_code error;
  const auto parent = path.parent_path();
  if (!parent.empty() && !fs::exists(fs::symlink_status(parent, error))) make_folder(parent);
  if (::mkdir(path.c_str(), 0700) == 0) return flush(parent);
  if (errno != EEXIST) fail(path, "make", errno);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error));
}

/// Names in a folder; of one that is not there, none.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace

fs::path CheckpointFolder::committed(std::int64_t step) const { return path_ / name_of_step(step); }
fs::path CheckpointFolder::pending(std::int64_t step) const {
  return path_ / fmt::format("{}.tmp-{}", name_of_step(step), run_);
}

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> steps;
  for (const auto& name : names_in(path_)) {
    const auto step = step_of(name);
    std::error_code error;
    if (step && is_folder(path_ / name) && fs::exists(path_ / name / "index.json", error)) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

void CheckpointFolder::prepare(int rank) const {
  make_folder(path_);
  std::error_code error;
  if (!fs::is_directory(path_, error)) fail(path_, "use", ENOTDIR);
  const auto probe = path_ / fmt::format("probe-{}-{}", run_, rank);
  AtomicFile file(probe, 0600, raise_as<CheckpointError>);
  file.append(std::as_bytes(std::span("probe", 5)));
  file.commit();
  if (::unlink(probe.c_str()) != 0) fail(probe, "remove", errno);
}

std::vector<std::string> CheckpointFolder::clean_up() const {
  std::vector<std::string> removed;
  for (const auto& name : names_in(path_)) {
    std::error_code error;
    const bool is_file = fs::is_regular_file(fs::symlink_status(path_ / name, error));
    if (is_file ? !is_leftover_file(name) : !is_leftover(name) || !is_folder(path_ / name)) continue;
    fs::remove_all(path_ / name, error);  // links inside are removed, not followed
    removed.push_back(name);
  }
  return removed;
}

void CheckpointFolder::begin(std::int64_t step) const {
  std::error_code error;
  fs::remove_all(pending(step), error);
  if (::mkdir(pending(step).c_str(), 0700) != 0) fail(pending(step), "make", errno);
}

void CheckpointFolder::abandon(std::int64_t step) const noexcept {
  std::error_code error;
  fs::remove_all(pending(step), error);
}

std::vector<std::string> CheckpointFolder::commit(const CheckpointIndex& index) const {
  const auto step = index.state.step;
  const auto from = pending(step), to = committed(step);
  AtomicFile file(from / "index.json", 0600, raise_as<CheckpointError>);
  const auto text = index.text();
  file.append(std::as_bytes(std::span(text)));
  file.commit();  // flushes the folder, too: with it every rank's file
  const bool replaces = is_folder(to);
  move(from, to, replaces ? RENAME_EXCHANGE : 0);
  std::vector<std::string> faults;
  const auto then = [&](auto action) {
    try {
      action();
    } catch (const Error& error) {
      faults.emplace_back(error.what());
    }
  };
  then([&] { flush(path_); });
  if (replaces) then([&] { discard(from, step); });
  then([&] { write_text_file(path_ / "latest", name_of_step(step) + "\n", raise_as<CheckpointError>, 0600); });
  return faults;
}

void CheckpointFolder::discard(const fs::path& folder, std::int64_t step) const {
  const auto trash = path_ / fmt::format(".trash-{}-{}", name_of_step(step), run_);
  std::error_code error;
  fs::remove_all(trash, error);
  move(folder, trash);
  flush(path_);  // before anything in it is deleted
  fs::remove_all(trash, error);
}

void CheckpointFolder::retain(std::int64_t keep) const {
  auto all = steps();
  for (; static_cast<std::int64_t>(all.size()) > keep; all.erase(all.begin()))
    discard(committed(all.front()), all.front());
}

std::vector<std::int64_t> CheckpointFolder::set_aside_above(std::int64_t step) const {
  std::vector<std::int64_t> moved;
  for (const auto newer : steps()) {
    if (newer <= step) continue;
    move(committed(newer), path_ / fmt::format("set-aside-{}-{}", name_of_step(newer), run_));
    moved.push_back(newer);
  }
  if (!moved.empty()) flush(path_);
  return moved;
}

}  // namespace orthant::ckpt
