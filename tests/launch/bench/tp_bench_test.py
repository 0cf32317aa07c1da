# SPDX-License-Identifier: Apache-2.0
"""What tensor parallelism hides of its communication on emulated devices.

Run alone. Measured is skipped, loudly, where the machine is too busy to measure on; Predicted, what the virtual clock says of the
same submissions, never is.
"""

import unittest
import xml.etree.ElementTree as ElementTree

from launcher import LaunchTest


class TpBenchTest(LaunchTest):
    def bench(self, *arguments, ranks=2):
        """Modes by name, and whether what was measured can be trusted."""
        result = self.bench_result("tp", *arguments, ranks=ranks)
        busy = result["busy"]
        modes = {mode["mode"]: mode for mode in result["modes"]}
        for name, mode in modes.items():
            print(f"{name:>22}: {mode['pass_ms']:7.1f} ms, {mode['exposed_ms']:6.1f} exposed (predicted {mode['predicted_exposed_ms']:6.1f})"
                  f"{' on a busy machine' if busy else ''}", flush=True)
        return modes, busy


class Measured(TpBenchTest):
    ATTEMPTS = 3

    def test_most_of_what_backward_says_is_hidden(self):
        modes, busy = self.bench()
        if busy:
            self.skipTest("machine busy")
        self.assertLess(modes["backward"]["exposed_ms"], 0.40 * modes["backward, no overlap"]["exposed_ms"])
        self.assertLess(modes["forward, in pieces"]["exposed_ms"], 0.80 * modes["forward"]["exposed_ms"])
        for name, mode in modes.items():
            self.assertLess(mode["exposed_ms"], 1.10 * mode["predicted_exposed_ms"] + 0.10 * mode["compute_ms"], name)


class Predicted(TpBenchTest):
    def test_what_is_exposed_is_what_nothing_can_be_computed_beside(self):
        picture = self.folder / "tp.svg"
        modes, _ = self.bench("--layers", "3", "--steps", "1", "--svg", str(picture))
        # A pair of layers: the gather of the row-parallel layer's output gradient, the gather of the column-parallel layer's rows, and
        # the sum of its input's gradient. The first has nothing to run beside.
        self.assertAlmostEqual(modes["backward, no overlap"]["predicted_exposed_ms"], 3 * 12, places=3)
        self.assertAlmostEqual(modes["backward"]["predicted_exposed_ms"], 3 * 4, places=3)
        self.assertAlmostEqual(modes["backward, rows kept"]["predicted_exposed_ms"], 3 * 4, places=3)
        # The gather of rows, whole or one piece of four, and the sum at the end.
        self.assertAlmostEqual(modes["forward"]["predicted_exposed_ms"], 3 * 8, places=3)
        self.assertAlmostEqual(modes["forward, in pieces"]["predicted_exposed_ms"], 3 * 5, places=3)
        self.assertEqual(len(ElementTree.parse(picture).findall(".//{*}text[@class='h']")), len(modes))

    def test_bad_arguments(self):
        for arguments, words in [(["--layers", "0"], "--layers"), (["--product", "-3"], "--product"), (["--ranks", "1"], "--ranks")]:
            done = self.run_bench("tp", *arguments, ranks=None)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(words, done.stderr, arguments)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
