// SPDX-License-Identifier: Apache-2.0
// One call of a collective or a channel, as data: what a back end queues, checks against its peers' calls, and names in
// messages. PostingCollectives turns the five calls into operations for back ends that treat them alike.
#pragma once

#include <span>
#include <string>

#include <orthant/core/comm/collectives.hpp>

namespace orthant::comm {

struct Operation {
  enum class Kind : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, transfer };
  Kind kind = Kind::transfer;
  ConstSpan in{};  ///< what this rank gives; receiving: no data, but count and type of what is wanted
  Span out{};      ///< what it gets; all_reduce and broadcast: the same memory as `in`
  Reduction reduction = Reduction::sum;
  Into into = Into::replace;
  int root = 0;  ///< broadcast

  static Operation send(ConstSpan data) { return {.in = data}; }
  static Operation receive(Span data) { return {.in = {nullptr, data.count, data.type}, .out = data}; }
};

const char* name_of(Operation::Kind kind);
const char* name_of(Reduction op);

/// Elements that every member must agree on: of a shard where one is passed, of the whole otherwise. Their type is that
/// of `in`.
std::int64_t agreed_count(const Operation&);

/// Whether two members' calls belong together: kind, count, type, reduction, root.
bool matches(const Operation&, const Operation&);

/// "all_reduce sum of 12 fp32"
std::string to_string(const Operation&);

/// "all_gather of 128 bf16, #7 on dp_gather [0 2 4 6]": what a Work says of itself. `where` is made by
/// describe_group().
std::string describe(const Operation&, std::int64_t sequence, const std::string& where);
/// "dp_gather [0 2 4 6]"
std::string describe_group(const std::string& name, std::span<const int> members);

/// Throws ShapeError, naming operation and group, where counts, types or the root do not fit a group of `size` ranks.
void check(const Operation&, const std::string& where, int size);

/// Collectives over one virtual function.
class PostingCollectives : public Collectives {
 public:
  using Collectives::Collectives;

  Work all_gather(ConstSpan shard, Span full) final;
  Work reduce_scatter(Span full, Span shard, Into into) final;
  Work all_reduce(Span data, Reduction op) final;
  Work all_to_all(ConstSpan in, Span out) final;
  Work broadcast(Span data, int root) final;

 protected:
  /// Starts a call whose spans have been checked; never blocks.
  virtual Work post(const Operation&) = 0;

 private:
  Work checked(const Operation&);
};

}  // namespace orthant::comm
