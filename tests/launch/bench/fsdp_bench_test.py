# SPDX-License-Identifier: Apache-2.0
"""The YaFSDP article's comparison on emulated devices: what fsdp::Engine hides, and what the baselines do not.

Run alone. Measured is skipped, loudly, where the machine is too busy to measure on; Predicted, what the virtual clock says of the
same submissions, never is.
"""

import unittest
import xml.etree.ElementTree as ElementTree

from launcher import LaunchTest

BASELINES = ["no-overlap", "per-tensor", "copy-in"]


class FsdpBenchTest(LaunchTest):
    def bench(self, *arguments, ranks=2):
        """Modes by name, and whether what was measured can be trusted."""
        result = self.bench_result("fsdp", *arguments, ranks=ranks)
        busy = result["busy"]
        modes = {mode["mode"]: mode for mode in result["modes"]}
        for name, mode in modes.items():
            print(f"{name:>10} {mode['streams']:>8}: {mode['step_ms']:7.1f} ms, {100 * mode['exposed_share']:5.2f} % exposed "
                  f"(predicted {mode['predicted_step_ms']:7.1f} ms, {100 * mode['predicted_exposed_share']:5.2f} %)"
                  f"{' on a busy machine' if busy else ''}", flush=True)
        return modes, busy

    def check_sums(self, modes, computation):
        for mode in modes.values():
            parts = sum(mode[f"exposed_{what}_ms"] for what in ("gather", "reduce", "copy")) + mode["other_ms"]
            self.assertAlmostEqual(parts, mode["exposed_ms"], delta=1e-6)
            self.assertAlmostEqual(mode["step_ms"] - mode["compute_ms"], mode["exposed_ms"], delta=1e-6)
            self.assertGreaterEqual(mode["compute_ms"], computation)
            self.assertIn(mode["step_ms"], mode["steps_ms"])
            # Nothing takes less than its given time.
            self.assertGreater(mode["step_ms"], mode["predicted_step_ms"] - 0.01)


class Measured(FsdpBenchTest):
    ATTEMPTS = 3

    def test_the_articles_comparison(self):
        modes, busy = self.bench("--steps", "3")
        if busy:
            self.skipTest("machine busy")
        self.assertLess(modes["overlap"]["exposed_share"], 0.05)
        self.assertGreater(modes["no-overlap"]["exposed_share"], 0.40)
        for name in BASELINES:
            self.assertGreater(modes[name]["over_overlap"], 1.05, name)
            self.assertGreater(modes[name]["exposed_share"], 2 * modes["overlap"]["exposed_share"], name)
        self.assertGreater(modes["copy-in"]["exposed_copy_ms"], 10)
        for name, mode in modes.items():
            self.assertLess(mode["step_ms"], 1.10 * mode["predicted_step_ms"], name)


class Predicted(FsdpBenchTest):
    def test_the_articles_comparison(self):
        picture = self.folder / "article.svg"
        modes, _ = self.bench("--steps", "1", "--svg", str(picture))
        self.assertEqual(list(modes), ["overlap", *BASELINES])
        self.check_sums(modes, computation=480)
        self.assertEqual([mode["streams"] for mode in modes.values()], ["separate", "separate", "shared", "shared"])
        # The first gather and the last reduction have nothing to hide behind: 8 + 8 ms of 480 + 16.
        self.assertAlmostEqual(modes["overlap"]["predicted_step_ms"], 496, places=3)
        # All serial: 16 gathers forward, 14 backward (two layers are there still), 16 reductions.
        self.assertAlmostEqual(modes["no-overlap"]["predicted_step_ms"], 480 + 8 * (16 + 14 + 16), places=3)
        # Gather and copy take 12 of 10 ms forward, and with copy and reduction 24 of 20 ms backward.
        self.assertAlmostEqual(modes["copy-in"]["predicted_step_ms"], 590, places=3)
        self.assertEqual(len(ElementTree.parse(picture).findall(".//{*}text[@class='h']")), 4)

    def test_one_shared_stream_hides_as_much(self):
        modes, _ = self.bench("--mode", "overlap", "--streams", "shared", "--steps", "1")
        self.assertEqual(modes["overlap"]["streams"], "shared")
        self.assertAlmostEqual(modes["overlap"]["predicted_step_ms"], 496, places=3)

    def test_where_links_are_slower_than_computation_nothing_hides_them(self):
        modes, _ = self.bench("--mode", "overlap", "--layers", "4", "--forward", "5", "--backward", "5", "--gather", "10",
                              "--reduce", "10", "--steps", "1", ranks=3)
        # gathers 0 to 3 one after the other, F 3, B 3, and reductions 3 to 0 one after the other
        self.assertAlmostEqual(modes["overlap"]["predicted_step_ms"], 40 + 5 + 5 + 40, places=3)
        self.check_sums(modes, computation=40)

    def test_baselines_without_what_makes_them_slow_are_as_fast(self):
        modes, _ = self.bench("--layers", "6", "--forward", "4", "--backward", "8", "--gather", "3", "--reduce", "3",
                              "--tensors", "1", "--copy", "0", "--steps", "1", ranks=None)
        for name in ("per-tensor", "copy-in"):
            self.assertAlmostEqual(modes[name]["predicted_step_ms"], modes["overlap"]["predicted_step_ms"], places=3)

    def test_short_models(self):
        for layers in (1, 2, 3):
            modes, _ = self.bench("--layers", str(layers), "--forward", "1", "--backward", "2", "--gather", "1", "--reduce",
                                  "1", "--latency", "0.1", "--tensors", "3", "--steps", "1", ranks=None)
            serial = layers * (1 + 2 + 1 + 1) + max(0, layers - 2)
            self.assertAlmostEqual(modes["no-overlap"]["predicted_step_ms"], serial, places=3)
            self.check_sums(modes, computation=3 * layers)

    def test_bad_arguments(self):
        for arguments, words in [(["--mode", "herringbone"], "copy-in"), (["--layers", "0"], "--layers"),
                                 (["--gather", "-3"], "--gather"), (["--steps", "0"], "--steps"),
                                 (["--streams", "three"], "separate"), (["--tensors", "many"], "--tensors"),
                                 (["--latency", "9"], "--latency = 9 ms is longer than")]:
            done = self.run_bench("fsdp", *arguments, ranks=None)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(words, done.stderr, arguments)
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    unittest.main()
