#!/usr/bin/env bash
# From a fresh machine to a trained model: installs what is missing, builds, prepares a real text, and trains a Llama-style model
# on eight MPI ranks: a mesh of pp2 x dp2 x tp2 with a zero-bubble schedule. A second run starts training at once.
#
#   bash launch/quickstart.sh [TEXT_FILE] [--set key=value …]     default text: the King James Bible of Debian's bible-kjv
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
start=$SECONDS
say() { printf '[quickstart %4ss] %s\n' "$((SECONDS - start))" "$*"; }

text=""
if [[ $# -gt 0 && "$1" != --* ]]; then text="$1"; shift; fi

bash launch/bootstrap.sh
ORTHANT_TARGET=orthant_program bash launch/build.sh build

if [[ -z "$text" ]]; then
  text=".cache/kjv.txt"
  if [[ ! -s "$text" ]]; then
    say "text: the King James Bible (public domain), from bible-kjv"
    mkdir -p .cache
    bible -f gen1:1-rev22:21 > "$text.part"
    mv "$text.part" "$text"
  fi
fi
say "data: $text"
build/orthant data prepare "$text" --output .cache/quickstart --vocab-size 2048

say "training on 8 ranks"
# One thread a rank: eight ranks share the machine's cores.
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# Three sequences a forward (the config's one suits every mesh): fewer, larger messages where eight ranks share two cores.
bash launch/mpirun.sh -n 8 build/orthant train configs/quickstart.toml --set train.micro_batch=3 "$@"
build/orthant data inspect .cache/quickstart | grep "bigram model"
say "done"
