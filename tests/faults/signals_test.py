# SPDX-License-Identifier: Apache-2.0
"""Requests to stop, from anywhere and at any time: the step ends, its state is saved once, the exit code is 75, and going on from there is as if
nothing had been. The same signal again ends at once."""

import os
import pathlib
import signal
import time
import unittest

from launcher import BINARY, LaunchTest
from observed import committed_steps, numbers_of, rank_pids, unfinished

MESH = {"pp": 2, "dp": 2, "tp": 1}
SECONDS_TO_STOP = 5
SAVE_S = 3


def catches(pid, number):
    """Whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status") as file:
            mask = next(line.split()[1] for line in file if line.startswith("SigCgt"))
    except (OSError, StopIteration):
        return False
    return int(mask, 16) >> (number - 1) & 1 == 1


class Stop(LaunchTest):
    def start_run(self, *changes):
        config = self.write_config({"mesh": MESH, "train": {"steps": 1000000}}, *changes)
        self.checkpoints = self.runs / "checkpoints"
        return self.start(["train", config], ranks=4)

    def assert_stopped(self, program, since, within=SECONDS_TO_STOP):
        """Returns the step at which it stopped, which has a checkpoint, whole, and nothing beside it."""
        self.assert_gone(program, since, within)
        done = program.wait(1)
        self.assertEqual(done.code, 75, done.output)
        step = len(self.metrics())
        self.assertEqual(committed_steps(self.checkpoints)[-1], step, done.output)
        self.assertEqual(done.output.count(f"checkpoint of step {step}: "), 1, done.output)
        self.assertEqual(unfinished(self.checkpoints), [])
        self.assertIn(f"asked to stop: the checkpoint of step {step} is in {self.checkpoints}", done.output)
        return step

    def test_term_to_one_rank(self):
        program = self.start_run()
        self.wait_for_steps(program, 3)
        since = time.monotonic()
        os.kill(rank_pids(program)[2], signal.SIGTERM)
        step = self.assert_stopped(program, since)
        self.assertEqual(committed_steps(self.checkpoints), [step])

    def stop_during_a_save(self, background):
        first = 50
        program = self.start_run({"checkpoint": {"interval": first, "background": background},
                                  "fault": {"kind": "slow", "phase": "save", "rank": 1, "step": first, "delay_ms": 1000 * SAVE_S}})
        program.wait_until(lambda: any(self.checkpoints.glob(f"step-{first:08}.tmp-*")), self.START, "its save")
        since = time.monotonic()
        program.process.send_signal(signal.SIGUSR1)  # to all
        os.kill(rank_pids(program)[1], signal.SIGTERM)
        step = self.assert_stopped(program, since, within=SAVE_S + SECONDS_TO_STOP)
        self.assertEqual(committed_steps(self.checkpoints), [first, step])
        self.assertGreater(time.monotonic() - since, SAVE_S / 2, "the save was under way")

    def test_usr1_to_mpirun_and_term_to_a_rank_during_a_save_in_the_background(self):
        self.stop_during_a_save(background=True)

    def test_usr1_to_mpirun_and_term_to_a_rank_during_a_save_that_training_waits_for(self):
        self.stop_during_a_save(background=False)

    def test_before_mpi_is_up(self):
        """As soon as there is a handler, which is before all else."""
        for _ in range(10):  # on a busy machine it may come too late
            config = self.write_config({"train": {"steps": 1000000}})
            self.checkpoints = self.runs / "checkpoints"
            program = self.start(["train", config])
            while not catches(program.process.pid, signal.SIGUSR1):
                self.assertIsNone(program.process.poll(), program.output())
            os.kill(program.process.pid, signal.SIGUSR1)
            in_time = "/mca_" not in pathlib.Path(f"/proc/{program.process.pid}/maps").read_text()  # of MPI's parts
            self.assertEqual(self.assert_stopped(program, time.monotonic(), within=self.START), 1)
            if in_time:
                return
        self.fail("it never came before MPI was up")

    def test_while_libraries_are_being_loaded(self):
        """It waits if the launcher has blocked it, as launch/slurm/train.sbatch does."""
        for _ in range(5):  # on a busy machine it may come too late
            config = self.write_config({"train": {"steps": 1000000}})
            self.checkpoints = self.runs / "checkpoints"
            program = self.start_command(["env", "--block-signal=USR1,TERM", BINARY, "train", config])
            pid = program.process.pid
            while not os.path.samefile(f"/proc/{pid}/exe", BINARY):
                self.assertIsNone(program.process.poll(), program.output())
            os.kill(pid, signal.SIGUSR1)
            in_time = not catches(pid, signal.SIGUSR1)
            since = time.monotonic()
            self.assertEqual(self.assert_stopped(program, since, within=self.START), 1)
            if in_time:
                return
        self.fail("it never came while libraries were being loaded")

    def test_another_signal_changes_nothing_and_the_same_again_ends_at_once(self):
        # A scheduler sends USR1 ahead of time, and TERM at its limit.
        config = self.write_config({"train": {"global_batch": 24000}})  # a first step that takes long
        program = self.start(["train", config])
        program.wait_until(lambda: self.run_folder() and (self.run_folder() / "config.toml").exists(), self.START, "begin of training")
        time.sleep(0.5)
        for name in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            os.kill(program.process.pid, name)
        time.sleep(2)  # within a second it would be the same request
        self.assertIsNone(program.process.poll(), program.output())
        since = time.monotonic()
        os.kill(program.process.pid, signal.SIGTERM)
        self.assert_gone(program, since, within=3)
        self.assertEqual(program.wait(1).code, 128 + signal.SIGTERM, program.output())
        self.assertEqual(committed_steps(self.runs / "checkpoints"), [])

    def test_stopped_twice_it_ends_as_if_nothing_had_been(self):
        steps = 60
        lengthened = {"fault": {"kind": "slow", "rank": 0, "times": 0, "delay_ms": 50}}  # time to ask it
        self.start_run({"train": {"steps": steps}}).wait(self.START)
        unbroken = numbers_of(self.metrics())
        self.assertEqual(len(unbroken), steps)

        config = self.write_config({"mesh": MESH, "train": {"steps": steps}}, lengthened)
        self.checkpoints = self.runs / "checkpoints"
        done = []
        for _ in range(2):
            before = self.run_folder()
            program = self.start(["train", config], ranks=4)
            program.wait_until(lambda: self.run_folder() != before, self.START, "a run folder")
            self.wait_for_steps(program, 10)
            since = time.monotonic()
            program.process.send_signal(signal.SIGUSR1)
            self.assert_gone(program, since, SECONDS_TO_STOP)
            self.assertEqual(program.wait(1).code, 75, program.output())
            done += self.metrics()
            self.assertEqual(committed_steps(self.checkpoints)[-1], len(done))
        ended = self.start(["train", config], ranks=4).wait(self.START)
        self.assertEqual(ended.code, 0, ended.output)
        self.assertIn(f"going on from the checkpoint of step {len(done)} in ", ended.output)
        done += self.metrics()
        self.assertEqual(numbers_of(done), unbroken)


if __name__ == "__main__":
    unittest.main()
