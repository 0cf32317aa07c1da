# SPDX-License-Identifier: Apache-2.0
"""One rank of a run under strace, which writes down its system calls, or makes one of them fail or kill."""

import functools
import os
import re
import shutil
import subprocess
import unittest
from typing import NamedTuple

from launcher import BINARY, MPIRUN

# What changes a disk. An openat() is none of its own: a file that was just made is one before its first pwrite64(). (The C library makes
# renameat() of a renameat2() without flags.)
CALLS = ("pwrite64", "fsync", "rename", "renameat", "renameat2", "mkdir", "rmdir", "unlink", "unlinkat", "ftruncate")


class Call(NamedTuple):
    name: str
    number: int  # among the main thread's calls of that name, from 1: "when" of strace's injections
    names: list  # of the files in its arguments, without what differs from run to run
    line: str

    def __str__(self):
        return f"{self.name} {self.number} ({', '.join(self.names)})"


@functools.cache
def _what_is_missing():
    if os.geteuid() != 0:
        return "only root can trace the children of mpirun"
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-D", "-f", "-o", os.devnull, "true"], capture_output=True, text=True)
    return "" if tried.returncode == 0 else f"strace cannot trace here: {tried.stderr.strip()}"


def require_strace():
    if _what_is_missing():
        raise unittest.SkipTest(_what_is_missing())


def traced_command(arguments, rank, ranks, log, *options):
    """mpirun with 'orthant ARGUMENTS' on all ranks, that of `rank` under strace. The tracer is a grandchild, so mpirun
    sees that rank's own end."""
    program = [BINARY, *arguments]
    # With a filter only the calls that are wanted stop the program; but at such a stop no signal can be injected.
    bpf = [] if any("signal=" in option for option in options) else ["--seccomp-bpf"]
    trace = ["strace", "-D", "-f", *bpf, "-qq", "-y", "-o", log, f"--trace=execve,{','.join(CALLS)}", *options]
    command = list(MPIRUN)
    for count, part in ((rank, program), (1, [*trace, *program]), (ranks - 1 - rank, program)):
        if count > 0:
            command += [*([] if command == MPIRUN else [":"]), "-n", str(count), *part]
    return command


def _names(arguments):
    names = [name for path in re.findall(r'[<"](/[^<>"]*|[\w.-]+)[>"]', arguments) for name in [path.rpartition("/")[2]]]
    return [re.sub(r"[0-9a-f]{16}", "RUN", re.sub(r"\.tmp-\w{6}$", ".tmp-RANDOM", name)) for name in names]


def calls_of(log):
    """The calls of the program's main thread, in order."""
    calls, counts, main = [], {}, None
    for line in log.read_text("utf-8", "replace").splitlines():
        found = re.match(r"(\d+) +(\w+)\((.*)$", line)
        if not found:
            continue
        main = main or found[1]
        if found[1] == main and found[2] != "execve":
            counts[found[2]] = counts.get(found[2], 0) + 1
            calls.append(Call(found[2], counts[found[2]], _names(found[3]), line))
    return calls


def calls_of_save(calls, step, next_step):
    """Those of a save that training waits for, with the deletion of what it makes superfluous."""
    def first(wanted):
        return next(i for i, call in enumerate(calls) if f"step-{wanted:08}.tmp-" in call.line)
    return calls[first(step):first(next_step)]
