#!/usr/bin/env bash
# Trains three fp32 steps of a config on many meshes and compares the losses: they must agree within 1e-5.
#   bash tests/launch/meshes.sh CONFIG [PP,DP,TP …]       e.g. configs/quickstart.toml (after launch/quickstart.sh has made its data)
# Without meshes: all with pp, dp, tp in {1, 2, 4, 8} and pp * dp * tp <= 8, and dp = 3. Exit code 1 if a loss differs or a run fails.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
[[ $# -ge 1 ]] || { sed -n '2,4p' "${BASH_SOURCE[0]}"; exit 2; }
config="$1"; shift
meshes=("$@")
if [[ ${#meshes[@]} -eq 0 ]]; then
  for pp in 1 2 4 8; do for dp in 1 2 4 8; do for tp in 1 2 4 8; do
    [[ $((pp * dp * tp)) -gt 8 ]] || meshes+=("$pp,$dp,$tp")
  done; done; done
  meshes+=(1,3,1)
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
runs="$(mktemp -d)"
trap 'rm -rf "$runs"' EXIT

failed=0 first=""
printf '%-14s %12s %12s %12s %12s\n' mesh "loss 1" "loss 2" "loss 3" difference
for mesh in "${meshes[@]}"; do
  IFS=, read -r pp dp tp <<< "$mesh"
  folder="$runs/$mesh"
  if ! bash "$root/launch/mpirun.sh" -n $((pp * dp * tp)) "${ORTHANT_BINARY:-$root/build/orthant}" train "$config" \
      --set "mesh.pp=$pp" --set "mesh.dp=$dp" --set "mesh.tp=$tp" --set train.steps=3 --set train.precision=fp32 --set train.validate_every=0 \
      --set 'data.validation=""' --set trace.steps=0 --set "run.dir=$folder" > "$runs/output" 2>&1; then
    printf '%-14s failed:\n' "pp$pp dp$dp tp$tp"; cat "$runs/output"
    failed=1
    continue
  fi
  losses="$(sed -n 's/^{"step":[0-9]*,"loss":\([^,}]*\).*/\1/p' "$folder"/*/metrics.jsonl | tr '\n' ' ')"
  first="${first:-$losses}"
  awk -v mesh="pp$pp dp$dp tp$tp" -v one="$first" -v other="$losses" 'BEGIN {
    worst = 0; steps = split(one, a, " "); same = split(other, b, " ") == 3 && steps == 3
    for (i = 1; i <= 3; ++i) { d = a[i] - b[i]; if (d < 0) d = -d; if (d > worst) worst = d; if (!(d <= 1e-5)) same = 0 }
    printf "%-14s %12.7f %12.7f %12.7f %12.1e%s\n", mesh, b[1], b[2], b[3], worst, same ? "" : "  DIFFERS"
    exit !same }' || failed=1
done
exit $failed
