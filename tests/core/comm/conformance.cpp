// SPDX-License-Identifier: Apache-2.0
#include "conformance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>
#include <stdexcept>
#include <string>

#include "sample.hpp"

namespace orthant::tests {
namespace {

using comm::Collectives;
using comm::Into;
using comm::Reduction;

void require(bool holds, const std::string& claim) {
  if (!holds) throw std::runtime_error(claim);
}

/// FNV-1a over the results in the order in which they were checked.
struct Hash {
  std::uint64_t value = 0xcbf29ce484222325U;
  template <class T>
  void add(const std::vector<T>& data) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(data.data());
    for (std::size_t i = 0; i < data.size() * sizeof(T); ++i) value = (value ^ bytes[i]) * 0x100000001b3U;
  }
};

/// One group, one element type, one size.
template <class T>
class Case {
 public:
  Case(Collectives& group, std::int64_t count, Hash& hash)
      : group_(group), n_(count), size_(group.size()), me_(group.rank()), hash_(hash) {}

  void all_gather() {
    std::vector<T> full(at(n_ * size_)), wanted;
    for (int r = 0; r < size_; ++r) {
      const auto shard = values<T>(r, 0, n_);
      wanted.insert(wanted.end(), shard.begin(), shard.end());
    }
    auto mine = values<T>(me_, 0, n_);
    group_.all_gather(span_of(mine), span_of(full)).wait(kPatience);
    expect(full, wanted, "all_gather");

    std::ranges::fill(full, T{});
    std::ranges::copy(mine, full.begin() + me_ * n_);
    group_.all_gather({full.data() + me_ * n_, n_, kType<T>}, span_of(full)).wait(kPatience);
    expect(full, wanted, "all_gather in place");
  }

  void all_to_all() {
    auto in = values<T>(me_, 0, n_ * size_);
    std::vector<T> out(in.size()), wanted;
    for (int r = 0; r < size_; ++r) {
      const auto part = values<T>(r, me_ * n_, n_);
      wanted.insert(wanted.end(), part.begin(), part.end());
    }
    group_.all_to_all(span_of(in), span_of(out)).wait(kPatience);
    expect(out, wanted, "all_to_all");
  }

  void broadcast() {
    for (const int root : {0, size_ - 1}) {
      auto data = values<T>(me_, 0, n_);
      group_.broadcast(span_of(data), root).wait(kPatience);
      expect(data, values<T>(root, 0, n_), "broadcast");
    }
  }

  void all_reduce(Reduction op) {
    using E = Element<T>;
    auto data = values<T>(me_, 0, n_);
    std::vector<T> wanted;
    for (std::int64_t i = 0; i < n_; ++i) {
      auto best = E::load(value_at<T>(0, i));
      for (int r = 1; r < size_ && op != Reduction::sum; ++r) {
        const auto next = E::load(value_at<T>(r, i));
        best = op == Reduction::max ? std::max(best, next) : std::min(best, next);
      }
      wanted.push_back(E::store(op == Reduction::sum ? serial_sum<T>(size_, i) : best));
    }
    group_.all_reduce(span_of(data), op).wait(kPatience);
    expect(data, wanted, "all_reduce");
  }

  template <class Out>
  void reduce_scatter() {
    for (const Into into : {Into::replace, Into::accumulate}) {
      if (into == Into::accumulate && std::is_same_v<Out, Bf16>) continue;
      auto full = values<T>(me_, 0, n_ * size_);
      auto shard = values<Out>(me_ + 100, 0, n_);
      std::vector<Out> wanted;
      for (std::int64_t i = 0; i < n_; ++i) {
        auto sum = static_cast<typename Element<Out>::Sum>(serial_sum<T>(size_, me_ * n_ + i));
        if (into == Into::accumulate) sum = Element<Out>::load(shard[at(i)]) + sum;
        wanted.push_back(Element<Out>::store(sum));
      }
      group_.reduce_scatter(span_of(full), span_of(shard), into).wait(kPatience);
      expect(shard, wanted, "reduce_scatter");
    }
  }

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

