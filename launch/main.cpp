// SPDX-License-Identifier: Apache-2.0
// orthant: the command line. Each command is a function of its arguments that returns an exit code; training starts in
// train_command.cpp.
#include <exception>
#include <string_view>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <orthant/core/base/error.hpp>
#include <orthant/launch/bench/bench_command.hpp>
#include <orthant/launch/checkpoint_command.hpp>
#include <orthant/launch/data_command.hpp>
#include <orthant/launch/doctor.hpp>
#include <orthant/launch/report_command.hpp>
#include <orthant/launch/simulate/schedule_command.hpp>
#include <orthant/launch/simulate/simulate_command.hpp>
#include <orthant/launch/stop_signal.hpp>
#include <orthant/launch/train_command.hpp>

int main(int argc, char** argv) {
  using namespace orthant;
  // First thing, since a signal may come before MPI is up; other commands end at once on a signal, as any program does.
  if (argc > 1 && std::string_view(argv[1]) == "train") launch::install_stop_signals();
  CLI::App app{"Orthant trains large language models on a 3-D mesh: data (YaFSDP) x tensor x pipeline parallel."};
  app.require_subcommand(1);
  int code = static_cast<int>(ExitCode::done);
  bool json = false;

  launch::TrainArguments train;
  auto* train_app = app.add_subcommand("train", "train a model: mpirun -n 8 orthant train CONFIG");
  train_app->add_option("config", train.config, "TOML file, e.g. configs/quickstart.toml")->required();
  train_app->add_option("--set", train.overrides, "override a key, e.g. --set mesh.tp=4 (repeatable)")
      ->allow_extra_args(false);
  train_app->add_option("--load-weights", train.load_weights, "start from these weights (safetensors)");
  train_app->add_option("--save-weights", train.save_weights, "write the final weights here (safetensors)");
  train_app->add_option("--save-gradients", train.save_gradients,
                        "write the first step's gradients here (safetensors), to compare meshes");
  train_app->callback([&] { code = launch::train_command(train); });

  auto* data_app = app.add_subcommand("data", "make and inspect token files");
  data_app->require_subcommand(1);
  data::PrepareOptions prepare;
  auto* prepare_app = data_app->add_subcommand("prepare", "tokenise a UTF-8 text into a data set");
  prepare_app->add_option("text", prepare.input, "UTF-8 text file")->required();
  prepare_app->add_option("-o,--output", prepare.output, "folder for the data set")->required();
  prepare_app->add_option("--vocab-size", prepare.vocab_size, "of the BPE tokenizer to train")->capture_default_str();
  prepare_app->add_option("--tokenizer", prepare.tokenizer, "use this SentencePiece model instead");
  prepare_app->add_option("--validation-fraction", prepare.validation_fraction, "last part of the text, for validation")
      ->capture_default_str();
  prepare_app->add_flag("--json", json, "print one JSON object");
  prepare_app->callback([&] { code = launch::data_prepare_command(prepare, json); });
  std::string folder;
  auto* inspect_app = data_app->add_subcommand("inspect", "verify a data set and show what it holds");
  inspect_app->add_option("folder", folder, "made by 'orthant data prepare'")->required();
  inspect_app->add_flag("--json", json, "print one JSON object");
  inspect_app->callback([&] { code = launch::data_inspect_command(folder, json); });

  launch::add_checkpoint_command(app, code);
  launch::add_report_command(app, code);
  launch::add_simulate_command(app, code);
  launch::add_schedule_command(app, code);

  auto* doctor_app = app.add_subcommand("doctor", "what this build and this machine can do");
  doctor_app->add_flag("--json", json, "print one JSON object");
  doctor_app->callback([&] { code = launch::doctor_command(json); });

  launch::add_bench_command(app, code);

  try {
    app.parse(argc, argv);
    return code;
  } catch (const CLI::ParseError& error) {
    const bool help = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success);
    app.exit(error);
    return static_cast<int>(help ? ExitCode::done : ExitCode::config);
  } catch (const Error& error) {
    fmt::print(stderr, "orthant: error: {}\n", error.what());
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    fmt::print(stderr, "orthant: internal error: {}\n", error.what());
    return static_cast<int>(ExitCode::internal);
  }
}
