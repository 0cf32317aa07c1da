// SPDX-License-Identifier: Apache-2.0
// What a rank says once a step beside its loss and norm. The step's own sums count it over all ranks, so all learn the
// same of the same step without a message more.
#pragma once

namespace orthant::step {

struct Votes {
  bool stop = false;     ///< this rank was asked to stop
  bool save = false;     ///< it wants a checkpoint now
  bool written = false;  ///< its part of the checkpoint under way is on disk
};

}  // namespace orthant::step
