#!/usr/bin/env bash
# Makes the pictures and the table of the pipeline gallery: schedules on emulated devices, predicted above measured.
#   bash tests/bench/pipeline_gallery.sh [FOLDER]        default: pipeline/gallery; run it on an idle machine
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out="${1:-pipeline/gallery}"
mkdir -p "$out"
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
ranks=4
for schedule in 1f1b interleaved zb_h1 zb_v v_half dualpipe_v; do
  costs=10,10,8,1  # ms: F, I, W of a chunk, link
  case "$schedule" in 1f1b|zb_h1) costs=20,20,16,1 ;; esac  # one stage a rank: twice the layers
  for attempt in 1 2 3 4 5; do  # a machine that was too busy to measure on is an error
    mpirun --oversubscribe --bind-to none -n $ranks build/orthant bench pipeline --schedule "$schedule" --stages $ranks \
      --microbatches $((3 * ranks)) --costs "$costs" --svg "$out/$schedule.svg" && break
    [[ $attempt -lt 5 ]] || exit 1
  done
done
{
  echo "p = 4, m = 12; a rank's layers take F = I = W = 2, a message nothing:"
  echo
  build/orthant schedule compare --stages 4 --microbatches 12 --costs 2,2,2,0 --markdown
  echo
  echo "p = 8, m = 24; a rank's layers take F, I, W = 20, 20, 16, a message 1:"
  echo
  build/orthant schedule compare --stages 8 --microbatches 24 --costs 20,20,16,1 --markdown
} > "$out/table.md"
cat "$out/table.md"
