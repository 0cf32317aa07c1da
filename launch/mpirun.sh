#!/usr/bin/env bash
# mpirun for one host, with what a laptop or a container needs: more ranks than cores, one thread a rank (OMP_NUM_THREADS), root allowed. Ctrl-C
# (and TERM, USR1) ask all ranks for an orderly end, which saves a checkpoint; a second Ctrl-C ends them at once. (Plain mpirun kills its ranks about one
# second after Ctrl-C, but forwards USR1 without killing.)
#   bash launch/mpirun.sh -n 8 build/orthant train CONFIG
set -euo pipefail
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
[[ $EUID -ne 0 ]] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

child=""
asked=0
stop() {
  [[ -n "$child" ]] || exit 130  # before mpirun was started
  if [[ $asked -eq 0 ]]; then asked=1; kill -USR1 "$child" 2>/dev/null || true
  else kill -TERM "$child" 2>/dev/null || true; fi
}
trap stop INT TERM HUP USR1
setsid mpirun --oversubscribe --bind-to none "$@" &
child=$!
while :; do
  code=0
  wait "$child" || code=$?
  kill -0 "$child" 2>/dev/null || exit "$code"
done
