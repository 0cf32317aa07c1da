# SPDX-License-Identifier: Apache-2.0
"""Emulated devices: the real executor with computations that sleep, on four and eight processes that share two cores.

Executed holds on any machine. Measured, that a step takes what the simulator said, needs one with nothing else to do, and is skipped,
loudly, on one that is busy. ORTHANT_EMULATION=full: all schedules on 4 and 8 ranks with all latencies.
"""

import json
import os
import unittest

from launcher import LaunchTest

FULL = os.environ.get("ORTHANT_EMULATION") == "full"
SCHEDULES = ["1f1b", "zb_h1", "interleaved", "zb_v", "v_half", "dualpipe_v"]
SHORT = [(schedule, 4, 1) for schedule in SCHEDULES] + [("zb_h1", 8, 1), ("zb_v", 8, 3)]
CELLS = [(schedule, ranks, latency) for latency in (0, 1, 3) for ranks in (4, 8) for schedule in SCHEDULES] if FULL else SHORT


class EmulationTest(LaunchTest):
    def bench(self, schedule, ranks, latency, *more, costs="10,10,8", steps=5):
        result = self.bench_result("pipeline", "--schedule", schedule, "--stages", str(ranks), "--microbatches", str(3 * ranks),
                                   "--costs", f"{costs},{latency}", "--message-bytes", "4096", "--steps", str(steps), *more, ranks=ranks)
        print(f"{schedule:>12} p{ranks} latency {latency} ms: predicted {result['predicted_ms']:8.2f} ms, measured "
              f"{result['measured_ms']:8.2f} ms ({100 * (result['measured_over_predicted'] - 1):+.2f} %)"
              f"{' on a busy machine' if result['busy'] else ''}", flush=True)
        self.assertEqual(result["peak_activations_measured"], result["peak_activations_predicted"])
        # Nothing takes less than its given time.
        self.assertGreater(result["measured_over_predicted"], 0.99)
        return result


class Executed(EmulationTest):
    def test_every_schedule_runs_as_planned(self):
        for schedule in SCHEDULES:
            with self.subTest(schedule=schedule):
                self.bench(schedule, 4, 1, steps=1, costs="5,5,4")

    def test_a_run_may_be_longer_than_the_time_out_as_its_steps_are_shorter(self):
        config = self.write_config({"mesh": {"pp": 2}, "device": {"kind": "emulated", "costs_ms": [5.0, 5.0, 5.0]},
                                    "train": {"steps": 24}, "comm": {"timeout_s": 5}})
        done = self.orthant("train", config, ranks=2)
        self.assertEqual(done.code, 0, done.output)
        summary = json.loads((self.run_folder() / "summary.json").read_text())
        self.assertGreater(summary["steps"] * summary["measured_step_ms"], 5000)


class Measured(EmulationTest):
    ATTEMPTS = 3
    TRIES = 3  # noise only adds: the best of them counts

    def quiet_bench(self, *arguments, **options):
        result = self.bench(*arguments, **options)
        if result["busy"]:
            self.skipTest("machine busy")
        return result

    def test_measured_steps_are_as_predicted(self):
        for schedule, ranks, latency in CELLS:
            with self.subTest(schedule=schedule, ranks=ranks, latency=latency):
                bound, ratio = 1.05 if latency == 0 else 1.03, float("inf")
                for _ in range(self.TRIES):
                    if ratio >= bound:
                        ratio = min(ratio, self.quiet_bench(schedule, ranks, latency)["measured_over_predicted"])
                self.assertLess(ratio, bound)

    def test_receives_posted_late_cost_what_the_prediction_does_not_have(self):
        result = self.quiet_bench("zb_v", 4, 3, "--late-receives")
        self.assertGreater(result["measured_over_predicted"], 1.05)

    def test_zb_v_idles_less_than_a_third_of_1f1b(self):
        zb_v, one_f_one_b = self.quiet_bench("zb_v", 4, 1), self.quiet_bench("1f1b", 4, 1, costs="20,20,16")
        self.assertEqual(zb_v["ideal_ms"], one_f_one_b["ideal_ms"])
        idle = [result["measured_ms"] - result["ideal_ms"] for result in (zb_v, one_f_one_b)]
        print(f"over ideal: zb_v {idle[0]:.2f} ms, 1f1b {idle[1]:.2f} ms", flush=True)
        self.assertLess(idle[0], 0.30 * idle[1])


if __name__ == "__main__":
    unittest.main()
