// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/checkpoint_command.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>
#include <orthant/core/ckpt/checkpoint_folder.hpp>
#include <orthant/core/ckpt/checkpoint_reader.hpp>

namespace orthant::launch {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string folder;
  std::int64_t step = -1;
  bool json = false;
};

/// The checkpoints' own folder, or a run's (run.dir), which has it inside.
ckpt::CheckpointFolder open_folder(const Arguments& arguments, std::vector<std::int64_t>& steps) {
  for (const auto& path :
       {std::filesystem::path(arguments.folder), std::filesystem::path(arguments.folder) / "checkpoints"}) {
    ckpt::CheckpointFolder folder(path, "0");
    steps = folder.steps();
    if (!steps.empty()) return folder;
  }
  throw CheckpointError(fmt::format("'{}' holds no checkpoints; give the folder that holds step-00000050 and the like",
                                    arguments.folder));
}

struct Look {
  std::int64_t step = 0;
  std::optional<ckpt::CheckpointIndex> index;
  std::uint64_t identity = 0;
  std::uint64_t bytes = 0;
  std::vector<std::string> faults;
};

/// reads_all  every slice, and not only the index.
Look look_at(const ckpt::CheckpointFolder& folder, std::int64_t step, bool reads_all) {
  Look look{.step = step, .index = {}, .faults = {}};
  try {
    ckpt::CheckpointReader reader(folder.committed(step));
    look.index = reader.index();
    look.identity = reader.identity();
    for (const auto& file : reader.index().files) look.bytes += file.bytes;
    if (reader.index().state.step != step)
      look.faults.push_back(
          fmt::format("{}: its index is of step {}", folder.committed(step).string(), reader.index().state.step));
    if (reads_all) std::ranges::move(reader.verify(), std::back_inserter(look.faults));
  } catch (const Error& error) {
    look.faults.emplace_back(error.what());
  }
  return look;
}

Json to_json(const Look& look) {
  Json json{{"step", look.step}, {"sound", look.faults.empty()}, {"faults", look.faults}};
  if (!look.index) return json;
  const auto& state = look.index->state;
  json["run"] = state.run;
  json["samples"] = state.samples;
  json["mesh"] = state.mesh;
  json["parameters"] = look.index->parameters.size();
  json["files"] = look.index->files.size();
  json["bytes"] = look.bytes;
  json["index"] = fmt::format("{:016x}", look.identity);
  return json;
}

void print(const Look& look, bool verified) {
  if (look.index) {
    fmt::print("step {:>8}  {:>10.1f} MiB in {} files  {} samples  {}  index {:016x}{}\n", look.step,
               static_cast<double>(look.bytes) / (1 << 20), look.index->files.size(), look.index->state.samples,
               look.index->state.mesh, look.identity, verified && look.faults.empty() ? "  sound" : "");
  } else {
    fmt::print("step {:>8}  DAMAGED\n", look.step);
  }
  for (const auto& fault : look.faults) fmt::print("  {}\n", fault);
}

/// Exit code 4 if anything that was looked at is damaged.
int show(const Arguments& arguments, bool verifies) {
  std::vector<std::int64_t> steps;
  const auto folder = open_folder(arguments, steps);
  if (arguments.step >= 0) {
    if (std::ranges::count(steps, arguments.step) == 0)
      throw CheckpointError(
          fmt::format("'{}' has no step {}; it has {}", folder.path().string(), arguments.step, fmt::join(steps, " ")));
    steps = {arguments.step};
  }
  bool sound = true;
  auto all = Json::array();
  for (const auto step : steps) {
    const auto look = look_at(folder, step, verifies);
    sound = sound && look.faults.empty();
    if (arguments.json) {
      all.push_back(to_json(look));
    } else {
      print(look, verifies);
    }
  }
  // Damaged text may come with its fault.
  if (arguments.json) fmt::print("{}\n", all.dump(2, ' ', false, Json::error_handler_t::replace));
  return static_cast<int>(sound ? ExitCode::done : ExitCode::checkpoint);
}

}  // namespace

void add_checkpoint_command(CLI::App& app, int& code) {
  auto* command = app.add_subcommand("checkpoint", "what a run has saved, and whether it is sound");
  command->require_subcommand(1);
  const auto add = [&](const char* name, const char* what, bool verifies) {
    auto arguments = std::make_shared<Arguments>();
    auto* sub = command->add_subcommand(name, what);
    sub->add_option("folder", arguments->folder, "checkpoint.dir, or run.dir")->required();
    if (verifies) sub->add_option("--step", arguments->step, "this one only");
    sub->add_flag("--json", arguments->json, "print one JSON array");
    sub->callback([arguments, verifies, &code] { code = show(*arguments, verifies); });
  };
  add("list", "steps, sizes and meshes, by their indexes", false);
  add("verify", "read every slice and compare it with its checksum (exit code 4 if any is damaged)", true);
}

}  // namespace orthant::launch
