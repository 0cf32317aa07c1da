// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/train_command.hpp>

#include <memory>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>
#include <orthant/core/comm/mpi_fabric.hpp>
#include <orthant/core/data/batch_source.hpp>
#include <orthant/core/memory/counting_allocator.hpp>
#include <orthant/core/stream/cpu_scheduler.hpp>
#include <orthant/core/trace/chrome_trace.hpp>
#include <orthant/launch/cost_profile.hpp>
#include <orthant/launch/emulated_run.hpp>
#include <orthant/launch/memory_plan.hpp>
#include <orthant/launch/memory_report.hpp>
#include <orthant/launch/parallelize.hpp>
#include <orthant/launch/stop_signal.hpp>
#include <orthant/launch/trainer.hpp>
#include <orthant/launch/weights.hpp>

namespace orthant::launch {
namespace {

constexpr std::chrono::seconds kStartTimeout{120};

/// Training and validation data, as the micro-batches of one data-parallel rank.
class RunData {
 public:
  explicit RunData(const RunConfig& run)
      : run_(run),
        train_(data::TokenFile(run.data.train), {.seq_len = run.train.seq_len,
                                                 .global_batch = run.train.global_batch,
                                                 .seed = run.train.seed,
                                                 .shuffle = run.data.shuffle}) {
    if (!run.data.validation.empty()) validation_.emplace(data::TokenFile(run.data.validation), run.train.seq_len);
  }

  std::int64_t validation_batches() const { return validation_ ? validation_->batches(run_.train.global_batch) : 0; }

