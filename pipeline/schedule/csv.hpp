// SPDX-License-Identifier: Apache-2.0
// Schedules as files of PyTorch's pipelining package: row k holds the operations of rank k, a cell is
// <stage><type><micro-batch>: "2F0", "3SEND_F1", "1UNSHARD", "(0F7;7B3)OVERLAP_F_B". A file holds computations only, or
// messages, too. The stage of a SEND or RECV is the one that owns it, as in message.hpp.
// Source: torch.distributed.pipelining, formats compute_only and compute_comms.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <orthant/pipeline/schedule/schedule.hpp>

namespace orthant::pipeline {

struct CsvSchedule {
  Schedule schedule;
  std::vector<std::string> notes = {};  ///< what of the file was not taken over, and why
};

/// Compute operations only, with empty cells for idle time, which are passed over; or, where the file has messages, a
/// lowered schedule: with the least number of slots that the order needs, and with the tail of the step. Stages,
/// micro-batches and placement are inferred. UNSHARD, RESHARD and REDUCE_GRAD are left out with a note.
/// name    of the schedule, and in messages.
/// Throws  ConfigError with row, column, cell and what is allowed, for: what is no cell, as a whole; the older dialect
///         (BW and B for B and I); a stage on two ranks; F, and B or I and W, of a stage and micro-batch not there once
///         and in that order; messages that the placement does not need, or that are missing; empty cells beside
///         messages.
CsvSchedule read_csv(std::string_view text, std::string name);
/// The file's schedule, with the name "file:PATH". Throws  ConfigError, also when it cannot be read.
CsvSchedule read_csv_file(const std::filesystem::path& path);

/// Rows without idle cells. The tail is not written.
/// Throws  ConfigError for two copies of the pipeline, which the format cannot express.
std::string write_csv(const Schedule& schedule);

}  // namespace orthant::pipeline
