// SPDX-License-Identifier: Apache-2.0
// Training and validation data, as the micro-batches of one data-parallel rank.
#pragma once

#include <optional>

#include <orthant/core/data/batch_source.hpp>
#include <orthant/core/step/llama_program.hpp>
#include <orthant/launch/run_config.hpp>

namespace orthant::launch {

class RunData {
 public:
  /// run  outlives this.
  /// Throws  DataError.
  explicit RunData(const RunConfig& run);

  std::int64_t validation_batches() const { return validation_ ? validation_->batches(run_.train.global_batch) : 0; }
  /// Of the training tokens.
  std::uint64_t fingerprint() const { return train_.tokens().fingerprint(); }
  /// Fills the micro-batches of a data-parallel rank; outlived by this.
  step::BatchReader reader(int dp_rank) const;

 private:
  const RunConfig& run_;
  data::BatchSource train_;
  std::optional<data::ValidationSource> validation_;
};

}  // namespace orthant::launch
