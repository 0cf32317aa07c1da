// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/rank_run.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/atomic_file.hpp>
#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>
#include <orthant/core/memory/counting_allocator.hpp>
#include <orthant/core/trace/chrome_trace.hpp>
#include <orthant/launch/cost_profile.hpp>
#include <orthant/launch/fault_injector.hpp>
#include <orthant/launch/memory_report.hpp>
#include <orthant/launch/parallelize.hpp>
#include <orthant/launch/resume.hpp>
#include <orthant/launch/run_summary.hpp>
#include <orthant/launch/startup.hpp>
#include <orthant/launch/stop_signal.hpp>
#include <orthant/launch/weights.hpp>

namespace orthant::launch {
namespace {

constexpr std::chrono::seconds kStartTimeout{120};
/// The watchdog, which knows more, speaks before waits and the scheduler do.
constexpr std::chrono::seconds kAfterWatchdog{30};

std::chrono::milliseconds longest_wait(const RunConfig& run) {
  return std::ranges::max(phase_timeouts(run)) + kAfterWatchdog;
}

std::filesystem::path checkpoint_dir(const RunConfig& run) {
  if (!run.checkpoint.dir.empty()) return run.checkpoint.dir;
  return std::filesystem::path(run.run_dir) / "checkpoints";
}

/// What crosses a stage border for one micro-batch.
std::int64_t message_bytes(const RunConfig& run) {
  const auto rows = run.train.seq_len * run.train.micro_batch / (run.sequence_parallel ? run.mesh.tp : 1);
  return rows * run.model.hidden * static_cast<std::int64_t>(size_of(run.train.precision));
}

void write_trace(ParallelModel& model, RunFolder* folder) {
  if (model.run().trace.steps == 0) return;
  const auto& context = model.context();
  const trace::ChromeProcess process{.rank = context.fabric.rank(),
                                     .name = fmt::format("rank {} {}", context.fabric.rank(), model.mesh().text())};
  const auto fragments = comm::gather_strings(*model.mesh().control().collectives,
                                              trace::chrome_events(context.tracer, process), context.timeout);
  if (folder != nullptr) folder->write("trace.json", trace::chrome_trace(fragments));
}

/// Has every rank do `action`; if any cannot, all throw what the first of them said.
template <class Action>
void together(comm::Collectives& control, Action action) {
  std::string fault;  // exit code, then text
  try {
    action();
  } catch (const Error& error) {
    fault = fmt::format("{}{}", static_cast<int>(error.exit_code()), error.what());
  }
  for (const auto& text : comm::gather_strings(control, fault, kStartTimeout)) {
    if (!text.empty()) throw Error(static_cast<ExitCode>(text.front() - '0'), text.substr(1));
  }
}

}  // namespace

std::array<std::chrono::milliseconds, kRunPhases> phase_timeouts(const RunConfig& run) {
  const auto& t = run.timeouts;
  std::array<std::chrono::milliseconds, kRunPhases> timeouts{};
  const std::array seconds{t.init_s, t.load_s, t.step_s, t.evaluation_s, t.save_s, t.exit_s};
  for (std::size_t phase = 0; phase < seconds.size(); ++phase)
    timeouts[phase] = std::chrono::seconds(seconds[phase] > 0 ? seconds[phase] : run.timeout_s);
  return timeouts;
}

struct RankRun::Planned {
  PipelinePlan plan;
  MemoryLimit limit;
  MemoryPlan memory;
  double message_us = 0;
  std::int64_t resident_empty = 0;
};

RankRun::RankRun(const RunConfig& run, comm::WatchedFabric& fabric, Watchdog& watchdog)
    : run_(run),
      fabric_(fabric),
      watchdog_(watchdog),
      data_(run),
      scheduler_({.deadline = longest_wait(run),
                  .tracer = &tracer_,
                  .on_failure = [&fabric](std::exception_ptr) { fabric.abort("another task of this rank failed"); },
                  .on_finish = [&watchdog] { watchdog.progress(); }}),
      context_{.fabric = fabric,
               .scheduler = scheduler_,
               .tracer = tracer_,
               .compute = scheduler_.add_stream("compute", stream::StreamKind::compute),
               .timeout = longest_wait(run),
               .votes = [this] {
                 return step::Votes{.stop = stop_requested() != 0,
                                    .save = checkpointer_ && checkpointer_->wants_save(),
                                    .written = checkpointer_ && checkpointer_->has_written()};
               }} {}

int RankRun::execute(const TrainArguments& arguments) {
  if (const auto fault = describe(run_.fault); !fault.empty()) say(fault);
  auto planned = plan();
  make_folders();
  inject(run_.fault, RunPhase::init, fabric_.rank(), run_.fault.step);
  auto& allocator = memory::CountingAllocator::install();
  allocator.reset_peak();
  planned.resident_empty = peak_resident_bytes();
  model_ = parallelize(run_, planned.plan, *mesh_, context_, data_.reader(mesh_->dp_rank()));
  const auto resumed = load(arguments);
  announce(arguments, planned);
  make_checkpointer(resumed);
  const auto summary = train_from(resumed.step, arguments);

  enter(RunPhase::exit, summary.steps);
  inject(run_.fault, RunPhase::exit, fabric_.rank(), run_.fault.step);
  report(planned, summary);
  const bool finished = summary.steps >= run_.train.steps;
  if (finished && !arguments.save_weights.empty()) {
    save_weights(*model_, arguments.save_weights);
    if (is_first()) fmt::print("weights {}\n", arguments.save_weights);
  }
  const bool wants_last = summary.steps > resumed.step && (!finished || checkpointer_->saves_at_end());
  const bool is_unsaved = wants_last && checkpointer_->last_committed() != summary.steps;
  if (is_first() && is_unsaved)
    fmt::print(stderr, "orthant: error: the checkpoint of the last step, {}, could not be written\n", summary.steps);
  if (is_first() && !finished && !is_unsaved)
    fmt::print("asked to stop: the checkpoint of step {} is in {}; the same command goes on from it\n", summary.steps,
               checkpoints_->path().string());
  comm::barrier(control(), context_.timeout);  // MPI is left together, after the slowest write
  if (is_unsaved) return static_cast<int>(ExitCode::checkpoint);
  return static_cast<int>(finished ? ExitCode::done : ExitCode::interrupted);
}

RankRun::Planned RankRun::plan() {
  enter(RunPhase::init, 0);
  Planned planned{.plan = plan_pipeline(run_), .limit = {}, .memory = {}};
  auto& plan = planned.plan;
  mesh_.emplace(context_.fabric, scheduler_, run_.mesh_shape(), plan.topology(run_.model.tie_embeddings));
  planned.limit = find_memory_limit(run_, control(), kStartTimeout);
  choose_checkpoints(run_, planned.limit, plan);
  agree_on_plan(plan, *mesh_, kStartTimeout);
  planned.message_us = measure_message_us(*mesh_, plan.topology(false), message_bytes(run_), kStartTimeout);
  planned.memory = plan_memory(run_, plan);
  require_fit(planned.memory, planned.limit);
  return planned;
}

/// Before anything is allocated: can this run write where it is to?
void RankRun::make_folders() {
  run_id_ = agree_on_run_id(control(), kStartTimeout);
  checkpoints_.emplace(checkpoint_dir(run_), run_id_);
  together(control(), [&] {
    if (!is_first()) return;
    checkpoints_->prepare(0);
    lock_.emplace(checkpoints_->path(), run_id_);
    for (const auto& name : checkpoints_->clean_up())
      fmt::print("removed {}, which an earlier start left unfinished\n", (checkpoints_->path() / name).string());
  });
  together(control(), [&] { checkpoints_->prepare(fabric_.rank()); });
  watchdog_.dump_into(std::filesystem::path(run_.run_dir) / fmt::format("hang-{}", run_id_));
}

/// From here on the run is one: it has a folder.
void RankRun::announce(const TrainArguments& arguments, const Planned& planned) {
  together(control(), [&] {
    if (!is_first()) return;
    folder_.emplace(run_.run_dir);
    for (const auto& path : {arguments.save_weights, arguments.save_gradients}) {
      // Found out now and not after the training: can the file be made there?
      if (!path.empty()) AtomicFile(path, 0600, raise_as<CheckpointError>);
    }
  });
  if (!is_first()) return;
  folder_->write("config.toml", run_.resolved);
  if (!planned.plan.reason.empty()) fmt::print("{}\n", planned.plan.reason);
  folder_->write("plan.json", memory_json(run_, planned.plan, planned.memory, planned.limit).dump(2) + "\n");
  if (const auto chosen = describe_checkpoints(run_, planned.plan); !chosen.empty()) fmt::print("{}\n", chosen);
  fmt::print("{}\n{}\nrun folder {}\n", describe(run_), memory_table(planned.memory, planned.limit),
             folder_->path().string());
}

Resumed RankRun::load(const TrainArguments& arguments) {
  enter(RunPhase::load, 0);
  inject(run_.fault, RunPhase::load, fabric_.rank(), run_.fault.step);
  const auto start = std::chrono::steady_clock::now();
  const auto resumed =
      resume(*model_, *checkpoints_, data_.fingerprint(), [this](const std::string& text) { say(text); });
  resumed_step_ = resumed.step;
  if (resumed.step == 0 && !arguments.load_weights.empty()) load_weights(*model_, arguments.load_weights);
  const double load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!is_first()) return resumed;
  if (resumed.step > 0)
    say(fmt::format("going on from the checkpoint of step {} in {} (read in {:.1f} s){}", resumed.step,
                    checkpoints_->path().string(), load_s,
                    arguments.load_weights.empty() ? "" : "; --load-weights has no part in it"));
  if (resumed.step >= run_.train.steps)
    say(fmt::format("nothing to train: {} of {} steps are done", resumed.step, run_.train.steps));
  ledger_.emplace(checkpoints_->path() / "goodput.jsonl", begun_);
  ledger_->ready(resumed.step, load_s);
  return resumed;
}

