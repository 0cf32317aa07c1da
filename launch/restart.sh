#!/usr/bin/env bash
# Runs a training command until it is done. It is run again, from its newest checkpoint, after a stop (75, which saved one, 138 and 143), a crash
# (1, others above 127) and a hang (6). It is not after what the user has to mend (2 config, 3 data, 4 checkpoint, 5 not finite, 7 replicas
# differ, …), nor when several runs in a row failed without a new checkpoint: then the same step may fail for ever.
#
#   bash launch/restart.sh bash launch/mpirun.sh -n 8 build/orthant train CONFIG [--set key=value …]
#   bash launch/restart.sh --once …         one run of it: 75 says "again", any other code is final (launch/slurm/train.sbatch)
#
#   ORTHANT_MAX_RESTARTS=100                restarts in all
#   ORTHANT_MAX_FAILURES=3                  failures in a row after the same checkpoint
#   ORTHANT_CHECKPOINTS=DIR                 the checkpoints' folder, if it is not to be found in CONFIG (checkpoint.dir, run.dir)
#   ORTHANT_RESTART_STATE=FILE              where failures are counted (default: DIR/restarts)
# Asked to stop (INT, TERM, HUP, USR1), it asks the command and does not restart it. (INT and HUP are passed on as TERM.)
set -euo pipefail

say() { printf 'restart: %s\n' "$*" >&2; }
die() { say "error: $*"; exit 2; }