  template <class Got>
  void expect(const std::vector<Got>& got, const std::vector<Got>& wanted, const char* what) {
    hash_.add(got);
    const auto [first, other] = std::ranges::mismatch(got, wanted);
    require(first == got.end() && other == wanted.end(),
            fmt::format("{} of {} {} over {} ranks: element {} of {} differs on rank {}", what, n_, name_of(kType<T>),
                        size_, first - got.begin(), got.size(), me_));
  }

  Collectives& group_;
  std::int64_t n_;
  int size_, me_;
  Hash& hash_;
};

template <class T>
void check_type(Collectives& group, std::int64_t count, Hash& hash) {
  Case<T> one(group, count, hash);
  one.all_gather();
  one.all_to_all();
  one.broadcast();
  if constexpr (!std::is_same_v<T, std::uint8_t>) {
    for (const Reduction op : {Reduction::sum, Reduction::max, Reduction::min}) one.all_reduce(op);
  }
  if constexpr (!std::is_integral_v<T>) one.template reduce_scatter<T>();
  if constexpr (std::is_same_v<T, Bf16>) one.template reduce_scatter<float>();
}

}  // namespace

std::unique_ptr<Collectives> make_world(comm::Fabric& fabric) {
  std::vector<int> all(static_cast<std::size_t>(fabric.size()));
  std::iota(all.begin(), all.end(), 0);
  return fabric.make_collectives("world", all);
}