  step::BatchReader reader(int dp_rank) const {
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

 private:
  const RunConfig& run_;
  data::BatchSource train_;
  std::optional<data::ValidationSource> validation_;
};

void write_trace(ParallelModel& model, RunFolder* folder) {
  if (model.run().trace.steps == 0) return;
  const auto& context = model.context();
  const trace::ChromeProcess process{.rank = context.fabric.rank(),
                                     .name = fmt::format("rank {} {}", context.fabric.rank(), model.mesh().text())};
  const auto fragments = comm::gather_strings(*model.mesh().control().collectives,
                                              trace::chrome_events(context.tracer, process), context.timeout);
  if (folder != nullptr) folder->write("trace.json", trace::chrome_trace(fragments));
}

std::string describe(const RunConfig& run) {
  return fmt::format(
      "mesh pp{} x dp{} x tp{}, schedule {}, {}, {}", run.mesh.pp, run.mesh.dp, run.mesh.tp, run.pipeline.schedule,
      run.fsdp.stage == 0 ? "dp (replicated weights)"
                          : fmt::format("fsdp stage {} ({} residency)", run.fsdp.stage,
                                        run.residencies().weights == train::Residency::layer ? "layer" : "chunk"),
      name_of(run.train.precision));
}

void write_summary(const RunConfig& run, const TrainSummary& summary, nlohmann::ordered_json memory,
                   RunFolder& folder) {
  nlohmann::ordered_json json{{"mesh", {{"pp", run.mesh.pp}, {"dp", run.mesh.dp}, {"tp", run.mesh.tp}}},
                              {"schedule", run.pipeline.schedule},
                              {"steps", summary.steps},
                              {"skipped_steps", summary.skipped_steps},
                              {"post_validation_copy_bytes", summary.copy_bytes},
                              {"stopped", summary.stopped},
                              {"loss", summary.last_loss},
                              {"tokens_per_s", summary.tokens_per_s},
                              {"memory", std::move(memory)}};
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

void announce_fault(const RunConfig& run) {
  if (run.fault.kind == "none") return;
  fmt::print("fault injection is on: {} on rank {} in step {}\n", run.fault.kind, run.fault.rank, run.fault.step);
}

/// What crosses a stage border for one micro-batch.
std::int64_t message_bytes(const RunConfig& run) {
  const auto rows = run.train.seq_len * run.train.micro_batch / (run.sequence_parallel ? run.mesh.tp : 1);
  return rows * run.model.hidden * static_cast<std::int64_t>(size_of(run.train.precision));
}

/// One rank's run after the config was read. Declared so that the scheduler, with its threads, goes before what its
/// tasks refer to.
class RankRun {
 public:
  RankRun(const RunConfig& run, comm::MpiFabric& fabric)
      : run_(run),
        data_(run),
        scheduler_({.deadline = std::chrono::seconds(run.timeout_s),
                    .tracer = &tracer_,
                    .on_failure = [&fabric](std::exception_ptr) { fabric.abort("another task of this rank failed"); }}),
        context_{.fabric = fabric,
                 .scheduler = scheduler_,
                 .tracer = tracer_,
                 .compute = scheduler_.add_stream("compute", stream::StreamKind::compute),
                 .timeout = std::chrono::seconds(run.timeout_s),
                 .stop_requested = [] { return stop_requested() != 0; }} {}

  int execute(const TrainArguments& arguments) {
    auto plan = plan_pipeline(run_);
    mesh_.emplace(context_.fabric, scheduler_, run_.mesh_shape(), plan.topology(run_.model.tie_embeddings));
    auto& control = *mesh_->control().collectives;
    comm::check_same(control, "the resolved config", std::hash<std::string>{}(run_.resolved), kStartTimeout);
    const auto limit = find_memory_limit(run_, control, kStartTimeout);
    choose_checkpoints(run_, limit, plan);
    agree_on_plan(plan, *mesh_, kStartTimeout);
    const double message_us = measure_message_us(*mesh_, plan.topology(false), message_bytes(run_), kStartTimeout);
    const auto memory = plan_memory(run_, plan);
    require_fit(memory, limit);
    auto& allocator = memory::CountingAllocator::install();
    allocator.reset_peak();
    const auto resident_empty = peak_resident_bytes();
    model_ = parallelize(run_, plan, *mesh_, context_, data_.reader(mesh_->dp_rank()));
    if (!arguments.load_weights.empty()) load_weights(*model_, arguments.load_weights);

    const bool first = context_.fabric.rank() == 0;
    std::optional<RunFolder> folder;
    if (first) {
      for (const auto& path : {arguments.save_weights, arguments.save_gradients}) {
        // Found out now and not after the training: can the file be made there?
        if (!path.empty()) AtomicFile(path, 0600, raise_as<CheckpointError>);
      }
      announce_fault(run_);
      folder.emplace(run_.run_dir);
      folder->write("config.toml", run_.resolved);
      if (!plan.reason.empty()) fmt::print("{}\n", plan.reason);
      folder->write("plan.json", memory_json(run_, plan, memory, limit).dump(2) + "\n");
      if (const auto chosen = describe_checkpoints(run_, plan); !chosen.empty()) fmt::print("{}\n", chosen);
      fmt::print("{}\n{}\nrun folder {}\n", describe(run_), memory_table(memory, limit), folder->path().string());
    }
    auto* writer = folder ? &*folder : nullptr;
    const auto summary = train(*model_, {.validation_batches = data_.validation_batches(),
                                         .save_gradients = arguments.save_gradients,
                                         .folder = writer,
                                         .reports = first});
    const auto measured =
        gather_measured({allocator.peak_bytes(), peak_resident_bytes(), resident_empty}, control, context_.timeout);

    write_trace(*model_, writer);
    const auto profile = profile_json(*model_, plan, message_us);
    if (writer != nullptr) writer->write("profile.json", profile);
    if (writer != nullptr) {
      write_summary(run_, summary, measured_json(run_, memory, measured), *writer);
      fmt::print("{}\n", describe_measured(run_, memory, measured));
    }
    const int code = save(arguments, summary.stopped, writer);
    comm::barrier(control, context_.timeout);  // MPI is left together, after the slowest write
    return code;
  }

  /// Counted from 1; 0 before the first.
  std::int64_t step() const { return model_ ? model_->submitted_steps() : 0; }
  std::string where() const { return mesh_ ? mesh_->text() : "before the mesh"; }

 private:
  /// A run that was asked to stop always leaves its weights, so that no work is lost.
  int save(const TrainArguments& arguments, bool stopped, const RunFolder* folder) {
    auto path = arguments.save_weights;
    if (path.empty() && !stopped) return static_cast<int>(ExitCode::done);
    if (path.empty() && folder != nullptr) path = (folder->path() / "interrupted.safetensors").string();
    if (folder != nullptr && stopped)
      fmt::print("asked to stop: saving the weights (a second signal ends the run at once)\n");
    save_weights(*model_, path);
    if (folder != nullptr) fmt::print("weights {}\n", path);
    return static_cast<int>(stopped ? ExitCode::interrupted : ExitCode::done);
  }

  const RunConfig& run_;
  RunData data_;
  trace::Tracer tracer_;
  std::optional<mesh::DeviceMesh> mesh_;
  std::unique_ptr<ParallelModel> model_;
  stream::CpuScheduler scheduler_;
  RankContext context_;
};

/// All ranks find the same faults in the same config: rank 0 tells, the others follow quietly.
int report_once(comm::MpiFabric& fabric, const Error& error) {
  if (fabric.rank() == 0) fmt::print(stderr, "orthant: error:\n{}\n", error.what());
  return static_cast<int>(error.exit_code());
}

}  // namespace

int train_command(const TrainArguments& arguments) {
  memory::CountingAllocator::install();  // before any tensor
  comm::MpiFabric fabric;
  RunConfig run;
  try {
    run = read_run_config(arguments.config, arguments.overrides, fabric.size());
  } catch (const Error& error) {
    return report_once(fabric, error);
  }
  std::optional<RankRun> rank_run;
  const auto die = [&](const char* what, ExitCode code) {
    // A rank that only heard of a failure lets the one that failed speak first, and end the job with its own exit code;
    // of a fault that all ranks find alike (data, weights, a loss that is not finite), rank 0 speaks for them.
    const bool found_alike = code != ExitCode::internal && fabric.rank() != 0;
    if (code == ExitCode::timed_out || found_alike) std::this_thread::sleep_for(std::chrono::seconds(2));
    fmt::print(stderr, "orthant: rank {} ({}), step {}: {}\n", fabric.rank(), rank_run ? rank_run->where() : "at start",
               rank_run ? rank_run->step() : 0, what);
    std::fflush(stderr);
    fabric.kill(static_cast<int>(code));
  };
  try {
    if (run.device == "emulated") return emulated_run(run, fabric);
    rank_run.emplace(run, fabric);
    return rank_run->execute(arguments);
  } catch (const Error& error) {
    die(error.what(), error.exit_code());
  } catch (const std::exception& error) {
    die(error.what(), ExitCode::internal);
  }
  return static_cast<int>(ExitCode::internal);
}

}  // namespace orthant::launch