once=0
if [[ "${1:-}" == --once ]]; then once=1; shift; fi
[[ $# -gt 0 ]] || die "what is to be run? bash launch/restart.sh [--once] COMMAND … train CONFIG"
readonly once max_restarts="${ORTHANT_MAX_RESTARTS:-100}" max_failures="${ORTHANT_MAX_FAILURES:-3}"
for number in "$max_restarts" "$max_failures"; do
  [[ "$number" =~ ^[0-9]{1,6}$ ]] || die "ORTHANT_MAX_RESTARTS and ORTHANT_MAX_FAILURES are whole numbers, not '$number'"
done

# A text of CONFIG, or nothing: toml_text FILE table.key
toml_text() {
  awk -v wanted="$2" '
    /^[ \t]*\[/ { table = $0; gsub(/^[ \t]*\[[ \t]*|[ \t]*\].*$/, "", table); next }
    match($0, /^[A-Za-z0-9_. \t-]+=[ \t]*/) {
      key = substr($0, 1, RLENGTH); value = substr($0, RLENGTH + 1); gsub(/[ \t=]/, "", key)
      if ((table == "" ? key : table "." key) == wanted && match(value, /^"[^"\\]*"|^\047[^\047]*\047/)) print substr(value, 2, RLENGTH - 2)
    }' "$1"
}

# Where the command, "… train CONFIG [--set …]", keeps its checkpoints.
checkpoint_folder() {
  local config="" dir="" run_dir="" argument value
  while [[ $# -gt 0 && "$1" != train ]]; do shift; done
  while [[ $# -gt 1 ]]; do
    argument="$2"
    shift
    case "$argument" in
      --*=*) value="${argument#*=}" ;;
      --*) value="${2:-}"; shift $(($# > 1)) ;;
      *) config="${config:-$argument}"; continue ;;
    esac
    [[ "${argument%%=*}" == --set ]] || continue
    case "$value" in
      checkpoint.dir=*) dir="${value#*=}" ;;
      run.dir=*) run_dir="${value#*=}" ;;
    esac
  done
  [[ -f "$config" ]] || die "no config file '$config' after 'train': COMMAND … train CONFIG is wanted"
  dir="${dir:-$(toml_text "$config" checkpoint.dir)}"
  run_dir="${run_dir:-$(toml_text "$config" run.dir)}"
  [[ -n "$dir" || -n "$run_dir" ]] || die "neither checkpoint.dir nor run.dir is in '$config': give the folder as ORTHANT_CHECKPOINTS"
  printf '%s' "${dir:-$run_dir/checkpoints}"
}

# The newest committed checkpoint's step; 0 if there is none.
newest_step() {
  local folder newest=0
  for folder in "$checkpoints"/step-*; do
    [[ "${folder##*/}" =~ ^step-([0-9]{8,18})$ && -f "$folder/index.json" ]] || continue
    if ((10#${BASH_REMATCH[1]} > newest)); then newest=$((10#${BASH_REMATCH[1]})); fi
  done
  printf '%s' "$newest"
}

# Counts a failure of this job after the step of $1; prints how many they are in a row. A file that cannot be understood counts as none.
count_failure() {
  local step="$1" failures=0 line="" owner="${SLURM_JOB_ID:-}"
  [[ $once -eq 1 ]] || owner="process-$$"
  [[ ! -f "$state" ]] || IFS= read -r line < "$state" || true
  if [[ "$line" =~ ^job=([^ ]*)\ step=([0-9]+)\ failures=([0-9]{1,6})$ && "${BASH_REMATCH[1]}" == "$owner" && "${BASH_REMATCH[2]}" == "$step" ]]; then
    failures="${BASH_REMATCH[3]}"
  fi
  failures=$((10#$failures + 1))
  umask 077  # in a subshell: not that of the command
  mkdir -p -- "$(dirname -- "$state")" && printf 'job=%s step=%s failures=%s\n' "$owner" "$step" "$failures" > "$state.tmp-$$" &&
    mv -- "$state.tmp-$$" "$state" && printf '%s' "$failures"
}

# Whether a run that ended with code $1, after $2 restarts, is to be run again; says why.
again() {
  local code="$1" restarts="$2" step failures
  step="$(newest_step)"
  case "$code" in
    0) say "done"; return 1 ;;
    75) say "asked to stop, at checkpoint step $step" ;;
    138 | 143) say "ended by USR1 or TERM, which came before it was listening or twice; newest checkpoint: step $step" ;;
    1 | 6 | 12[89] | 1[3-9][0-9] | 2[0-9][0-9])
      failures="$(count_failure "$step")" || { say "stopped: failed with code $code, and failures cannot be counted in '$state'"; return 1; }
      say "failed with code $code; newest checkpoint: step $step; failures in a row after it: $failures"
      if [[ $failures -ge $max_failures ]]; then
        say "stopped: $failures runs in a row failed after checkpoint step $step, before the next one, so the same step may fail for ever." \
          "See the first error of each run; what is mended can be started again"
        return 1
      fi ;;
    *) say "stopped: code $code is not one that a restart mends"; return 1 ;;
  esac
  if [[ $restarts -ge $max_restarts ]]; then say "stopped: $restarts restarts are what ORTHANT_MAX_RESTARTS allows"; return 1; fi
}

child=""
asked=0  # signals so far
# Under Slurm the ranks are told by Slurm; a second signal would end them at once.
stop() {
  asked=$((asked + 1))
  [[ $once -eq 0 ]] || return 0
  [[ -n "$child" ]] || exit 130
  kill -"$1" "$child" 2>/dev/null || true
}
trap 'stop TERM' INT TERM HUP
trap 'stop USR1' USR1

# A session of its own, so that Ctrl-C at a terminal comes to the command once, by way of stop().
run() {
  local code before
  if [[ $once -eq 1 ]]; then "$@" & else setsid "$@" & fi
  child=$!
  while :; do
    before=$asked
    code=0
    wait "$child" || code=$?
    [[ $asked -ne $before ]] || return "$code"  # else it was a signal that ended the wait
  done
}

checkpoints="${ORTHANT_CHECKPOINTS:-}"
[[ -n "$checkpoints" ]] || checkpoints="$(checkpoint_folder "$@")"
readonly checkpoints state="${ORTHANT_RESTART_STATE:-$checkpoints/restarts}"

restarts=0
[[ $once -eq 0 ]] || restarts="${SLURM_RESTART_COUNT:-0}"
while :; do
  code=0
  run "$@" || code=$?
  [[ $once -eq 1 || $asked -eq 0 ]] || exit "$code"
  if ! again "$code" "$restarts"; then
    [[ $code -ne 75 ]] || code=1  # the limit of restarts
    exit "$code"
  fi
  [[ $once -eq 0 ]] || exit 75
  restarts=$((restarts + 1))
done
