// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/comm/operation.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>

namespace orthant::comm {

using Kind = Operation::Kind;

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::all_gather:
      return "all_gather";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::broadcast:
      return "broadcast";
    case Kind::transfer:
      return "transfer";
  }
  return "?";
}

const char* name_of(Reduction op) {
  switch (op) {
    case Reduction::sum:
      return "sum";
    case Reduction::max:
      return "max";
    case Reduction::min:
      return "min";
  }
  return "?";
}

std::int64_t agreed_count(const Operation& op) { return op.kind == Kind::reduce_scatter ? op.out.count : op.in.count; }

bool matches(const Operation& a, const Operation& b) {
  return a.kind == b.kind && agreed_count(a) == agreed_count(b) && a.in.type == b.in.type &&
         a.reduction == b.reduction && a.root == b.root;
}

std::string to_string(const Operation& op) {
  std::string detail;
  if (op.kind == Kind::all_reduce) detail = fmt::format(" {}", name_of(op.reduction));
  if (op.kind == Kind::broadcast) detail = fmt::format(" from {}", op.root);
  return fmt::format("{}{} of {} {}", name_of(op.kind), detail, agreed_count(op), orthant::name_of(op.in.type));
}

std::string describe(const Operation& op, std::int64_t sequence, const std::string& where) {
  return fmt::format("{}, #{} on {}", to_string(op), sequence, where);
}

std::string describe_group(const std::string& name, std::span<const int> members) {
  return fmt::format("{} [{}]", name, fmt::join(members, " "));
}

void check(const Operation& op, const std::string& where, int size) {
  const auto& [kind, in, out, reduction, into, root] = op;
  const auto require = [&](bool fits, const char* wanted) {
    if (fits) return;
    throw ShapeError(fmt::format("{} on {}: in {} {}, out {} {}, {} ranks; wanted {}", name_of(kind), where, in.count,
                                 orthant::name_of(in.type), out.count, orthant::name_of(out.type), size, wanted));
  };
  switch (kind) {
    case Kind::all_gather:
      require(in.type == out.type && out.count == in.count * size, "out = in x ranks, of the same type");
      break;
    case Kind::reduce_scatter:
      require(in.count == out.count * size, "in = out x ranks");
      require(in.type == DType::bf16 || in.type == DType::f32 || in.type == DType::f64, "bf16, fp32 or fp64");
      require(out.type == in.type || (in.type == DType::bf16 && out.type == DType::f32),
              "out of in's type, or fp32 for bf16");
      require(into == Into::replace || out.type != DType::bf16, "an fp32 or fp64 out to accumulate into");
      break;
    case Kind::all_reduce:
      require(in.type != DType::u8, "a type that has a sum");
      break;
    case Kind::all_to_all:
      require(in.type == out.type && in.count == out.count && in.count % size == 0, "in = out = a multiple of ranks");
      break;
    case Kind::broadcast:
      require(root >= 0 && root < size, "a root in the group");
      break;
    case Kind::transfer:
      break;
  }
}

Work PostingCollectives::checked(const Operation& op) {
  check(op, name(), size());
  return post(op);
}

Work PostingCollectives::all_gather(ConstSpan shard, Span full) {
  return checked({.kind = Kind::all_gather, .in = shard, .out = full});
}
Work PostingCollectives::reduce_scatter(Span full, Span shard, Into into) {
  return checked({.kind = Kind::reduce_scatter, .in = full, .out = shard, .into = into});
}
Work PostingCollectives::all_reduce(Span data, Reduction op) {
  return checked({.kind = Kind::all_reduce, .in = data, .out = data, .reduction = op});
}
Work PostingCollectives::all_to_all(ConstSpan in, Span out) {
  return checked({.kind = Kind::all_to_all, .in = in, .out = out});
}
Work PostingCollectives::broadcast(Span data, int root) {
  return checked({.kind = Kind::broadcast, .in = data, .out = data, .root = root});
}

}  // namespace orthant::comm
