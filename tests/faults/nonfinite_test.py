# SPDX-License-Identifier: Apache-2.0
"""A gradient that is not finite on one rank: all ranks leave the step out, say so, count it, and change nothing; too many in a row end the run.
(deepspeedai/DeepSpeed#8415: such steps were left out without a word.)"""

import unittest

from launcher import LaunchTest
from observed import committed_steps, index_of

RANK = 2
# Every kind of group, and both ways to the norm: waited for, and run ahead of.
CASES = {"dp2 tp2, nan": ({"pp": 1, "dp": 2, "tp": 2}, "nan", "auto"),
         "pp2 dp2, infinity": ({"pp": 2, "dp": 2, "tp": 1}, "infinity", "auto"),
         "pp2 dp2 post-validated, nan": ({"pp": 2, "dp": 2, "tp": 1}, "nan", "on")}


class NonFinite(LaunchTest):
    def run_with(self, case, *changes):
        mesh, kind, post_validation = CASES[case]
        config = self.write_config({"mesh": mesh, "fault": {"kind": kind, "rank": RANK}, "tp": {"check_replicas_every": 1},
                                    "pipeline": {"post_validation": post_validation}}, *changes)
        done = self.start(["train", config], ranks=4).wait(self.START)
        self.checkpoints = self.runs / "checkpoints"
        return done

    def assert_warns(self, done, step, opening):
        """Once, with the rank and the parameter."""
        told = [number for number, line in enumerate(done.lines) if opening in line and f"step {step}: loss " in line]
        self.assertEqual(len(told), 1, done.output)
        self.assertIn("is not finite; the step changed no weight", done.lines[told[0]])
        ranks = []
        for line in done.lines[told[0] + 1:]:
            if not line.startswith("  rank "):
                break
            ranks.append(line)
        self.assertTrue(ranks and all(line.startswith(f"  rank {RANK}: gradient of model.") or line.startswith(f"  rank {RANK}: gradient of lm_head")
                                      for line in ranks), done.output)

    def test_one_step_is_left_out_and_changes_nothing(self):
        for case in CASES:
            with self.subTest(case):
                changes = {"train": {"steps": 7, "max_skipped_steps": 2}, "checkpoint": {"interval": 1, "keep": 100}, "fault": {"step": 5}}
                done = self.run_with(case, changes)
                self.assertEqual(done.code, 0, done.output)
                self.assert_warns(done, 5, "WARNING: ")
                metrics = self.metrics()
                self.assertEqual([step["skipped"] for step in metrics], [0, 0, 0, 0, 1, 1, 1])
                self.assertEqual([step["step"] for step in metrics if step["grad_norm"] is None], [5])  # JSON has no NaN
                self.assertEqual(committed_steps(self.checkpoints), [1, 2, 3, 4, 5, 6, 7])
                before, skipped, after = (index_of(self.checkpoints, step) for step in (4, 5, 6))
                self.assertEqual(skipped["parameters"], before["parameters"], "weights, moments, number of updates")
                for name, saved in after["parameters"].items():
                    self.assertEqual(saved["updates"], before["parameters"][name]["updates"] + 1)
                    self.assertNotEqual(saved["master"], before["parameters"][name]["master"], name)
                self.assertEqual((skipped["step"], skipped["samples"]), (5, 5 * 24), "its samples are done with")

    def test_more_in_a_row_than_allowed_end_the_run(self):
        for case in ("dp2 tp2, nan", "pp2 dp2 post-validated, nan"):
            with self.subTest(case):
                done = self.run_with(case, {"train": {"steps": 30, "max_skipped_steps": 2}, "fault": {"step": 10, "times": 0}})
                self.assertEqual(done.code, 5, done.output)
                for step in (10, 11):
                    self.assert_warns(done, step, "WARNING: ")
                self.assert_warns(done, 12, "orthant: rank 0 (")
                self.assertEqual(len(done.messages()), 1, done.output)
                metrics = self.metrics()
                self.assertEqual([step["skipped"] for step in metrics], [0] * 9 + [1, 2])

    def test_without_leave_to_skip_the_first_ends_the_run(self):
        done = self.run_with("pp2 dp2, infinity", {"fault": {"step": 2}})
        self.assertEqual(done.code, 5, done.output)
        self.assert_warns(done, 2, "orthant: rank 0 (")
        self.assertEqual(len(self.metrics()), 1)


if __name__ == "__main__":
    unittest.main()