std::uint64_t check_collectives(comm::Fabric& fabric) {
  const auto world = make_world(fabric);
  Hash hash;
  for (const std::int64_t count : {0, 1, 7, 1000, 20'011}) {
    check_type<std::uint8_t>(*world, count, hash);
    check_type<std::int64_t>(*world, count, hash);
    check_type<Bf16>(*world, count, hash);
    check_type<float>(*world, count, hash);
    check_type<double>(*world, count, hash);
  }
  // Blocks of more than one piece, and an all_reduce that the ranks do not divide evenly.
  const std::int64_t pieces = 262'151;  // a little over 1 MiB of fp32
  Case<float>(*world, pieces, hash).all_gather();
  Case<float>(*world, pieces * fabric.size() - 1, hash).all_reduce(Reduction::sum);
  Case<Bf16>(*world, 2 * pieces, hash).reduce_scatter<float>();
  Case<double>(*world, pieces, hash).broadcast();

  std::vector<std::int64_t> hashes(static_cast<std::size_t>(fabric.size()));
  auto mine = static_cast<std::int64_t>(hash.value);
  world->all_gather({&mine, 1, DType::i64}, span_of(hashes)).wait(kPatience);
  Hash all;
  all.add(hashes);
  return all.value;
}

void check_concurrency(comm::Fabric& fabric) {
  std::vector<int> halves[2];
  for (int r = 0; r < fabric.size(); ++r) halves[r % 2].push_back(r);
  std::vector<std::unique_ptr<Collectives>> groups;
  groups.push_back(make_world(fabric));
  for (const auto& half : halves) {
    if (half.empty()) continue;
    if (auto made = fabric.make_collectives("half", half)) groups.push_back(std::move(made));
  }
  groups.push_back(make_world(fabric));

  const int depth = 3;
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::vector<std::vector<float>> buffers;
    std::vector<comm::Work> works;
    for (int d = 0; d < depth; ++d) {
      for (const auto& group : groups) {
        buffers.push_back(values<float>(group->rank(), d, d == 1 ? 50'000 : 17 * (repeat + 1)));
        works.push_back(group->all_reduce(span_of(buffers.back()), Reduction::sum));
      }
    }
    while (!works.empty()) {
      works.back().wait(kPatience);
      works.pop_back();
    }
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      const int size = groups[b % groups.size()]->size();
      const auto d = static_cast<std::int64_t>(b / groups.size());
      for (std::size_t i = 0; i < buffers[b].size(); ++i) {
        require(buffers[b][i] == serial_sum<float>(size, d + static_cast<std::int64_t>(i)),
                "concurrent operations mixed their data");
      }
    }
  }
}

void check_order(comm::Fabric& fabric) {
  const auto world = make_world(fabric);
  constexpr int kOperations = 50;
  std::vector<std::vector<float>> data(kOperations);
  std::vector<comm::Work> works;
  std::vector<int> order;  // written by whoever completes: one operation of a communicator at a time
  for (int k = 0; k < kOperations; ++k) {
    data[static_cast<std::size_t>(k)].assign(k % 3 == 0 ? 20'000 : 1, 1.0F);
    works.push_back(world->all_reduce(span_of(data[static_cast<std::size_t>(k)]), Reduction::sum));
    if (k + 1 < kOperations) works.back().then([&order, k](std::exception_ptr) { order.push_back(k); });
  }
  works.back().wait(kPatience);
  for (auto& work : works) work.wait(kPatience);
  std::vector<int> wanted(kOperations - 1);
  std::iota(wanted.begin(), wanted.end(), 0);
  require(order == wanted, "operations of one communicator completed out of order");
}

void check_channels(comm::Fabric& fabric) {
  const int size = fabric.size(), me = fabric.rank();
  if (size == 1) return;
  std::unique_ptr<comm::Channel> to_next, from_previous;
  for (int r = 0; r < size; ++r) {
    auto end = fabric.make_channel("ring", r, (r + 1) % size);
    if (r == me)
      to_next = std::move(end);
    else if (end)
      from_previous = std::move(end);
  }
  const int previous = (me + size - 1) % size;
  require(to_next->peer() == (me + 1) % size && from_previous->peer() == previous, "a channel knows its peer");

  std::vector<std::vector<float>> sent, got;
  std::vector<comm::Work> works;
  for (const std::int64_t count : {3, 0, 1, 700'001, 12}) {
    sent.push_back(values<float>(me, count, count));
    works.push_back(to_next->send(span_of(sent.back())));
  }
  for (const auto& message : sent) {
    got.emplace_back(message.size());
    works.push_back(from_previous->receive(span_of(got.back())));
  }
  for (auto& work : works) work.wait(kPatience);
  for (const auto& message : got) {
    const auto count = static_cast<std::int64_t>(message.size());
    require(message == values<float>(previous, count, count), "a message arrived changed");
  }
}

void check_mismatch(comm::Fabric& fabric) {
  const int ends[] = {0, 1};
  const auto pair = fabric.make_collectives("pair", ends);
  const auto short_pair = fabric.make_collectives("short_pair", ends);
  if (!pair) return;
  const auto expect_error = [&](comm::Work work, const std::string& a, const std::string& b) {
    try {
      work.wait(kPatience);
    } catch (const CommError& error) {
      const std::string what = error.what();
      for (const std::string& part :
           {std::string("mismatch at #0"), std::string("rank 0 called"), std::string("rank 1 called"), a, b}) {
        require(what.find(part) != std::string::npos, fmt::format("'{}' does not say '{}'", what, part));
      }
      return;
    }
    throw std::runtime_error("calls that do not belong together went through");
  };
  std::vector<float> data(8), more(16);
  const comm::Span some{data.data(), 4, DType::f32};
  expect_error(
      pair->rank() == 0 ? pair->all_reduce(some, Reduction::sum) : pair->all_gather(some, {more.data(), 8, DType::f32}),
      "all_reduce", "all_gather");
  const comm::Span fewer{data.data(), 4 + short_pair->rank(), DType::f32};
  expect_error(short_pair->all_reduce(fewer, Reduction::sum), "all_reduce sum of", "fp32");
}

void check_agreement(comm::Fabric& fabric) {
  const auto world = make_world(fabric);
  const auto texts =
      comm::gather_strings(*world, std::string(static_cast<std::size_t>(fabric.rank()), 'x') + "!", kPatience);
  for (std::size_t r = 0; r < texts.size(); ++r) require(texts[r] == std::string(r, 'x') + "!", "gather_strings");
  comm::barrier(*world, kPatience);
  comm::check_same(*world, "plan", 7, kPatience);
  if (fabric.size() < 3) return;
  try {
    comm::check_same(*world, "plan", fabric.rank() == 1 ? 8 : 7, kPatience);
  } catch (const InternalError& error) {
    require(std::string(error.what()).find("plan differs over world: ranks 1 (") == 0, error.what());
    return;
  }
  throw std::runtime_error("check_same overlooked rank 1");
}

}  // namespace orthant::tests
