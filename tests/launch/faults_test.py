# SPDX-License-Identifier: Apache-2.0
"""A rank that fails or dies in the middle takes the whole run with it, soon and with a word on where it was."""

import os
import shutil
import time
import unittest

from launcher import LaunchTest, data_set

RANK, STEP = 1, 5
MESHES = {"2x2x1": ({"pp": 2, "dp": 2, "tp": 1}, "pp0 dp1 tp0"), "1x2x2": ({"pp": 1, "dp": 2, "tp": 2}, "pp0 dp0 tp1")}


class Faults(LaunchTest):
    def run_into(self, kind, mesh):
        """Starts a run with a fault in STEP, and gives it ten seconds to end from shortly before that."""
        config = self.write_config({"mesh": mesh, "train": {"steps": 1000}, "fault": {"kind": kind, "rank": RANK, "step": STEP}})
        program = self.start(["train", config], ranks=4)
        self.wait_for_steps(program, STEP - 2)
        since = time.monotonic()
        self.assert_gone(program, since, within=10)
        done = program.wait(1)
        self.assertNotEqual(done.code, 0)
        # Rank 0 may hear of the fault before it has written down the step before it.
        self.assertIn(len(self.metrics()), (STEP - 2, STEP - 1), "the steps before the fault are done, the one with it is not")
        return done

    def test_an_exception_ends_all_ranks_and_is_told_first(self):
        for name, (mesh, coordinate) in MESHES.items():
            with self.subTest(mesh=name):
                done = self.run_into("throw", mesh)
                self.assertEqual(done.code, 1, done.output)
                first = done.messages()[0]
                self.assertTrue(first.startswith(f"orthant: rank {RANK} ({coordinate}), step {STEP}: fault injected"), done.output)

    def test_a_killed_rank_ends_all_and_is_named(self):
        for name, (mesh, _) in MESHES.items():
            with self.subTest(mesh=name):
                done = self.run_into("kill", mesh)
                self.assertRegex(done.output, rf"rank {RANK} .*signal 9", done.output)


    def test_data_that_is_cut_meanwhile_is_not_read_on(self):
        tokens = self.folder / "train.tokens"
        shutil.copy(data_set() / "train.tokens", tokens)
        config = self.write_config({"mesh": {"dp": 2}, "train": {"steps": 100000}, "data": {"train": str(tokens)}})
        program = self.start(["train", config], ranks=2)
        self.wait_for_steps(program, STEP)
        os.truncate(tokens, 64)
        done = program.wait(30)
        self.assertEqual(done.code, 3, done.output)
        self.assertEqual(len(done.messages()), 1, done.output)
        self.assertIn(f"{tokens}: was changed while this run reads it", done.messages()[0])


if __name__ == "__main__":
    unittest.main()
