// SPDX-License-Identifier: Apache-2.0
// orthant doctor: what this build and this machine can do, in one page.
#pragma once

namespace orthant::launch {

/// json  one object instead of lines.
int doctor_command(bool json);

}  // namespace orthant::launch
