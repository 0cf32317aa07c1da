// SPDX-License-Identifier: Apache-2.0
// The one table of logical parameters: global name and shape, placement, flat unit. Reductions, norm counting,
// initialisation, weight files and memory plans all read it; there are no separate flags anywhere. A flat unit is what
// is gathered and reduced together; a region is one physical matrix in it, which may hold several logical parameters
// one under the other (QKV, gate-up).
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <orthant/core/base/id.hpp>
#include <orthant/core/shard/placement.hpp>

namespace orthant::shard {

enum class UnitKind : std::uint8_t { embedding, block, head, norms };
enum class Init : std::uint8_t { normal, ones };

/// Regions start at multiples of this many elements, so that vector code sees the same alignment on every mesh.
inline constexpr std::int64_t kRegionAlignment = 64;
/// A unit is padded to this many elements times the shard degree.
inline constexpr std::int64_t kShardAlignment = 128;

struct LogicalParameter {
  std::string name;  ///< Hugging Face's Llama name
  Placement placement;
  UnitId unit;
  std::int64_t offset = 0;  ///< first local element in the unit
  Init init = Init::normal;
  bool partial = false;  ///< the gradient here is one of placement.copies terms
};

struct Region {
  std::int64_t offset = 0;
  Shape shape;  ///< local
};

struct FlatUnit {
  UnitId id;
  std::string name;  ///< "layers.3", "embedding", "norms"
  UnitKind kind = UnitKind::block;
  bool decays = true;     ///< weight decay applies (matrices only)
  bool counted = true;    ///< of a replica group, the one that adds what it owns to the norm and writes it to files
  bool tied = false;      ///< the same parameter also lives on the other end of the pipeline
  double lr_scale = 1.0;  ///< of its parameter group
  std::optional<double> weight_decay = {};  ///< of its parameter group; none: the optimizer's, where `decays`
  std::int64_t frozen_steps = 0;            ///< in the first so many steps the unit does not train; kAlways: in none
  std::int64_t numel = 0;                   ///< local elements, padding excluded
  std::vector<Region> regions = {};
  std::vector<int> parameters = {};  ///< indices into ParameterTable::parameters()

  static constexpr std::int64_t kAlways = std::numeric_limits<std::int64_t>::max();
  bool trains() const { return frozen_steps != kAlways; }                   ///< in some step
  bool trains_in(std::int64_t step) const { return step >= frozen_steps; }  ///< 0-based

  std::int64_t padded_numel(int shard_degree) const;
  std::int64_t shard_numel(int shard_degree) const { return padded_numel(shard_degree) / shard_degree; }
};

class ParameterTable {
 public:
  struct Part {
    std::string name;
    Placement placement;
    Init init = Init::normal;
    bool partial = false;
  };

  /// Declares a unit; its id is global (the same on every rank that holds it). Declaring it again (tied weights) is an
  /// error.
  void add_unit(FlatUnit unit);
  /// Appends a region that holds `parts` one under the other (all 1-D, or 2-D with the same number of local columns).
  Region add_region(UnitId unit, const std::vector<Part>& parts);

  bool has(UnitId) const;
  const FlatUnit& unit(UnitId) const;
  const std::vector<FlatUnit>& units() const { return units_; }  ///< in declaration order
  const std::vector<LogicalParameter>& parameters() const { return parameters_; }

 private:
  FlatUnit& mutable_unit(UnitId);
  std::vector<FlatUnit> units_;
  std::vector<LogicalParameter> parameters_;
};

}  // namespace orthant::shard
