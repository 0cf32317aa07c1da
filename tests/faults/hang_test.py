# SPDX-License-Identifier: Apache-2.0
"""A rank that stops, or leaves out an operation, ends the run soon after the time-out, and the last word names it. A rank that is slow, or
stops for less than the time-out, changes nothing."""

import json
import os
import random
import re
import signal
import stat
import threading
import time
import unittest

from launcher import BINARY, MPIRUN, LaunchTest, data_set
from observed import committed_steps, is_stopped, numbers_of, rank_pids

TIMEOUT = 6
MESH = {"pp": 2, "dp": 2, "tp": 1}
RANK = 2
OPERATION = re.compile(r"(all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|send|receive)[^,]*, #(\d+) on (\w+) \[([\d ]+)\]")


class HangTest(LaunchTest):
    def start_run(self, *changes, mesh=MESH):
        config = self.write_config({"mesh": mesh, "comm": {"timeout_s": TIMEOUT}, "train": {"steps": 1000000}}, *changes)
        program = self.start_command([*MPIRUN, "-n", "4", BINARY, "train", config], config)  # a mark of its own: several runs hang at once
        program.runs = self.runs
        return program

    def start_stopped(self, name, phase, step, *changes):
        """A run whose rank has stopped itself."""
        program = self.start_run({"fault": {"kind": "stop", "rank": RANK, "phase": phase, "step": step}}, *changes)
        program.wait_until(lambda: is_stopped(program, RANK), self.START, f"stop in {name}")
        return program

    def watch_end(self, program):
        """From now on, which is when it hangs: notes how long its processes live."""
        since = time.monotonic()

        def watch():
            while program.living() and time.monotonic() < since + 3 * TIMEOUT + 10:
                time.sleep(0.2)
            program.ended_after = time.monotonic() - since

        program.watch = threading.Thread(target=watch)
        program.watch.start()
        self.addCleanup(program.watch.join)

    def hung(self, program):
        """The verdict's lines, of a run that has ended as it must."""
        program.watch.join()
        self.assertLess(program.ended_after, TIMEOUT + 10, program.output())
        done = program.wait(1)
        self.assertEqual(done.code, 6, done.output)
        self.assertEqual(program.living(), [])
        starts = [number for number, line in enumerate(done.lines) if line.startswith("orthant: hang: ")]
        self.assertEqual(len(starts), 1, "one rank says it, once:\n" + done.output)
        end = next(n for n in range(starts[0] + 1, len(done.lines)) if not done.lines[n].startswith("  ") or "  dumps: " in done.lines[n])
        verdict = [done.lines[starts[0]].removeprefix("orthant: hang: "), *(line.strip() for line in done.lines[starts[0] + 1:end])]
        print(f"{self.id().rpartition('.')[2]}: gone after {program.ended_after:.1f} s; " + "\n    ".join(verdict))

        folder, = program.runs.glob("hang-*")
        self.assertEqual(done.lines[end], f"  dumps: {folder}")
        self.assertRegex(folder.name, "^hang-[0-9a-f]{16}$")
        self.assertEqual(stat.S_IMODE(folder.stat().st_mode), 0o700)
        for path in folder.iterdir():
            self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600, path)
        self.assertEqual((folder / "verdict.txt").read_text().splitlines()[0], verdict[0])
        report = self.orthant("report", "--hang", folder, "--json")
        self.assertEqual(report.code, 0, report.output)
        program.report = json.loads(report.output)
        return verdict

    def assert_names(self, verdict, rank, phase):
        """The first line: who, in what, where."""
        self.assertTrue(verdict[0].startswith(f"rank {rank} is behind: "), verdict)
        self.assertIn(f"; rank {rank} has no dump (stopped, dead, ", verdict[0])
        found = OPERATION.search(verdict[0])
        self.assertTrue(found, verdict)
        self.assertIn(str(rank), found[4].split(), "the group that waits is one of its own")
        self.assertRegex(verdict[0], rf"; phase {phase}, step \d+$")

    def assert_reports_the_same(self, program, verdict, rank):
        """mpirun wakes a stopped rank before it kills it: what that does then takes nothing from what was known."""
        self.assertEqual(program.report["lines"][0], verdict[0])
        self.assertEqual(program.report["culprits"], [rank])
        self.assertTrue(any(rank in wait["missing"] for wait in program.report["waits"]), program.report["waits"])


def phases():
    """By name: fault.phase, fault.step, more of the config, the phase of those that wait."""
    tokens = str(data_set() / "train.tokens")
    return {"init": ("init", 1, {}, "init"),
            "step": ("step", 5, {}, "step"),
            "evaluation": ("evaluation", 1, {"data": {"train": tokens, "validation": tokens}}, "evaluation"),
            "save in the background": ("save", 8, {"checkpoint": {"interval": 4}}, "step"),
            "save that training waits for": ("save", 8, {"checkpoint": {"interval": 4, "background": False}}, "save")}


