# SPDX-License-Identifier: Apache-2.0
"""An exception on one rank, in whatever phase, ends the run soon, is told once and names the rank. (pytorch/torchtitan#1342: a rank that
threw went on to destroy communicators, which waits for the others.)"""

import time
import unittest

from launcher import LaunchTest, data_set
from observed import committed_steps, unfinished

RANK = 2
COORDINATE = "pp1 dp0 tp0"
WITHIN = 10


class Thrown(LaunchTest):
    def start_run(self, phase, step, *changes):
        config = self.write_config({"mesh": {"pp": 2, "dp": 2, "tp": 1}, "train": {"steps": 12},
                                    "fault": {"kind": "throw", "rank": RANK, "phase": phase, "step": step}}, *changes)
        return self.start(["train", config], ranks=4)

    def run_into(self, phase, step, *changes):
        program = self.start_run(phase, step, *changes)
        program.wait_until(lambda: "fault injected by the config" in program.output(), self.START, "exception")
        since = time.monotonic()
        self.assert_gone(program, since, within=WITHIN)
        print(f"{phase}: gone after {time.monotonic() - since:.1f} s")
        return program.wait(1)

    def assert_told_once(self, done, phase):
        told = [line for line in done.lines if "fault injected by the config" in line]
        self.assertEqual(len(told), 1, done.output)
        self.assertTrue(told[0].startswith(f"orthant: rank {RANK} ({COORDINATE}), step "), done.output)
        self.assertIn(f'phase = "{phase}"', told[0])
        self.assertEqual(done.messages()[0], told[0], "what it began with comes first")

    def test_in_each_phase_in_which_ranks_work_together(self):
        tokens = str(data_set() / "train.tokens")
        for phase, step in (("init", 1), ("load", 1), ("step", 5), ("evaluation", 1), ("exit", 1)):
            with self.subTest(phase=phase):
                done = self.run_into(phase, step, {"data": {"train": tokens, "validation": tokens}})
                self.assertEqual(done.code, 1, done.output)
                self.assert_told_once(done, phase)

    def test_in_a_save_only_the_save_fails_and_the_next_is_made(self):
        for background in (True, False):
            with self.subTest(background=background):
                done = self.start_run("save", 4, {"checkpoint": {"interval": 4, "background": background}}).wait(self.START)
                self.assertEqual(done.code, 0, done.output)
                told = [number for number, line in enumerate(done.lines) if "the checkpoint of step 4 failed (write)" in line]
                self.assertEqual(len(told), 1, done.output)
                self.assertIn(f"rank {RANK}: fault injected by the config", done.lines[told[0] + 1])
                checkpoints = self.runs / "checkpoints"
                self.assertEqual(committed_steps(checkpoints), [8, 12])
                self.assertEqual(unfinished(checkpoints), [])
                self.assertEqual(len(self.metrics()), 12)

    def test_too_many_failed_saves_end_the_run(self):
        program = self.start_run("save", 4, {"checkpoint": {"interval": 4, "max_failures": 2}, "fault": {"times": 0}})
        done = program.wait(self.START)
        self.assertEqual(done.code, 4, done.output)
        self.assert_gone(program, time.monotonic(), within=WITHIN)
        self.assertIn("2 failures in a row are too many (checkpoint.max_failures)", done.output)
        self.assertEqual(len(done.messages()), 1, done.output)
        self.assertIn(f"rank {RANK}: fault injected by the config", done.output)
        self.assertEqual(committed_steps(self.runs / "checkpoints"), [])
        self.assertEqual(unfinished(self.runs / "checkpoints"), [])


if __name__ == "__main__":
    unittest.main()
