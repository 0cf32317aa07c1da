# SPDX-License-Identifier: Apache-2.0
"""What tensor-parallel ranks hold alike is compared, and a difference ends the run with its own exit code and a name."""

import unittest

from launcher import LaunchTest

MODEL = {"model": {"layers": 2, "heads": 8, "kv_heads": 2, "qk_norm": True}, "mesh": {"tp": 4},
         "train": {"steps": 6}, "tp": {"check_replicas_every": 2}}


class Replicas(LaunchTest):
    def test_a_difference_names_parameter_and_rank_and_ends_with_7(self):
        config = self.write_config(MODEL, {"fault": {"kind": "diverge", "rank": 2, "step": 3}})
        done = self.orthant("train", config, ranks=4)
        self.assertEqual(done.code, 7, done.output)
        self.assertIn("on rank 2 is not what rank 0 holds", done.output)
        self.assertRegex(done.output, r"model\.layers\.\d\.\S+\.weight on rank 2")
        self.assertEqual(len(self.metrics()), 4, "the comparison after step 4 is the first after the fault")

    def test_a_sound_run_passes_and_says_nothing(self):
        done = self.orthant("train", self.write_config(MODEL), ranks=4)
        self.assertEqual(done.code, 0, done.output)
        self.assertNotIn("different", done.output)


if __name__ == "__main__":
    unittest.main()
