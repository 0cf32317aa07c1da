// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/startup.hpp>

#include <chrono>
#include <cstdlib>
#include <random>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <orthant/core/base/error.hpp>
#include <orthant/core/base/mapped_file.hpp>
#include <orthant/core/comm/agree.hpp>
#include <orthant/core/config/document.hpp>
#include <orthant/core/data/token_file.hpp>
#include <orthant/launch/fault_injector.hpp>

namespace orthant::launch {
namespace {

constexpr std::chrono::seconds kTimeout{120};

std::string hash_of(std::string_view text) { return fmt::format("{:016x}", XXH64(text.data(), text.size(), 0)); }

std::string text_of(const Facts& facts) {
  std::string text;
  for (const auto& [key, value] : facts) text += fmt::format("{} = {}\n", key, value);
  return text;
}

Facts parse(const std::string& text) {
  Facts facts;
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = text.find('\n', begin);
    const auto line = text.substr(begin, end - begin);
    const auto equals = line.find(" = ");
    facts.emplace(line.substr(0, equals), line.substr(equals + 3));
    begin = end + 1;
  }
  return facts;
}

/// "1 on ranks 0 1 3; 2 on ranks 2"
std::string describe_values(const std::vector<Facts>& all, const std::string& key) {
  std::map<std::string, std::vector<int>> ranks;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto found = all[rank].find(key);
    ranks[found == all[rank].end() ? "absent" : found->second].push_back(static_cast<int>(rank));
  }
  if (ranks.size() == 1) return {};
  std::vector<std::string> texts;
  for (const auto& [value, of] : ranks) texts.push_back(fmt::format("{} on ranks {}", value, fmt::join(of, " ")));
  return fmt::format("{}", fmt::join(texts, "; "));
}

bool all_equal(const std::vector<std::string>& texts) {
  return std::ranges::all_of(texts, [&](const std::string& text) { return text == texts.front(); });
}

}  // namespace

Facts facts_of(const RunConfig& run) {
  Facts facts;
  for (const auto& [key, entry] : config::ConfigDocument::parse(run.resolved, "resolved").entries)
    facts.emplace(key, config::to_toml(entry.value));
  facts.emplace("the program", hash_of(MappedFile("/proc/self/exe", raise_as<ConfigError>).text()));
  for (const auto& [name, path] :
       {std::pair("data.train", run.data.train), std::pair("data.validation", run.data.validation)}) {
    if (!path.empty())
      facts.emplace(fmt::format("the tokens of {}", name), fmt::format("{:016x}", data::TokenFile(path).fingerprint()));
  }
  return facts;
}

void require_alike(comm::Collectives& everyone, const Facts& mine, std::chrono::milliseconds timeout) {
  const auto text = text_of(mine);
  if (all_equal(comm::gather_strings(everyone, hash_of(text), timeout))) return;
  std::vector<Facts> all;
  std::set<std::string> keys;
  for (const auto& theirs : comm::gather_strings(everyone, text, timeout)) {
    all.push_back(parse(theirs));
    for (const auto& [key, value] : all.back()) keys.insert(key);
  }
  std::string differences;
  for (const auto& key : keys) {
    if (const auto values = describe_values(all, key); !values.empty())
      differences += fmt::format("\n  {}: {}", key, values);
  }
  throw ConfigError("the ranks do not have the same:" + differences);
}

void require_launched_by_mpi(int world) {
  if (world != 1) return;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const char* text = std::getenv(name);
    if (text == nullptr || std::atoi(text) <= 1) continue;
    throw ConfigError(
        fmt::format("the launcher has started {} processes ({}), but MPI knows of one: start it with the "
                    "mpirun of the MPI that this program was built with, or srun --mpi=pmix",
                    text, name));
  }
}

RunConfig read_run_config_together(comm::Fabric& fabric, const std::string& path,
                                   const std::vector<std::string>& overrides) {
  require_launched_by_mpi(fabric.size());
  const auto everyone = fabric.make_collectives("start", fabric.all_ranks());
  RunConfig run;
  std::string fault;  // exit code, then text
  try {
    run = read_run_config(path, overrides, fabric.size());
    choose_fault(run.fault, fabric.size(), run.train.steps);
  } catch (const Error& error) {
    fault = fmt::format("{}{}", static_cast<int>(error.exit_code()), error.what());
  }
  const auto faults = comm::gather_strings(*everyone, fault, kTimeout);
  std::string told;
  ExitCode code = ExitCode::done;
  for (std::size_t rank = 0; rank < faults.size(); ++rank) {
    if (faults[rank].empty()) continue;
    if (code == ExitCode::done) code = static_cast<ExitCode>(faults[rank].front() - '0');
    told += all_equal(faults) ? (told.empty() ? faults[rank].substr(1) : "")
                              : fmt::format("{}rank {}:\n{}", told.empty() ? "" : "\n", rank, faults[rank].substr(1));
  }
  if (code != ExitCode::done) throw Error(code, told);
  require_alike(*everyone, facts_of(run), kTimeout);
  return run;
}

std::string agree_on_run_id(comm::Collectives& everyone, std::chrono::milliseconds timeout) {
  std::random_device chance;
  const auto mine = fmt::format("{:08x}{:08x}", chance(), chance());
  return comm::gather_strings(everyone, mine, timeout).front();
}

}  // namespace orthant::launch
