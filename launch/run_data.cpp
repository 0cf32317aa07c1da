// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/run_data.hpp>

namespace orthant::launch {

RunData::RunData(const RunConfig& run)
    : run_(run),
      train_(data::TokenFile(run.data.train), {.seq_len = run.train.seq_len,
                                               .global_batch = run.train.global_batch,
                                               .seed = run.train.seed,
                                               .shuffle = run.data.shuffle}) {
  if (!run.data.validation.empty()) validation_.emplace(data::TokenFile(run.data.validation), run.train.seq_len);
}

step::BatchReader RunData::reader(int dp_rank) const {
  return [this, dp_rank](const step::StepInput& input, MicrobatchId microbatch, std::int64_t* inputs,
                         std::int64_t* targets) {
    const auto first = run_.first_sample(dp_rank, microbatch);
    const data::BatchView out{.count = run_.train.micro_batch, .inputs = inputs, .targets = targets};
    if (input.training) {
      train_.microbatch(input.step, first, out);
    } else {
      validation_->batch(input.step * run_.train.global_batch + first, out);
    }
  };
}

}  // namespace orthant::launch
