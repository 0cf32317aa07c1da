// SPDX-License-Identifier: Apache-2.0
#include <orthant/core/model/init.hpp>

#include <array>
#include <cmath>
#include <numbers>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <xxhash.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/base/philox.hpp>

namespace orthant::model {
namespace {

/// (0, 1]: its logarithm is finite.
double unit_interval(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(high) << 32) | low;
  return static_cast<double>((bits >> 11) + 1) * 0x1p-53;
}

std::array<double, 2> normal_pair(std::uint64_t seed, std::uint64_t stream, std::uint64_t block) {
  const PhiloxCounter random = philox(block, stream, seed);
  const double radius = std::sqrt(-2.0 * std::log(unit_interval(random[0], random[1])));
  const double angle = 2.0 * std::numbers::pi * unit_interval(random[2], random[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

template <class T>
void fill_normal(T* out, shard::Run run, std::uint64_t stream, const InitOptions& options) {
  at::parallel_for(0, run.length, 4096, [&](std::int64_t from, std::int64_t to) {
    std::array<double, 2> pair{};
    for (std::int64_t i = from; i < to; ++i) {
      const auto global = static_cast<std::uint64_t>(run.global + i);
      if (i == from || global % 2 == 0) pair = normal_pair(options.seed, stream, global / 2);
      out[i] = static_cast<T>(static_cast<float>(options.std * pair[global % 2]));
    }
  });
}

template <class T>
void fill(const shard::ParameterTable& table, const InitOptions& options, const UnitSlice& slice) {
  T* const values = slice.values.mutable_data_ptr<T>();
  const std::int64_t count = slice.values.numel();
  std::fill_n(values, count, T{0});
  for (int index : slice.unit.parameters) {
    const shard::LogicalParameter& parameter = table.parameters()[index];
    const std::int64_t first = slice.begin - parameter.offset;  // of the slice, in the parameter's local elements
    const std::uint64_t stream = stream_of(parameter.name);
    for (const shard::Run& run : parameter.placement.runs_within(first, first + count)) {
      T* const out = values + (run.local - first);
      switch (parameter.init) {
        case shard::Init::ones:
          std::fill_n(out, run.length, T{1});
          break;
        case shard::Init::normal:
          fill_normal(out, run, stream, options);
          break;
      }
    }
  }
}

}  // namespace

std::uint64_t stream_of(std::string_view name) { return XXH64(name.data(), name.size(), 0); }

double standard_normal(std::uint64_t seed, std::uint64_t stream, std::int64_t index) {
  return normal_pair(seed, stream, static_cast<std::uint64_t>(index) / 2)[index % 2];
}

void init_unit(const shard::ParameterTable& table, const InitOptions& options, UnitSlice slice) {
  if (!slice.values.is_contiguous() || slice.values.dim() != 1) throw ShapeError("init_unit: the slice must be flat");
  AT_DISPATCH_FLOATING_TYPES(slice.values.scalar_type(), "init_unit", [&] { fill<scalar_t>(table, options, slice); });
}

}  // namespace orthant::model
