# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at every system call of a save, and at random times: the last committed checkpoint is sound, the next start
goes on from it, and the run ends with the bits of the unbroken one.

Some of the calls and a few kills, unless ORTHANT_KILL_SWEEP=full.
"""

import contextlib
import json
import os
import random
import signal
import time
import unittest

from checkpoint_case import CheckpointTest, parameters
from observed import rank_pids
from traced_rank import calls_of, calls_of_save, require_strace

FULL = os.environ.get("ORTHANT_KILL_SWEEP") == "full"
RANKS = 4
SWEPT = range(RANKS) if FULL else (0, 1)
SMALL = {"mesh": {"pp": 2, "dp": 2, "tp": 1}, "model": {"layers": 2, "dropout": 0.1}}


class KillTest(CheckpointTest):
    def new_folder(self):
        """For a run from its beginning. It lies so deep that the main thread makes more folders than MPI's thread, whose number
        depends on which rank is first in MPI's own: what kills at a mkdir counts each thread's alone, and means the main thread's."""
        self.runs = self.folder / f"run{len(list(self.folder.glob('run*')))}" / "lies" / "deep" / "enough"
        return f"--set=run.dir={self.runs}"

    def run_unbroken(self, config, last):
        """What all others must come to."""
        done = self.run_on(config, self.new_folder())
        self.last, self.wanted = last, (self.steps_of_all_starts(), parameters(self.checkpoints, last))
        self.assertEqual(sorted(self.wanted[0]), list(range(1, last + 1)))
        return done

    def newest_committed(self):
        if not list(self.checkpoints.glob("step-" + "[0-9]" * 8)):
            return 0
        return max(self.assert_all_sound())

    def restart(self, config):
        """Returns the step that it must, and does, go on from."""
        newest = self.newest_committed()
        done = self.run_on(config, f"--set=run.dir={self.runs}")
        self.assertEqual(self.step_gone_on_from(done), newest, done.output)
        self.assertNotIn("WARNING", done.output)
        self.assertEqual(self.steps_of_all_starts(), self.wanted[0])
        self.assertEqual(parameters(self.checkpoints, self.last), self.wanted[1])
        self.assert_nothing_unfinished()
        return newest


class AtEveryCall(KillTest):
    """Of a save that is neither the first nor the last one, and after which the one before it is deleted."""

    INTERVAL, SAVE, LAST = 3, 6, 12

    def calls(self, config, rank):
        log = self.folder / f"calls-of-{rank}"
        done = self.trace(rank, log, ["train", config, self.new_folder()])
        self.assertEqual(done.code, 0, done.output)
        return calls_of_save(calls_of(log), self.SAVE, self.SAVE + self.INTERVAL)

    def chosen(self, calls):
        """All, or one of each kind; but all renames of folders, which commit and retire."""
        kinds = {}
        for call in calls:
            kinds.setdefault(call.name, []).append(call)
        return calls if FULL else [call for name, kind in kinds.items()
                                   for call in (kind if name.startswith("renameat") else [kind[len(kind) // 2]])]

    def kill_at(self, config, rank, call):
        log = self.folder / "calls"
        killed = self.trace(rank, log, ["train", config, self.new_folder()], f"--inject={call.name}:signal=KILL:when={call.number}")
        self.assertEqual(killed.code, 137, killed.output)
        self.assertRegex(killed.output, rf"rank {rank} .*signal 9")
        last = calls_of(log)[-1]
        self.assertEqual(last[:3], call[:3], "the call is another one than in the run that was not killed")
        self.assertIn(self.restart(config), (self.SAVE - self.INTERVAL, self.SAVE))

    def test_of_a_save(self):
        require_strace()
        config = self.write_config(SMALL, {"train": {"steps": self.LAST},
                                           "checkpoint": {"interval": self.INTERVAL, "keep": 1, "background": False}})
        self.run_unbroken(config, self.LAST)
        kills = equal = 0
        for rank in SWEPT:
            calls = self.calls(config, rank)
            chosen = self.chosen(calls)
            self.assertGreater(len(chosen), 2)
            commits = [call for call in chosen if call.name.startswith("rename") and call.names[-1] == f"step-{self.SAVE:08}"]
            self.assertEqual(len(commits), 1 if rank == 0 else 0)
            for call in chosen:
                with self.subTest(rank=rank, call=str(call)):
                    kills += 1
                    self.kill_at(config, rank, call)
                    equal += 1
            print(f"rank {rank}: {len(chosen)} of the {len(calls)} calls of a save")
        print(f"{kills} kills at system calls; after {equal} of them the restart was equal to the unbroken run")


class AtRandom(KillTest):
    KILLS = 100 if FULL else 5
    LAST = 40

    def kill(self, program, rank, steps, after):
        """`after` seconds after so many steps; 0 steps: after the rank was there."""
        def is_time():
            with contextlib.suppress(json.JSONDecodeError):  # a line that is being written
                return rank in rank_pids(program) and len(self.metrics()) >= steps
        with contextlib.suppress(AssertionError, KeyError, ProcessLookupError):  # it has ended before
            program.wait_until(is_time, self.START, f"step {steps}")
            time.sleep(after)
            os.kill(rank_pids(program)[rank], signal.SIGKILL)

    def test_of_any_rank_at_any_time(self):
        config = self.write_config(SMALL, {"train": {"steps": self.LAST}, "checkpoint": {"interval": 3, "keep": 2}})
        self.run_unbroken(config, self.LAST)
        seed = int(os.environ.get("ORTHANT_SEED", random.randrange(1 << 32)))
        chance, from_steps, late = random.Random(seed), [], 0
        for _ in range(self.KILLS):
            rank, steps = chance.randrange(RANKS), max(0, chance.randrange(-self.LAST // 4, self.LAST))
            after = chance.uniform(0, 0.05 if steps else 1)
            with self.subTest(seed=seed, rank=rank, steps=steps, after=after):
                program = self.start(["train", config, self.new_folder()], ranks=RANKS)
                self.kill(program, rank, steps, after)
                done = program.wait(90)
                self.assertNotIn(done.code, range(2, 128), done.output)
                late += done.code == 0
                from_steps.append(self.restart(config))
        print(f"{self.KILLS} kills at random times (seed {seed}), {late} of them too late; after {len(from_steps)} of them the "
              f"restart, from step {sorted(from_steps)}, was equal to the unbroken run")
        self.assertLess(late, self.KILLS / 2)


if __name__ == "__main__":
    unittest.main()
