#!/usr/bin/env bash
# From a fresh machine to a trained model: installs what is missing, builds, prepares a real text, and trains a Llama-style model
# on eight MPI ranks: a mesh of pp2 x dp2 x tp2 with a zero-bubble schedule. A second run starts training at once.
#
#   bash launch/quickstart.sh [TEXT_FILE] [--set key=value …]     default text: the King James Bible of Debian's bible-kjv
set -euo pipefail
text=""
if [[ $# -gt 0 && "$1" != --* ]]; then text="$(realpath -- "$1")"; shift; fi
cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf '[quickstart %4ss] %s\n' "$SECONDS" "$*"; }

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

# A quickstart that was finished is not gone on with: its run folder takes its checkpoints. One that was stopped is.
last="$(printf '%s\n' runs/quickstart/[0-9]*/ | tail -1)"
if [[ -d runs/quickstart/checkpoints ]] && grep -q '"stopped": false' "${last}summary.json" 2>/dev/null; then
  mv runs/quickstart/checkpoints "${last}checkpoints"
fi

say "training on 8 ranks"
# Three sequences a forward (the config's one suits every mesh): fewer, larger messages where eight ranks share two cores.
bash launch/mpirun.sh -n 8 build/orthant train configs/quickstart.toml --set train.micro_batch=3 "$@"
build/orthant data inspect .cache/quickstart | grep "bigram model"
if [[ $# -eq 0 ]]; then  # with overrides it is your experiment, and yours to judge
  "${ORTHANT_VENV:-.venv}/bin/python" - <<'PYTHON'
import glob, json, sys
ours = json.load(open(max(glob.glob("runs/quickstart/*/summary.json"))))["last_val_loss"]
bigram = json.load(open(".cache/quickstart/dataset.json"))["bigram_loss"]
if ours >= bigram:
    sys.exit(f"the model's validation loss {ours:.4f} is not below the bigram's {bigram:.4f}")
print(f"the model's {ours:.4f} is below it by {bigram - ours:.4f}")
PYTHON
fi
say "done"
