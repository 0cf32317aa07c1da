# SPDX-License-Identifier: Apache-2.0
"""Nothing grows with the number of steps: resident set, open files, step time. (pytorch/pytorch#178276)"""

import json
import os
import pathlib
import statistics
import time
import unittest

from launcher import BINARY, MPIRUN, LaunchTest

STEPS = 2000


def resident_bytes(pid):
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slope(points):
    """Least squares."""
    mean_x, mean_y = statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points)
    return (sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points))


class Growth(LaunchTest):
    def test_resident_set_and_open_files_stay_the_same(self):
        config = self.write_config({"model": {"layers": 2, "hidden": 16, "heads": 2, "kv_heads": 2, "ffn": 16},
                                    "train": {"steps": STEPS, "global_batch": 2, "seq_len": 8, "log_every": 500},
                                    "fsdp": {"stage": 3, "residency": "layer"}})
        program = self.start_command([*MPIRUN, "-n", "4", BINARY, "train", config, "--set", "mesh.dp=2", "--set", "mesh.tp=2"], config)
        metrics = None
        samples = {}  # by rank: steps done and resident bytes
        files = {}
        done = 0
        while program.process.poll() is None and done < STEPS:
            metrics = metrics or next(iter(self.runs.glob("*/metrics.jsonl")), None) if self.runs.exists() else None
            steps = metrics.read_text().count("\n") if metrics else 0
            if steps < done + 50:
                time.sleep(0.02)
                continue
            done = steps
            for pid in program.living():
                try:
                    if pathlib.Path(f"/proc/{pid}/comm").read_text().strip() != "orthant" or done < 200:
                        continue
                    samples.setdefault(pid, []).append((done, resident_bytes(pid)))
                    files.setdefault(pid, []).append(len(os.listdir(f"/proc/{pid}/fd")))
                except OSError:
                    pass  # it has just ended
        finished = program.wait(60)
        self.assertEqual(finished.code, 0, finished.output)
        self.assertEqual(len(samples), 4)
        for pid, points in samples.items():
            points = points[:-1]  # the last may be of a rank that is ending
            self.assertGreater(len(points), 10)
            growth = slope(points)
            print(f"rank {pid}: {growth:+.0f} bytes a step over {len(points)} samples, {set(files[pid][:-1])} open files")
            self.assertLess(growth, 1024)
            self.assertEqual(len(set(files[pid][:-1])), 1)
        times = [json.loads(line)["step_ms"] for line in metrics.read_text().splitlines()]
        early, late = statistics.median(times[100:300]), statistics.median(times[-200:])
        print(f"median step {early:.2f} ms early, {late:.2f} ms late")


if __name__ == "__main__":
    unittest.main()
