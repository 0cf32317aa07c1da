#!/usr/bin/env bash
# The whole test suite, from a fresh machine: installs what is missing, builds, runs every test.
#   bash tests/run.sh [--full] [CTEST_OPTION …]        e.g. -L unit, -R parity; --full adds the tests labelled so
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

selection=(-LE full)
if [[ "${1:-}" == --full ]]; then selection=(); shift; fi
bash launch/bootstrap.sh --tests
bash launch/build.sh build
export OMP_NUM_THREADS=1
venv="${ORTHANT_VENV:-$PWD/.venv}"
"$venv/bin/ctest" --test-dir build --output-on-failure --no-tests=error -j 2 "${selection[@]}" "$@"
