# SPDX-License-Identifier: Apache-2.0
"""Under Slurm: srun trains as mpirun does, and launch/slurm/train.sbatch brings a run to its end through time limits, preemption and crashes.

The Slurm is a test's own (slurm_cluster.py); without its packages, or without root, these tests are skipped.
"""

import json
import os
import pathlib
import signal
import unittest

import safetensors.numpy

import slurm_cluster
from launcher import BINARY, ENVIRONMENT, ROOT, LaunchTest

MESH = (2, 2, 1)
ON_MESH = {"mesh": dict(zip(("pp", "dp", "tp"), MESH))}
CHANGES = ON_MESH | {"checkpoint": {"interval": 5, "background": False}}
FOR_EVER = {"train": {"steps": 1000000}}
SRUN = ["srun", "--overcommit", "--mpi=pmix"]
REQUEUED = 60  # seconds until a requeued job runs, on a busy machine

slurm = None


def setUpModule():
    global slurm
    if reason := slurm_cluster.missing():
        raise unittest.SkipTest(reason)
    slurm = unittest.enterModuleContext(slurm_cluster.running())
    slurm.environment.update({name: value for name, value in ENVIRONMENT.items() if name not in slurm.environment})
    ENVIRONMENT.update(slurm.environment)


class SlurmTest(LaunchTest):
    def trajectory(self):
        """The steps of all runs of the config, in their order, without what depends on the clock."""
        lines = [json.loads(line) for folder in sorted(self.runs.glob("[0-9]" * 4))
                 for line in (folder / "metrics.jsonl").read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [{key: line[key] for key in ("step", "loss", "grad_norm", "lr", "tokens")} for line in lines if "loss" in line]

    def runs_made(self):
        return len(list(self.runs.glob("[0-9]" * 4)))

    def checkpoints(self):
        """Steps of the committed checkpoints."""
        return sorted(int(path.parent.name.removeprefix("step-")) for path in self.runs.glob("checkpoints/step-*/index.json"))

    def submit(self, config, *arguments, options=()):
        """sbatch of the shipped script, from the checkout."""
        self.printed = self.folder / "job.out"
        self.job = slurm.run("sbatch", "--parsable", "--ntasks=4", "--overcommit", f"--output={self.printed}", *options,
                             ROOT / "launch/slurm/train.sbatch", config, *arguments, cwd=ROOT).stdout.strip()
        self.addCleanup(slurm.run, "scancel", self.job)

    def wait_until(self, condition, timeout, what):
        try:
            slurm.wait_until(condition, timeout, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said()}") from None

    def wait_for_end(self, timeout):
        """The job's final state; PENDING or REQUEUED is not one."""
        self.wait_until(lambda: slurm.job(self.job)["JobState"] in ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"), timeout, "end of the job")
        return slurm.job(self.job)

    def said(self):
        return self.printed.read_text()[-4000:] if self.printed.exists() else ""


class Srun(SlurmTest):
    def test_srun_trains_like_mpirun(self):
        self.train(self.write_config(ON_MESH, {"train": {"steps": 20}}), MESH)
        wanted = self.trajectory()
        config = self.write_config(ON_MESH, {"train": {"steps": 20}})
        done = self.start(["train", config], ranks=4, launcher=SRUN).wait(90)
        self.assertEqual(done.code, 0, done.output)
        self.assertEqual(len(wanted), 20)
        self.assertEqual(self.trajectory(), wanted)

    def test_a_signal_before_mpi_is_up_is_a_stop_like_any_other(self):
        program = self.start(["train", self.write_config(CHANGES, FOR_EVER)], ranks=4, launcher=SRUN)
        asked = set()

        def ask():
            for pid in self.ranks_that_listen(program) - asked:
                self.assertIsNone(self.run_folder(), "this was to be before MPI is up")
                os.kill(pid, signal.SIGUSR1)
                asked.add(pid)
            return len(asked) == 4
        program.wait_until(ask, self.START, "four ranks")
        done = program.wait(60)
        self.assertEqual(done.code, 75, done.output)
        self.assertEqual(len(self.checkpoints()), 1)
        self.assert_no_fragments()

    def ranks_that_listen(self, program):
        """Ranks that have installed their handler of USR1, the first thing they do, long before MPI_Init."""
        found = set()
        for pid in program.living():
            try:
                caught = next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:"))
                if os.path.samefile(f"/proc/{pid}/exe", BINARY) and int(caught.split()[1], 16) >> (signal.SIGUSR1 - 1) & 1:
                    found.add(pid)
            except OSError:
                pass
        return found


class TimeLimit(SlurmTest):
    STEPS, STEP_S = 80, 0.4
    BEFORE_SIGNAL = 15  # seconds: more than the start takes, less than the steps

    def test_a_run_longer_than_its_time_limit_is_the_unbroken_run(self):
        changes = {"train": {"steps": self.STEPS}, "checkpoint": {"interval": 2 * self.STEPS}}
        whole, parts = self.folder / "whole.safetensors", self.folder / "parts.safetensors"
        self.train(self.write_config(CHANGES, changes), MESH, "--save-weights", whole)
        wanted = self.trajectory()

        config = self.write_config(CHANGES, changes, {"fault": {"kind": "slow", "rank": 0, "times": 0, "delay_ms": int(1000 * self.STEP_S)}})
        slurm.wait_for_time_limit_check(in_seconds=self.BEFORE_SIGNAL)
        # In minutes. With USR1 90 s before the limit, and earlier rather than later, the next check sends it.
        self.submit(config, "--save-weights", parts, options=["--time=2"])
        self.wait_until(lambda: slurm.job(self.job)["Restarts"] == "1", 60, "requeue by the job itself")
        slurm.run("scontrol", "update", f"JobId={self.job}", "TimeLimit=30")  # else a slow machine gets nowhere between two signals
        ended = self.wait_for_end(240)
        self.assertEqual((ended["JobState"], ended["ExitCode"]), ("COMPLETED", "0:0"), self.said())
        self.assertEqual(self.runs_made(), 2)
        self.assertEqual(self.trajectory(), wanted)  # each step once: the checkpoint is of the last one before the stop
        weights = safetensors.numpy.load_file(parts)
        for name, tensor in safetensors.numpy.load_file(whole).items():
            self.assertEqual(weights[name].tobytes(), tensor.tobytes(), name)


class Preemption(SlurmTest):
    def test_a_preempted_job_goes_on_and_a_cancelled_one_does_not(self):
        self.submit(self.write_config(CHANGES, FOR_EVER))
        self.wait_until(lambda: len(self.trajectory()) > 2, self.START, "third step")
        slurm.run("srun", "--partition=high", "--ntasks=1", "true")
        stopped_at = self.trajectory()[-1]["step"]
        self.assertEqual(self.checkpoints()[-1], stopped_at, self.said())
        self.wait_until(lambda: self.runs_made() == 2 and len(self.trajectory()) > stopped_at, REQUEUED, "training after the preemption")
        self.assertEqual(self.trajectory()[stopped_at]["step"], stopped_at + 1)
        self.assertEqual(slurm.job(self.job)["Restarts"], "1")

        slurm.run("scancel", self.job)
        self.assertEqual(self.wait_for_end(60)["JobState"], "CANCELLED", self.said())
        self.assertEqual(self.runs_made(), 2)


class Crash(SlurmTest):
    def test_a_step_that_always_fails_ends_the_restarts_of_the_job(self):
        self.submit(self.write_config(CHANGES, FOR_EVER, {"fault": {"kind": "kill", "rank": 1, "step": 7}}),
                    options=["--export=ALL,ORTHANT_MAX_FAILURES=2"])
        ended = self.wait_for_end(150)
        self.assertEqual((ended["JobState"], ended["ExitCode"]), ("FAILED", "137:0"), self.said())
        self.assertIn("2 runs in a row failed after checkpoint step 5, before the next one", self.said())
        self.assertEqual((self.runs_made(), ended["Restarts"]), (2, "1"))

    def test_a_config_with_a_fault_is_not_run_again(self):
        self.submit(self.write_config(CHANGES), "--set", "model.heads=7")
        ended = self.wait_for_end(self.START)
        self.assertEqual((ended["JobState"], ended["ExitCode"], ended["Restarts"]), ("FAILED", "2:0", "0"), self.said())


if __name__ == "__main__":
    unittest.main()
