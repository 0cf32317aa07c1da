#!/usr/bin/env bash
# Configures and builds Orthant with the tools that bootstrap.sh installed.
#   bash launch/build.sh [BUILD_DIR] [CMAKE_OPTION …]      default: build, release, CUDA module when nvcc is there
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly venv="${ORTHANT_VENV:-$PWD/.venv}"
build="${1:-build}"
shift || true
export CMAKE_COLOR_DIAGNOSTICS=ON
if [[ ! -f "$build/build.ninja" || $# -gt 0 ]]; then
  printf '[build %4ss] configuring %s\n' "$SECONDS" "$build"
  "$venv/bin/cmake" -S . -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$venv/bin/ninja" -DORTHANT_VENV="$venv" "$@" >"$build.configure.log" 2>&1 \
    || { cat "$build.configure.log" >&2; exit 1; }
  rm -f "$build.configure.log"
fi
printf '[build %4ss] compiling\n' "$SECONDS"
"$venv/bin/cmake" --build "$build" --target "${ORTHANT_TARGET:-all}"
printf '[build %4ss] done\n' "$SECONDS"
