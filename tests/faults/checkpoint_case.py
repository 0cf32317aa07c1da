# SPDX-License-Identifier: Apache-2.0
"""What the tests of checkpoints share: what a folder of checkpoints holds, and one saved run to damage copies of."""

import functools
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import unittest

from launcher import BINARY, ENVIRONMENT, MPIRUN, TINY, LaunchTest, data_set, toml
from observed import numbers_of
from traced_rank import traced_command

SAVED = {"mesh": {"pp": 2, "dp": 2, "tp": 1}, "train": {"steps": 12}, "checkpoint": {"interval": 4}}
STEPS = (4, 8, 12)  # that it has saved


def step_folder(checkpoints, step):
    return checkpoints / f"step-{step:08}"


def parameters(checkpoints, step):
    """What the index of a step says of all parameters: shapes, updates, slices with the checksums of their contents."""
    return json.loads((step_folder(checkpoints, step) / "index.json").read_text())["parameters"]


@functools.cache
def saved_run():
    """The checkpoints of SAVED, made once for the tests of a process. Not to be changed: damage copies."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="orthant-saved-"))
    unittest.addModuleCleanup(_forget, folder)
    tables = {**TINY, **SAVED, "train": {**TINY["train"], **SAVED["train"]},
              "data": {"train": str(data_set() / "train.tokens")}, "run": {"dir": str(folder / "runs")}}
    (folder / "config.toml").write_text(toml(tables))
    done = subprocess.run([*MPIRUN, "-n", "4", BINARY, "train", folder / "config.toml"], env=ENVIRONMENT, timeout=90,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}:\n{done.stdout}")
    return folder / "runs" / "checkpoints"


def _forget(folder):
    shutil.rmtree(folder)
    saved_run.cache_clear()


class CheckpointTest(LaunchTest):
    @property
    def checkpoints(self):
        return self.runs / "checkpoints"

    def copy_of_saved_run(self, *changes):
        """A config that goes on from a copy of saved_run(), self.checkpoints."""
        config = self.write_config(SAVED, *changes)
        shutil.copytree(saved_run(), self.checkpoints)
        return config

    def run_on(self, config, *arguments, ranks=4, code=0):
        """A start, or restart, that must end with `code`."""
        done = self.orthant("train", config, *arguments, ranks=ranks)
        self.assertEqual(done.code, code, done.output)
        return done

    def trace(self, rank, log, arguments, *options):
        """Four ranks of 'orthant ARGUMENTS', that one under strace, until the tracer has written down the last call: it may end after mpirun."""
        program = self.start_command(traced_command(arguments, rank, 4, log, *options))
        done = program.wait(90)
        self.assert_gone(program, time.monotonic(), within=30)
        return done

    def step_gone_on_from(self, done):
        found = re.findall(r"^going on from the checkpoint of step (\d+) in ", "\n".join(done.lines), re.MULTILINE)
        self.assertLessEqual(len(found), 1, done.output)
        return int(found[0]) if found else 0

    def steps_of_all_starts(self):
        """Numbers by step, over all starts of a run; a step that was done twice must have given the same ones."""
        steps = {}
        for path in sorted(self.runs.glob("[0-9]" * 4 + "/metrics.jsonl")):
            for found in numbers_of(map(json.loads, path.read_text().splitlines())):
                self.assertEqual(steps.setdefault(found["step"], found), found, f"step {found['step']} in {path.parent.name}")
        return steps

    def look(self, command, *arguments, code=0, folder=None):
        """What 'orthant checkpoint list|verify --json' finds, by step."""
        done = self.orthant("checkpoint", command, folder or self.checkpoints, "--json", *arguments)
        self.assertEqual(done.code, code, done.output)
        return {look["step"]: look for look in json.loads(done.output)}

    def assert_all_sound(self):
        """Returns their steps."""
        looks = self.look("verify")
        self.assertTrue(all(look["sound"] for look in looks.values()))
        return list(looks)

    def assert_nothing_unfinished(self):
        known = re.compile(r"step-\d{8}|set-aside-step-\d{8}-[0-9a-f]+|latest|lock|goodput\.jsonl")
        self.assertEqual([path.name for path in self.checkpoints.iterdir() if not known.fullmatch(path.name)], [])
