# SPDX-License-Identifier: Apache-2.0
"""How much of the time was training, over all starts; and checkpoints as often as their cost says."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

from launcher import BINARY, MPIRUN, LaunchTest, data_set
from observed import committed_steps, rank_pids

MESH = {"pp": 2, "dp": 2, "tp": 1}
STEP_S = 0.05


class Goodput(LaunchTest):
    def summary(self):
        return json.loads((self.run_folder() / "summary.json").read_text())

    def test_a_start_that_was_killed_is_counted_as_lost_since_its_checkpoint(self):
        interval, killed_at, steps = 40, 60, 90
        config = self.write_config({"mesh": MESH, "train": {"steps": steps}, "checkpoint": {"interval": interval},
                                    "fault": {"kind": "slow", "rank": 0, "times": 0, "delay_ms": int(1000 * STEP_S)}})
        program = self.start(["train", config], ranks=4)
        self.wait_for_steps(program, killed_at)
        os.kill(rank_pids(program)[3], signal.SIGKILL)
        self.assertNotEqual(program.wait(20).code, 0)
        self.assertEqual(committed_steps(self.runs / "checkpoints"), [interval])
        lost = sum(step["step_ms"] for step in self.metrics() if step["step"] > interval) / 1000

        done = self.orthant("train", config, ranks=4)
        self.assertEqual(done.code, 0, done.output)
        goodput = self.summary()["goodput"]
        print(json.dumps(goodput))
        self.assertEqual(goodput["starts"], 2)
        # Known only to a second, in which the ledger has one line, and by the mean of the steps.
        self.assertGreater(goodput["lost_s"], lost / 4)
        self.assertLess(goodput["lost_s"], 2 * lost)
        self.assertGreater(goodput["training_s"], STEP_S * steps * 0.9)
        self.assertGreater(goodput["restart_s"], 0)
        self.assertGreater(goodput["start_s"], goodput["load_s"])
        self.assertGreater(goodput["load_s"], 0)
        self.assertEqual(goodput["detect_s"], 0)
        self.assertTrue(0 < goodput["effective_training_time_ratio"] < 1)
        self.assertAlmostEqual(goodput["effective_training_time_ratio"], goodput["training_s"] / goodput["wall_s"], places=6)
        parts = sum(goodput[name] for name in ("training_s", "lost_s", "detect_s", "restart_s", "start_s", "save_stall_s"))
        self.assertLessEqual(parts, goodput["wall_s"])
        self.assertGreater(parts, 0.5 * goodput["wall_s"], "most of the time is known")

    def test_a_wall_clock_that_jumps_changes_no_number(self):
        library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
        if library is None:
            self.skipTest("libfaketime is not installed")
        clock = self.folder / "clock"
        clock.write_text("+3d")
        faked = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": clock, "FAKETIME_NO_CACHE": 1, "FAKETIME_DONT_FAKE_MONOTONIC": 1,
                 "NO_FAKE_STAT": 1}
        told = subprocess.check_output(["date", "+%s"], env={name: str(value) for name, value in faked.items()})
        self.assertAlmostEqual(int(told), time.time() + 3 * 86400, delta=60, msg="the library does what it is here for")
        clock.write_text("+0")
        config = self.write_config({"mesh": MESH, "train": {"steps": 90}, "checkpoint": {"interval": 30}, "comm": {"timeout_s": 20},
                                    "fault": {"kind": "slow", "rank": 0, "times": 0, "delay_ms": int(1000 * STEP_S)}})
        exported = [part for name, value in faked.items() for part in ("-x", f"{name}={value}")]
        program = self.start_command([*MPIRUN, "-n", "4", *exported, BINARY, "train", config])
        for step, jump in ((20, "+3d"), (50, "-3d")):
            self.wait_for_steps(program, step)
            clock.write_text(jump)
        done = program.wait(60)
        self.assertEqual(done.code, 0, done.output)
        self.assertEqual(len(self.metrics()), 90)
        goodput = self.summary()["goodput"]
        self.assertGreater(goodput["training_s"], 90 * STEP_S * 0.9)
        self.assertTrue(goodput["training_s"] < goodput["wall_s"] < done.seconds, goodput)
        ledger = [json.loads(line) for line in (self.runs / "checkpoints" / "goodput.jsonl").read_text().splitlines() if line]
        self.assertEqual(sorted(line["time"] for line in ledger), [line["time"] for line in ledger])
        self.assertLess(ledger[-1]["time"] - ledger[0]["time"], done.seconds)
        self.assertTrue(all(0 < line["step_ms"] < 1000 * done.seconds for line in self.metrics()))

    def test_the_interval_is_chosen_from_the_cost_of_a_save(self):
        config = self.write_config({"mesh": MESH, "train": {"steps": 120}, "checkpoint": {"interval": "auto", "mtbf_hours": 0.001},
                                    "fault": {"kind": "slow", "rank": 0, "times": 0, "delay_ms": 10}})
        done = self.orthant("train", config, ranks=4)
        self.assertEqual(done.code, 0, done.output)
        summary = self.summary()
        saves, goodput = summary["checkpoints"], summary["goodput"]
        told = [line for line in done.lines if "checkpoint.interval: every " in line]
        print(json.dumps(saves), *told, sep="\n")
        self.assertEqual(len(told), 1, done.output)
        self.assertRegex(told[0], r"every [\d.]+ m?s, for a stall of [\d.]+ s and a failure every ")
        self.assertGreater(saves["saves"], 1)
        self.assertEqual(saves["failures"], 0)
        self.assertAlmostEqual(goodput["save_stall_s"], saves["stall_s"], places=3, msg="the last save counts, too")
        self.assertEqual(saves["last"], 120)
        self.assertGreaterEqual(saves["interval_s"], 2 * saves["write_s"] - 1e-9)
        # Young's rule for this stall, or twice what writing takes.
        stall = saves["stall_s"] / saves["saves"]
        self.assertLess(saves["interval_s"], 10 * max((2 * stall * 3.6) ** 0.5, 2 * saves["write_s"]))
        self.assertLess(saves["saves"], 2 + goodput["training_s"] / 0.02)
        self.assertEqual(len(re.findall(r"checkpoint of step \d+: ", done.output)), saves["saves"])

    def test_a_save_that_becomes_due_during_a_validation_is_made_after_it(self):
        tokens = str(data_set() / "train.tokens")  # more batches than the steps before the first save
        config = self.write_config({"mesh": MESH, "train": {"steps": 12}, "checkpoint": {"interval": "auto", "mtbf_hours": 1e4},
                                    "data": {"train": tokens, "validation": tokens}})
        done = self.orthant("train", config, ranks=4)
        self.assertEqual(done.code, 0, done.output)
        self.assertEqual(committed_steps(self.runs / "checkpoints"), [1, 12])

    def test_with_rare_failures_one_save_tells_what_it_costs_and_one_is_at_the_end(self):
        config = self.write_config({"mesh": MESH, "train": {"steps": 60}, "checkpoint": {"interval": "auto", "mtbf_hours": 1e4}})
        done = self.orthant("train", config, ranks=4)
        self.assertEqual(done.code, 0, done.output)
        self.assertEqual(self.summary()["checkpoints"]["saves"], 2)
        first, last = committed_steps(self.runs / "checkpoints")
        self.assertEqual(last, 60)
        self.assertLess(first, 30)


if __name__ == "__main__":
    unittest.main()
