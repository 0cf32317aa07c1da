# SPDX-License-Identifier: Apache-2.0
"""A run that is asked to stop finishes its step, saves a checkpoint and ends with 75; the same command goes on from it. Asked twice, it ends
at once."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import termios
import time
import unittest

from launcher import MPIRUN, MPIRUN_SH, LaunchTest, data_set

MESH = {"pp": 2, "dp": 2, "tp": 1}
SECONDS_TO_STOP = 5


class OrderlyStop(LaunchTest):
    def start_training(self, launcher, changes=None, **options):
        # Without a schedule of the learning rate, the number of steps may be another when it goes on.
        self.config = self.write_config({"mesh": MESH, "train": {"steps": 1000000}, "lr_schedule": {"kind": "constant"}}, changes or {})
        program = self.start(["train", self.config], ranks=4, launcher=launcher, **options)
        self.wait_for_steps(program, 2)
        return program

    def assert_stops_orderly(self, program, ask):
        since = time.monotonic()
        ask()
        self.assert_gone(program, since, within=SECONDS_TO_STOP)
        self.assertEqual(program.wait(1).code, 75, program.output())
        self.stopped_at = len(self.metrics())
        checkpoint, = (self.runs / "checkpoints").glob("step-*")
        self.assertEqual(checkpoint.name, f"step-{self.stopped_at:08}")
        index = json.loads((checkpoint / "index.json").read_text())
        self.assertEqual(index["step"], self.stopped_at)
        self.assertIn("model.embed_tokens.weight", index["parameters"])
        self.assert_no_fragments()

    def test_usr1_to_plain_mpirun_and_the_same_command_again(self):
        program = self.start_training(MPIRUN)
        self.assert_stops_orderly(program, lambda: program.process.send_signal(signal.SIGUSR1))
        again = self.orthant("train", self.config, f"--set=train.steps={self.stopped_at + 2}", ranks=4)
        self.assertEqual(again.code, 0, again.output)
        self.assertIn(f"going on from the checkpoint of step {self.stopped_at} in ", again.output)
        self.assertEqual([step["step"] for step in self.metrics()], [self.stopped_at + 1, self.stopped_at + 2])

    def test_usr1_during_a_validation(self):
        long_validation = {"data": {"train": str(data_set() / "train.tokens"), "validation": str(data_set() / "train.tokens")},
                           "train": {"steps": 1000000, "validate_every": 1}}
        program = self.start_training(MPIRUN, long_validation)
        self.assert_stops_orderly(program, lambda: program.process.send_signal(signal.SIGUSR1))

    def test_int_and_term_to_the_script(self):
        for name in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=name.name):
                program = self.start_training(MPIRUN_SH)
                self.assert_stops_orderly(program, lambda name=name: program.process.send_signal(name))

    def test_control_c_at_a_terminal(self):
        keyboard, terminal = pty.openpty()
        self.addCleanup(os.close, keyboard)

        def control_this_terminal():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        program = self.start_training(MPIRUN_SH, stdin=terminal, start_new_session=True, preexec_fn=control_this_terminal)
        os.close(terminal)
        self.assert_stops_orderly(program, lambda: os.write(keyboard, b"\x03"))


class SecondSignal(LaunchTest):
    """In a run whose first step takes so long that it is still busy with it."""

    def ask_twice(self, launcher, again):
        config = self.write_config({"mesh": MESH, "train": {"global_batch": 24000}})
        program = self.start(["train", config], ranks=4, launcher=launcher)
        program.wait_until(lambda: self.run_folder() and (self.run_folder() / "config.toml").exists(), self.START, "begin of training")
        time.sleep(1)
        program.process.send_signal(signal.SIGUSR1 if launcher is MPIRUN else signal.SIGINT)
        with self.assertRaises(subprocess.TimeoutExpired, msg="the step should still be busy"):
            program.process.wait(2)
        since = time.monotonic()
        program.process.send_signal(again)
        self.assert_gone(program, since, within=SECONDS_TO_STOP)
        self.assertNotIn(program.wait(1).code, (0, 75), program.output())
        self.assertEqual(list((self.runs / "checkpoints").glob("step-*")), [])
        self.assert_no_fragments()

    def test_a_second_usr1_ends_the_ranks_of_plain_mpirun(self):
        self.ask_twice(MPIRUN, signal.SIGUSR1)

    def test_a_second_int_ends_the_script_and_its_ranks(self):
        self.ask_twice(MPIRUN_SH, signal.SIGINT)


if __name__ == "__main__":
    unittest.main()
