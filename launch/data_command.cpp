// SPDX-License-Identifier: Apache-2.0
#include <orthant/launch/data_command.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <orthant/core/base/error.hpp>

namespace orthant::launch {
namespace {

nlohmann::ordered_json to_json(const data::DatasetSummary& s) {
  return {{"source", s.source},
          {"source_bytes", s.source_bytes},
          {"vocab_size", s.vocab_size},
          {"train_tokens", s.train_tokens},
          {"validation_tokens", s.validation_tokens},
          {"validation_fraction", s.validation_fraction},
          {"bigram_loss", s.bigram_loss},
          {"train_fingerprint", fmt::format("{:016x}", s.train_fingerprint)},
          {"validation_fingerprint", fmt::format("{:016x}", s.validation_fingerprint)},
          {"up_to_date", s.up_to_date}};
}

void print(const data::DatasetSummary& s) {
  fmt::print("{} ({} bytes), vocabulary {}\n", s.source, s.source_bytes, s.vocab_size);
  fmt::print("train {} tokens, validation {} tokens\n", s.train_tokens, s.validation_tokens);
  fmt::print("validation loss of an interpolated bigram model: {:.4f} nats a token (the yardstick)\n", s.bigram_loss);
}

}  // namespace

int data_prepare_command(const data::PrepareOptions& options, bool json) {
  const auto summary = data::prepare(options);
  if (json) {
    fmt::print("{}\n", to_json(summary).dump(2));
  } else {
    fmt::print("data set {}{}\n", options.output.string(), summary.up_to_date ? " (up to date, nothing to do)" : "");
    print(summary);
  }
  return static_cast<int>(ExitCode::done);
}

int data_inspect_command(const std::string& folder, bool json) {
  const auto inspection = data::inspect(folder);
  if (json) {
    auto object = to_json(inspection.summary);
    object["first_text"] = inspection.first_text;
    fmt::print("{}\n", object.dump(2));
  } else {
    print(inspection.summary);
    fmt::print("fingerprints verified; the text begins:\n{}\n", inspection.first_text);
  }
  return static_cast<int>(ExitCode::done);
}

}  // namespace orthant::launch
