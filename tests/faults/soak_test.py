# SPDX-License-Identifier: Apache-2.0
"""Nothing grows with the number of steps and of checkpoints saved in the background: resident set, open files, threads."""

import contextlib
import json
import os
import time
import unittest

from growth_test import resident_bytes, slope
from launcher import LaunchTest
from observed import committed_steps, rank_pids, unfinished

MOST_BYTES_A_STEP = 1024


class Soak(LaunchTest):
    def soak(self, steps, interval, first):
        """Samples all ranks while it runs, from step `first` on. A save copies a rank's whole state, so one that is not given back shows."""
        config = self.write_config({"train": {"steps": steps, "global_batch": 8, "log_every": 500}, "mesh": {"pp": 2, "dp": 2, "tp": 1},
                                    "checkpoint": {"interval": interval, "keep": 2}})
        program = self.start(["train", config], ranks=4)
        self.wait_for_steps(program, 1)
        ranks = rank_pids(program)
        self.assertEqual(sorted(ranks), [0, 1, 2, 3])
        memory, files, threads = ({rank: [] for rank in ranks} for _ in range(3))
        path = self.run_folder() / "metrics.jsonl"
        done = 0
        while program.process.poll() is None and done < steps - 10:
            time.sleep(0.01)
            now = path.read_text().count("\n")
            if now < max(done + 5, first):
                continue
            done = now
            for rank, pid in ranks.items():
                with contextlib.suppress(OSError):  # it has just ended
                    memory[rank].append((done, resident_bytes(pid)))
                    files[rank].append(len(os.listdir(f"/proc/{pid}/fd")))
                    threads[rank].append(len(os.listdir(f"/proc/{pid}/task")))
        finished = program.wait(60)
        self.assertEqual(finished.code, 0, finished.output)
        saves = json.loads((self.run_folder() / "summary.json").read_text())["checkpoints"]
        self.assertEqual((saves["saves"], saves["failures"], saves["last"]), (steps // interval, 0, steps))
        self.assertEqual(committed_steps(self.runs / "checkpoints"), [steps - interval, steps])
        self.assertEqual(unfinished(self.runs / "checkpoints"), [])
        for rank in ranks:
            self.assertGreater(len(memory[rank]), 20)
            growth = slope(memory[rank])
            state = sum(path.stat().st_size for path in (self.runs / "checkpoints" / f"step-{steps:08}").glob(f"rank-{rank:05}.*"))
            print(f"rank {rank}: {growth:+.0f} bytes a step over {len(memory[rank])} samples, {sorted(set(files[rank]))} open files, "
                  f"{sorted(set(threads[rank]))} threads; {state} bytes a save")
            self.assertGreater(state / interval, 2 * MOST_BYTES_A_STEP, "a copy that is kept would show")
            self.assertLess(growth, MOST_BYTES_A_STEP)
            # A file that is being written, with its folder, and the thread that writes it come and go.
            for counts in (files[rank], threads[rank]):
                self.assertEqual(min(counts[:len(counts) // 4]), min(counts[-len(counts) // 4:]), counts)
                self.assertLessEqual(max(counts), min(counts) + 2, counts)


class Short(Soak):
    def test_saves_do_not_accumulate(self):
        self.soak(steps=400, interval=4, first=200)


class Long(Soak):
    def test_2000_steps(self):
        self.soak(steps=2000, interval=20, first=200)


if __name__ == "__main__":
    unittest.main()
