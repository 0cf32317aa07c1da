# SPDX-License-Identifier: Apache-2.0
"""Emulated devices: what a step takes is what the simulator said, on eight processes that share two cores.

Run alone. Skipped, loudly, where the machine is too busy to measure on. ORTHANT_EMULATION=full: all schedules on 4 and 8
ranks with all latencies.
"""

import json
import os
import subprocess
import unittest

from launcher import BINARY, ENVIRONMENT, MPIRUN, ROOT, LaunchTest

FULL = os.environ.get("ORTHANT_EMULATION") == "full"
SCHEDULES = ["1f1b", "zb_h1", "interleaved", "zb_v", "v_half", "dualpipe_v"]
SHORT = [(schedule, 4, 1) for schedule in SCHEDULES] + [("zb_h1", 8, 1), ("zb_v", 8, 3)]
CELLS = [(schedule, ranks, latency) for latency in (0, 1, 3) for ranks in (4, 8) for schedule in SCHEDULES] if FULL else SHORT
STEPS = 5


class Emulation(LaunchTest):
    def bench(self, schedule, ranks, latency, *more, costs="10,10,8"):
        command = [*MPIRUN, "-n", str(ranks), BINARY, "bench", "pipeline", "--schedule", schedule, "--stages", str(ranks),
                   "--microbatches", str(3 * ranks), "--costs", f"{costs},{latency}", "--message-bytes", "4096",
                   "--steps", str(STEPS), "--json", *more]
        done = subprocess.run(command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
        if "machine busy" in done.stderr:
            print(f"{schedule} on {ranks}: {done.stderr.strip()}", flush=True)
            self.skipTest("machine busy")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        print(f"{schedule:>12} p{ranks} latency {latency} ms: predicted {result['predicted_ms']:8.2f} ms, measured "
              f"{result['measured_ms']:8.2f} ms ({100 * (result['measured_over_predicted'] - 1):+.2f} %)", flush=True)
        self.assertEqual(result["peak_activations_measured"], result["peak_activations_predicted"])
        return result

    def test_measured_steps_are_as_predicted(self):
        for schedule, ranks, latency in CELLS:
            with self.subTest(schedule=schedule, ranks=ranks, latency=latency):
                result = self.bench(schedule, ranks, latency)
                self.assertLess(abs(result["measured_over_predicted"] - 1), 0.05 if latency == 0 else 0.03)

    def test_receives_posted_late_cost_what_the_prediction_does_not_have(self):
        result = self.bench("zb_v", 4, 3, "--late-receives")
        self.assertGreater(result["measured_over_predicted"], 1.05)

    def test_zb_v_idles_less_than_a_third_of_1f1b(self):
        zb_v, one_f_one_b = self.bench("zb_v", 4, 1), self.bench("1f1b", 4, 1, costs="20,20,16")
        self.assertEqual(zb_v["ideal_ms"], one_f_one_b["ideal_ms"])
        idle = [result["measured_ms"] - result["ideal_ms"] for result in (zb_v, one_f_one_b)]
        print(f"over ideal: zb_v {idle[0]:.2f} ms, 1f1b {idle[1]:.2f} ms", flush=True)
        self.assertLess(idle[0], 0.30 * idle[1])


if __name__ == "__main__":
    unittest.main()
