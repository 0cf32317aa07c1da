// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/run_summary.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace orthant::launch {

std::string describe(const RunConfig& run) {
  return fmt::format(
      "mesh pp{} x dp{} x tp{}, schedule {}, {}, {}", run.mesh.pp, run.mesh.dp, run.mesh.tp, run.pipeline.schedule,
      run.fsdp.stage == 0 ? "dp (replicated weights)"
                          : fmt::format("fsdp stage {} ({} residency)", run.fsdp.stage,
                                        run.residencies().weights == train::Residency::layer ? "layer" : "chunk"),
      name_of(run.train.precision));
}

void write_summary(const RunConfig& run, const TrainSummary& summary, const SummaryParts& parts, RunFolder& folder) {
  nlohmann::ordered_json json{{"mesh", {{"pp", run.mesh.pp}, {"dp", run.mesh.dp}, {"tp", run.mesh.tp}}},
                              {"schedule", run.pipeline.schedule},
                              {"steps", summary.steps},
                              {"skipped_steps", summary.skipped_steps},
                              {"post_validation_copy_bytes", summary.copy_bytes},
                              {"stopped", summary.stopped},
                              {"loss", summary.last_loss},
                              {"tokens_per_s", summary.tokens_per_s},
                              {"memory", parts.memory},
                              {"goodput", parts.goodput},
                              {"checkpoints", parts.checkpoints}};
  if (summary.first_validation_loss) json["first_val_loss"] = *summary.first_validation_loss;
  if (summary.last_validation_loss) json["last_val_loss"] = *summary.last_validation_loss;
  folder.write("summary.json", json.dump(2) + "\n");
  fmt::print("{}\n{} of {} steps, {:.0f} tokens/s (median step)\n", describe(run), summary.steps, run.train.steps,
             summary.tokens_per_s);
  if (summary.last_validation_loss) {
    fmt::print("validation loss {:.4f} -> {:.4f}\n", *summary.first_validation_loss, *summary.last_validation_loss);
  }
  fmt::print("run folder {}\n", folder.path().string());
}

}  // namespace orthant::launch
