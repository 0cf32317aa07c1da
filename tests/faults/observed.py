# SPDX-License-Identifier: Apache-2.0
"""What can be seen of a run from outside: the processes of its ranks, its checkpoints."""

import contextlib
import json
import pathlib


def rank_pids(program):
    """Process ids by rank."""
    pids = {}
    for pid in program.living():
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() != "orthant":
                continue
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            names = [entry for entry in environment if entry.startswith(b"OMPI_COMM_WORLD_RANK=")]
            pids[int(names[0].partition(b"=")[2]) if names else 0] = pid
    return pids


def state_of(pid):
    """As in /proc/PID/stat: "T" is stopped; None when it is gone."""
    with contextlib.suppress(OSError):
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return None


def is_stopped(program, rank):
    pid = rank_pids(program).get(rank)
    return pid is not None and state_of(pid) == "T"


def committed_steps(checkpoints):
    """Steps whose folder has its final name."""
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*") if path.name[5:].isdigit())


def index_of(checkpoints, step):
    return json.loads((checkpoints / f"step-{step:08}" / "index.json").read_text())


def unfinished(checkpoints):
    """What a save or a removal has not ended."""
    return [path.name for pattern in ("*.tmp-*", ".trash-*", "probe-*") for path in checkpoints.glob(pattern)]


def numbers_of(steps):
    """What training has computed, of metrics' lines; the rest is time."""
    return [{key: step[key] for key in ("step", "loss", "grad_norm", "lr", "tokens", "samples", "skipped")} for step in steps]