class StoppedRank(HangTest):
    def test_in_each_phase(self):
        cases, programs = phases(), {}
        for name, (phase, step, changes, _) in cases.items():
            programs[name] = self.start_stopped(name, phase, step, changes)
            self.watch_end(programs[name])
        for name, program in programs.items():
            with self.subTest(name):
                verdict = self.hung(program)
                self.assert_names(verdict, RANK, cases[name][3])
                if "save" in name:
                    self.assertEqual(committed_steps(program.runs / "checkpoints"), [4], "what was not whole never was")
            with self.subTest(name, what="report"):
                self.assert_reports_the_same(program, verdict, RANK)
        ledger = (programs["step"].runs / "checkpoints" / "goodput.jsonl").read_text().splitlines()
        self.assertEqual(json.loads(ledger[-1])["event"], "hang", "the next start knows how long it took to find")

    def test_at_any_moment(self):
        seed = random.randrange(1 << 30)
        chance = random.Random(seed)
        program = self.start_run({"checkpoint": {"interval": 3}}, mesh={"pp": 1, "dp": 2, "tp": 2})
        self.wait_for_steps(program, 3)
        time.sleep(chance.uniform(0, 1))
        rank = chance.randrange(4)
        print(f"seed {seed}: rank {rank}")
        os.kill(rank_pids(program)[rank], signal.SIGSTOP)
        self.watch_end(program)
        verdict = self.hung(program)
        self.assert_names(verdict, rank, r"\w+")
        self.assert_reports_the_same(program, verdict, rank)


class OperationLeftOut(HangTest):
    """[fault] kind = "skip": a bug in the order of operations, as it would look."""

    def start_skip(self, group, mesh, *changes):
        program = self.start_run({"fault": {"kind": "skip", "rank": RANK, "step": 5, "group": group}}, *changes, mesh=mesh)
        self.wait_for_steps(program, 3)
        return program

    def test_whose_place_the_next_takes_unseen_is_found_as_a_hang(self):
        program = self.start_skip("stage", MESH)
        self.watch_end(program)
        verdict = self.hung(program)
        self.assertIn(RANK, program.report["culprits"])
        mine = [line for line in verdict if f"waits for rank {RANK} in all_reduce " in line and " on stage [2 3]" in line]
        self.assertEqual(len(mine), 1, verdict)
        self.assertRegex(mine[0], r", #\d+ on stage \[2 3\], for \d+\.\d s$")
        # A rank's second dump, of its own alarm, may come after the verdict.
        timeless = [[re.sub(r", for \d+\.\d s$", "", line) for line in lines if "by the hosts' clocks" not in line]
                    for lines in (program.report["lines"], verdict)]
        self.assertEqual(*timeless)

    def test_whose_place_another_takes_is_found_at_once_as_a_mismatch(self):
        program = self.start_skip("dp_reduce", {"pp": 1, "dp": 4, "tp": 1}, {"comm": {"timeout_s": 60}})
        self.assert_gone(program, time.monotonic(), within=TIMEOUT)
        done = program.wait(1)
        self.assertEqual(done.code, 6, done.output)
        told = [line for line in done.messages() if "mismatch at #" in line]
        self.assertEqual(done.messages()[0], told[0], done.output)
        self.assertRegex(told[0], r"^orthant: rank \d \(.*\), step 5: mismatch at #\d+ on dp_reduce \[0 1 2 3\]: ")
        self.assertIn(f"rank {RANK} called reduce_scatter of ", told[0])


class NoHang(HangTest):
    """Nothing of this may end a run, or change what it computes."""

    STEPS = {"train": {"steps": 40}}

    def keep_waking(self, program):
        while program.process.poll() is None:
            if is_stopped(program, RANK):
                time.sleep(TIMEOUT / 2)
                os.kill(rank_pids(program)[RANK], signal.SIGCONT)
            time.sleep(0.1)

    def test_a_rank_that_stops_for_half_the_time_out_in_any_phase(self):
        programs = []
        for name, (phase, step, changes, _) in phases().items():
            program = self.start_stopped(name, phase, step, self.STEPS, changes)
            programs.append(program)
            threading.Thread(target=self.keep_waking, args=(program,)).start()
        steps = set()
        for program in programs:
            done = program.wait(self.START)
            self.assertEqual(done.code, 0, done.output)
            self.assertEqual(list(program.runs.glob("hang-*")), [])
            self.runs = program.runs
            steps.add(json.dumps(numbers_of(self.metrics())))
        self.assertEqual(len(steps), 1, "all have computed the same")

    def test_a_rank_that_stops_for_half_the_time_out_or_is_slow(self):
        done = self.start_run(self.STEPS).wait(self.START)
        self.assertEqual(done.code, 0, done.output)
        undisturbed = numbers_of(self.metrics())
        slow = {"kind": "slow", "rank": 1, "step": 20, "times": 3, "delay_ms": 1000 * TIMEOUT // 3}
        program = self.start_run(self.STEPS, {"fault": slow})
        self.wait_for_steps(program, 3)
        pid = rank_pids(program)[RANK]
        os.kill(pid, signal.SIGSTOP)
        before = len(self.metrics())
        time.sleep(TIMEOUT / 2)
        self.assertLessEqual(len(self.metrics()), before + 2, "nobody goes on without it")
        self.assertTrue(is_stopped(program, RANK))
        os.kill(pid, signal.SIGCONT)
        done = program.wait(self.START)
        self.assertEqual(done.code, 0, done.output)
        self.assertEqual([line for line in done.messages() if "hang" in line], [])
        self.assertEqual(list(self.runs.glob("hang-*")), [])
        self.assertEqual(numbers_of(self.metrics()), undisturbed)


if __name__ == "__main__":
    unittest.main()
