// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/resume.hpp>

#include <algorithm>
#include <array>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/comm/agree.hpp>
#include <orthant/core/config/document.hpp>

namespace orthant::launch {
namespace {

/// Keys, or whole tables ("model."), that the numbers of a run depend on.
constexpr std::array kIdentity{
    "model.",        "optimizer.",         "lr_schedule.",    "train.steps",      "train.global_batch",
    "train.seq_len", "train.seed",         "train.precision", "train.grad_clip",  "train.z_loss",
    "train.freeze",  "train.freeze_steps", "data.shuffle",    "fsdp.reduce_dtype"};

bool is_identity(const std::string& key) {
  return std::ranges::any_of(
      kIdentity, [&](const std::string& name) { return name.ends_with('.') ? key.starts_with(name) : key == name; });
}

std::string key_of(const std::string& change) { return change.substr(0, change.find(':')); }

void require_same_run(const RunConfig& run, const ckpt::CheckpointReader& reader, std::uint64_t data,
                      const std::function<void(const std::string&)>& say) {
  auto changes = changed_keys(reader.index().state.config, run.resolved);
  if (reader.index().state.data != data)
    changes.push_back(
        fmt::format("data.train: tokens with fingerprint {:016x}, were {:016x}", data, reader.index().state.data));
  const auto& accepted = run.checkpoint.accept_changes;
  std::string refused;
  for (const auto& change : changes) {
    if (std::ranges::count(accepted, key_of(change)) > 0) {
      say("accepted change: " + change);
    } else {
      refused += "\n  " + change;
    }
  }
  if (!refused.empty())
    throw ConfigError(
        fmt::format("'{}' is of a run with another config:{}\n  put it back, name what may change in "
                    "checkpoint.accept_changes, or use another checkpoint.dir",
                    reader.folder().string(), refused));
}

/// Loads a step. Returns  why not, by what any rank has found; empty: it is loaded.
/// Throws  ConfigError, on all ranks, if it is of another run.
std::string try_step(ParallelModel& model, const ckpt::CheckpointFolder& folder, std::int64_t step, std::uint64_t data,
                     const std::function<void(const std::string&)>& say, Resumed& resumed) {
  auto& control = *model.mesh().control().collectives;
  const auto timeout = model.context().timeout;
  std::string mine, other_run;
  std::uint64_t identity = 0;
  std::unique_ptr<ckpt::CheckpointReader> reader;
  try {
    reader = std::make_unique<ckpt::CheckpointReader>(folder.committed(step));
    identity = reader->identity();
    if (reader->index().state.step != step)
      throw CheckpointError(
          fmt::format("{}: its index is of step {}", folder.committed(step).string(), reader->index().state.step));
    require_same_run(model.run(), *reader, data, say);
  } catch (const ConfigError& error) {
    other_run = error.what();
  } catch (const Error& error) {
    mine = error.what();
  }
  const auto agree = [&](const std::string& text) {
    const auto all = comm::gather_strings(control, text, timeout);
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      if (!all[rank].empty()) return rank == 0 ? all[rank] : fmt::format("rank {}: {}", rank, all[rank]);
    }
    return std::string();
  };
  if (const auto why = agree(mine); !why.empty()) return why;
  if (const auto why = agree(other_run); !why.empty()) throw ConfigError(why);
  comm::check_same(control, fmt::format("the index of step {}", step), identity, timeout);
  try {
    load_state(model, *reader);
  } catch (const Error& error) {
    mine = error.what();
  }
  const auto why = agree(mine);
  if (why.empty()) resumed = {.step = step, .run = reader->index().state.run};
  return why;
}

}  // namespace

std::vector<std::string> changed_keys(const std::string& was, const std::string& is) {
  const auto before = config::ConfigDocument::parse(was, "the checkpoint's config").entries;
  const auto now = config::ConfigDocument::parse(is, "the config").entries;
  std::set<std::string> keys;
  for (const auto* entries : {&before, &now}) {
    for (const auto& [key, entry] : *entries) {
      if (is_identity(key)) keys.insert(key);
    }
  }
  const auto text = [](const std::map<std::string, config::Entry>& entries, const std::string& key) {
    const auto entry = entries.find(key);
    return entry == entries.end() ? std::string("absent") : config::to_toml(entry->second.value);
  };
  // Without a schedule the number of steps has no part in any of them.
  const auto constant = config::to_toml(std::string("constant"));
  if (text(before, "lr_schedule.kind") == constant && text(now, "lr_schedule.kind") == constant)
    keys.erase("train.steps");
  std::vector<std::string> changes;
  for (const auto& key : keys) {
    if (text(before, key) != text(now, key))
      changes.push_back(fmt::format("{}: {}, was {}", key, text(now, key), text(before, key)));
  }
  return changes;
}

Resumed resume(ParallelModel& model, const ckpt::CheckpointFolder& folder, std::uint64_t data,
               const std::function<void(const std::string&)>& say) {
  const auto& wanted = model.run().checkpoint.resume;
  auto& control = *model.mesh().control().collectives;
  // One look at the folder, by rank 0: another rank might already see something else.
  std::string listed;
  if (model.mesh().rank() == 0) listed = fmt::format("{}", fmt::join(folder.steps(), " "));
  listed = comm::gather_strings(control, listed, model.context().timeout).front();
  std::vector<std::int64_t> steps;
  for (std::size_t at = 0; at < listed.size(); at = std::min(listed.find(' ', at), listed.size() - 1) + 1)
    steps.push_back(std::stoll(listed.substr(at)));

  Resumed resumed;
  if (wanted.never) {
    if (!steps.empty())
      throw ConfigError(
          fmt::format("checkpoint.resume = \"never\", but '{}' holds checkpoints (steps {}); use another "
                      "checkpoint.dir or run.dir, or resume = \"auto\"",
                      folder.path().string(), listed));
    return resumed;
  }
  if (wanted.step >= 0) {
    if (std::ranges::count(steps, wanted.step) == 0)
      throw CheckpointError(fmt::format("checkpoint.resume = {}: '{}' has no such step; it has {}", wanted.step,
                                        folder.path().string(), steps.empty() ? "none" : listed));
    if (const auto why = try_step(model, folder, wanted.step, data, say, resumed); !why.empty())
      throw CheckpointError(fmt::format("checkpoint.resume = {}: {}", wanted.step, why));
    return resumed;
  }
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const auto why = try_step(model, folder, *step, data, say, resumed);
    if (why.empty()) return resumed;
    say(fmt::format("WARNING: the checkpoint of step {} cannot be used, an older one is looked for: {}", *step, why));
  }
  if (!steps.empty())
    throw CheckpointError(
        fmt::format("none of the checkpoints in '{}' (steps {}) is sound; to begin anew, use another "
                    "checkpoint.dir",
                    folder.path().string(), listed));
  return resumed;
}

}  // namespace orthant::launch