void RankRun::make_checkpointer(const Resumed& resumed) {
  const auto& mesh = run_.mesh;
  checkpointer_ = std::make_unique<Checkpointer>(
      *model_, *checkpoints_,
      CheckpointerOptions{
          .config = run_.checkpoint,
          .state = {.run = run_id_,
                    .seed = static_cast<std::int64_t>(run_.train.seed),
                    .mesh = fmt::format("pp{} dp{} tp{}, fsdp stage {}, {}", mesh.pp, mesh.dp, mesh.tp, run_.fsdp.stage,
                                        run_.pipeline.schedule),
                    .config = run_.resolved,
                    .config_hash = ckpt::checksum_of(std::as_bytes(std::span(run_.resolved))),
                    .data = data_.fingerprint()},
          .resumed_step = resumed.step,
          .say = [this](const std::string& text) { say(text); },
          .progress = [this] { watchdog_.progress(); },
          .on_write = [this](std::int64_t step) { inject(run_.fault, RunPhase::save, fabric_.rank(), step); }});
}

TrainSummary RankRun::train_from(std::int64_t first_step, const TrainArguments& arguments) {
  if (is_first())
    progress_.emplace(Progress::Options{.total_steps = run_.train.steps, .log_every = run_.train.log_every});
  const auto skips = [this](std::int64_t step) {
    if (run_.fault.kind == "skip" && strikes(run_.fault, fabric_.rank(), step)) fabric_.skip_next(run_.fault.group);
  };
  const auto summary = train(*model_, {.first_step = first_step,
                                       .validation_batches = data_.validation_batches(),
                                       .save_gradients = arguments.save_gradients,
                                       .checkpointer = checkpointer_.get(),
                                       .folder = folder_ ? &*folder_ : nullptr,
                                       .ledger = ledger_ ? &*ledger_ : nullptr,
                                       .progress = progress_ ? &*progress_ : nullptr,
                                       .enter = [this](RunPhase phase, std::int64_t step) { enter(phase, step); },
                                       .before_step = skips});
  progress_.reset();
  return summary;
}

