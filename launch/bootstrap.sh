#!/usr/bin/env bash
# Installs what Orthant builds and runs with: Debian packages, and a virtual environment with LibTorch, CMake and Ninja.
# Idempotent: a second run finds everything, changes nothing and needs no network. Says each step and its time.
#
#   bash launch/bootstrap.sh          install what is missing
#   bash launch/bootstrap.sh --tests  and what the tests break things with
#   ORTHANT_VENV=DIR                  keep the virtual environment elsewhere (default: .venv in the checkout)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly venv="${ORTHANT_VENV:-$PWD/.venv}"
# One a line: Debian package, then why (README.md, "Libraries").
debian_packages=(
  g++ git ca-certificates python3 python3-venv ccache
  libopenmpi-dev openmpi-bin        # MPI
  libtomlplusplus-dev               # configuration files
  libcli11-dev                      # command line
  libfmt-dev                        # messages
  nlohmann-json3-dev                # metrics, traces, indexes
  libsentencepiece-dev              # tokenizer (pulls protobuf-lite)
  libxxhash-dev                     # fingerprints of plans, configs and data
  libgtest-dev                      # tests
  bible-kjv                         # the quickstart's text (public domain)
)
readonly test_packages=(
  strace iproute2 libfaketime       # failing system calls, open sockets, a clock that jumps
  slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge  # a Slurm of the tests' own
)
[[ "${1:-}" != --tests ]] || debian_packages+=("${test_packages[@]}")
readonly python_packages=(torch==2.11.0 "cmake>=3.31,<5" "ninja>=1.11" "numpy>=1.26,<3" "safetensors>=0.4,<1")

say() { printf '[bootstrap %4ss] %s\n' "$SECONDS" "$*"; }
die() { printf '[bootstrap] error: %s\n' "$*" >&2; exit 1; }

missing_debian_packages() {
  local package
  for package in "${debian_packages[@]}"; do
    [[ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] || printf '%s\n' "$package"
  done
}

install_debian_packages() {
  command -v dpkg-query >/dev/null || die "this script installs Debian packages and found no dpkg. Install these by hand: ${debian_packages[*]}"
  local missing
  mapfile -t missing < <(missing_debian_packages)
  if [[ ${#missing[@]} -eq 0 ]]; then say "Debian packages: all ${#debian_packages[@]} present"; return; fi
  local as_root=()
  if [[ $EUID -ne 0 ]]; then
    sudo -n true 2>/dev/null || die "missing Debian packages, and this user may not install them. Run: sudo apt-get update && sudo apt-get install ${missing[*]}"
    as_root=(sudo -n)
  fi
  say "Debian packages: installing ${missing[*]}"
  "${as_root[@]}" apt-get update -qq || die "apt-get update failed. Is the network up? Needed: ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "${missing[@]}" >/dev/null \
    || die "apt-get could not install: ${missing[*]}"
  say "Debian packages: installed"
}

# The stamp is written last and holds the list, so an interrupted or outdated environment is completed.
install_python_packages() {
  local stamp="$venv/.orthant-packages" wanted="${python_packages[*]}"
  if [[ -x "$venv/bin/python" && "$(cat "$stamp" 2>/dev/null)" == "$wanted" ]]; then
    say "Python environment: present in $venv"
    return
  fi
  say "Python environment: installing $wanted into $venv (about 5 GB, a minute or two)"
  python3 -m venv "$venv" || die "python3 -m venv $venv failed"  # completes a half-made one
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir "${python_packages[@]}" \
    || die "pip could not install $wanted. Is the network up, and are 8 GB free in $venv?"
  printf '%s' "$wanted" > "$stamp"
  say "Python environment: installed"
}

install_debian_packages
install_python_packages
say "ready"
