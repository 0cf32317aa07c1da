// SPDX-License-Identifier: Apache-2.0
// Where a start goes on from: which checkpoint, whether its run may be gone on with, and loading it. What all ranks do
// here they do alike: rank 0 chooses, and a checkpoint that is damaged for one is damaged for all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <orthant/core/ckpt/checkpoint_folder.hpp>
#include <orthant/launch/checkpoint_state.hpp>

namespace orthant::launch {

/// What must stay as it was for a run to be the same run: "train.seed: 1, was 2", one each. Keys that have no part in
/// the numbers (mesh, schedule, sharding, folders, logging) may change freely.
/// was, is  resolved configs, TOML.
std::vector<std::string> changed_keys(const std::string& was, const std::string& is);

struct Resumed {
  std::int64_t step = 0;  ///< steps done; 0: a new run
  std::string run;        ///< id of the start that had written it
};

/// By `checkpoint.resume`: "auto" takes the newest sound checkpoint and says loudly which were not, "never" wants a
/// folder without any, a step wants that very one. Collective over all ranks.
/// data  fingerprint of the training tokens.
/// say   called on rank 0 only.
/// Throws  ConfigError where the run is not the one that was saved (checkpoint.accept_changes lists what may differ),
///         or for "never"; CheckpointError if what was asked for is not there or damaged, or if none of those that are
///         there is sound.
Resumed resume(ParallelModel& model, const ckpt::CheckpointFolder& folder, std::uint64_t data,
               const std::function<void(const std::string&)>& say);

}  // namespace orthant::launch