void RankRun::report(const Planned& planned, const TrainSummary& summary) {
  auto& allocator = memory::CountingAllocator::install();
  const auto measured = gather_measured({allocator.peak_bytes(), peak_resident_bytes(), planned.resident_empty},
                                        control(), context_.timeout);
  auto* writer = folder_ ? &*folder_ : nullptr;
  write_trace(*model_, writer);
  const auto costs = gather_costs(*model_, planned.message_us);
  if (writer == nullptr) return;
  writer->write("profile.json", profile_json(run_, planned.plan, costs));
  for (const auto& line : describe_slow_ranks(costs.ranks)) say(line);
  const auto& times = checkpointer_->times();
  write_summary(run_, summary,
                {.memory = measured_json(run_, planned.memory, measured),
                 .goodput = goodput_json(ledger_->finish()),
                 .checkpoints = {{"saves", times.saves},
                                 {"failures", times.failures},
                                 {"last", checkpointer_->last_committed()},
                                 {"stall_s", times.stall_s},
                                 {"write_s", times.write_s},
                                 {"interval_s", checkpointer_->interval_s()}}},
                *writer);
  fmt::print("{}\n", describe_measured(run_, planned.memory, measured));
}

void RankRun::enter(RunPhase phase, std::int64_t step) { watchdog_.enter(phase, step); }

void RankRun::say(const std::string& text) {
  if (!is_first()) return;
  if (progress_) {
    progress_->line(text);
  } else {
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }
}

void RankRun::note_hang() {
  if (ledger_) ledger_->hangs();
}

}  // namespace orthant::launch
