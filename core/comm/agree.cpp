// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/agree.hpp>

#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>

namespace orthant::comm {
namespace {

std::vector<std::int64_t> gather_numbers(Collectives& group, std::int64_t mine, std::chrono::milliseconds timeout) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather({&mine, 1, DType::i64}, {all.data(), group.size(), DType::i64}).wait(timeout);
  return all;
}

}  // namespace

std::vector<std::string> gather_strings(Collectives& group, const std::string& mine,
                                        std::chrono::milliseconds timeout) {
  const auto lengths = gather_numbers(group, static_cast<std::int64_t>(mine.size()), timeout);
  const std::int64_t longest = std::ranges::max(lengths);
  std::string padded = mine;
  padded.resize(static_cast<std::size_t>(longest));
  std::string all(static_cast<std::size_t>(longest * group.size()), '\0');
  group.all_gather({padded.data(), longest, DType::u8}, {all.data(), longest * group.size(), DType::u8}).wait(timeout);

  std::vector<std::string> texts;
  for (std::size_t r = 0; r < lengths.size(); ++r) {
    texts.push_back(all.substr(r * static_cast<std::size_t>(longest), static_cast<std::size_t>(lengths[r])));
  }
  return texts;
}

void barrier(Collectives& group, std::chrono::milliseconds timeout) { gather_numbers(group, 0, timeout); }

void check_same(Collectives& group, const std::string& what, std::uint64_t hash, std::chrono::milliseconds timeout) {
  const auto hashes = gather_numbers(group, static_cast<std::int64_t>(hash), timeout);
  const auto votes = [&](std::int64_t value) { return std::ranges::count(hashes, value); };
  const std::int64_t common =
      *std::ranges::max_element(hashes, {}, votes);  // the first of equals, the same on every rank
  if (votes(common) == group.size()) return;
  std::vector<std::string> differ;
  for (std::size_t r = 0; r < hashes.size(); ++r) {
    if (hashes[r] != common) differ.push_back(fmt::format("{} ({:016x})", r, static_cast<std::uint64_t>(hashes[r])));
  }
  throw InternalError(fmt::format("{} differs over {}: ranks {} against {:016x} elsewhere", what, group.name(),
                                  fmt::join(differ, ", "), static_cast<std::uint64_t>(common)));
}

}  // namespace orthant::comm
