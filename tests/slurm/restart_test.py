# SPDX-License-Identifier: Apache-2.0
"""launch/restart.sh runs a training again after what a restart mends, and stops, with a reason, after anything else."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from launcher import MPIRUN_SH, ROOT, BINARY, LaunchTest

RESTART = ["bash", str(ROOT / "launch" / "restart.sh")]

# In place of a launcher: each run takes a line "CODE STEP" of the script's; a STEP other than 0 is committed as a checkpoint first.
FAKE = """
read -r code step < "$1/plan"
sed -i 1d "$1/plan"
if [[ $step -ne 0 ]]; then
  folder="$(printf '%s/step-%08d' "$2" "$step")"
  mkdir -p "$folder" && touch "$folder/index.json"
fi
exit "$code"
"""


class Policy(unittest.TestCase):
    NAME = "runs"

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="orthant-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.checkpoints = self.folder / self.NAME / "checkpoints"
        self.config = self.folder / "config.toml"
        self.config.write_text(f"# a config\n[train]\ndir = \"no\"\n[run]  # here\ndir = '{self.checkpoints.parent}'  # said\n")
        (self.folder / "fake.sh").write_text(FAKE)

    def run_plan(self, plan, *options, arguments=None, environment=None):
        """Exit code, what was said, and how many runs of the plan were left."""
        (self.folder / "plan").write_text("".join(f"{code} {step}\n" for code, step in plan))
        done = subprocess.run([*RESTART, *options, "bash", self.folder / "fake.sh", self.folder, self.checkpoints, "train",
                               *(arguments or [self.config])],
                              env={**os.environ, "SLURM_JOB_ID": "", **(environment or {})}, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stderr, len((self.folder / "plan").read_text().splitlines())

    def test_it_goes_on_after_stops_crashes_and_hangs_until_the_run_is_done(self):
        code, said, left = self.run_plan([(75, 5), (137, 9), (6, 12), (1, 100000001), (139, 100000002), (0, 100000003), (0, 0)])
        self.assertEqual((code, left), (0, 1), said)
        self.assertIn("newest checkpoint: step 100000002", said)
        self.assertTrue(said.endswith("restart: done\n"), said)

    def test_what_the_user_has_to_mend_is_not_run_again(self):
        for wanted in (2, 3, 4, 5, 7, 126, 127):
            with self.subTest(code=wanted):
                code, said, left = self.run_plan([(wanted, 0), (0, 0)])
                self.assertEqual((code, left), (wanted, 1), said)
                self.assertIn(f"code {wanted} is not one that a restart mends", said)

    def test_failures_in_a_row_after_the_same_checkpoint_end_it(self):
        code, said, left = self.run_plan([(137, 0), (137, 5), (6, 5), (137, 5), (0, 0)])
        self.assertEqual((code, left), (137, 1), said)
        self.assertIn("stopped: 3 runs in a row failed after checkpoint step 5, before the next one", said)

    def test_a_checkpoint_without_an_index_is_none(self):
        (self.checkpoints / "step-00000007").mkdir(parents=True)
        (self.checkpoints / "step-00000009.tmp-1").mkdir()
        (self.checkpoints / "step-00000009.tmp-1" / "index.json").touch()
        self.assertIn("checkpoint step 5,", self.run_plan([(1, 5)] * 3)[1])

    def test_a_stop_is_not_a_failure(self):
        code, said, left = self.run_plan([(138, 0), (143, 0), (75, 0), (138, 0), (0, 0)])
        self.assertEqual((code, left), (0, 0), said)

    def test_the_limits_can_be_set(self):
        code, said, left = self.run_plan([(1, 0)] * 3, environment={"ORTHANT_MAX_FAILURES": "2"})
        self.assertEqual((code, left), (1, 1), said)
        code, said, left = self.run_plan([(75, step) for step in range(1, 9)], environment={"ORTHANT_MAX_RESTARTS": "4"})
        self.assertEqual((code, left), (1, 3), said)
        self.assertIn("4 restarts are what ORTHANT_MAX_RESTARTS allows", said)
        for wrong in ("many", "-1", "1 + a[$(touch x)]"):
            self.assertEqual(self.run_plan([(0, 0)], environment={"ORTHANT_MAX_FAILURES": wrong})[::2], (2, 1))

    def test_one_run_says_whether_there_is_to_be_another(self):
        job = {"SLURM_JOB_ID": "12"}
        for plan, wanted in (((0, 0), 0), ((75, 5), 75), ((2, 0), 2), ((137, 0), 75), ((137, 0), 75), ((137, 0), 137)):
            self.assertEqual(self.run_plan([plan], "--once", environment=job)[0], wanted, plan)
        # Another job begins to count anew, and so does one that finds a file it does not understand.
        self.assertEqual(self.run_plan([(137, 0)], "--once", environment={"SLURM_JOB_ID": "13"})[0], 75)
        for text in ("", "job=13 step=5 failures=9999999\n", "job=13 step=5 failures=a[$(touch x)]\n", "job=13 step=6 failures=2\n", "\0\0"):
            (self.checkpoints / "restarts").write_text(text)
            self.assertEqual(self.run_plan([(137, 0)], "--once", environment={"SLURM_JOB_ID": "13"})[0], 75, text)
        self.assertEqual(self.run_plan([(75, 6)], "--once", environment={**job, "SLURM_RESTART_COUNT": "100"})[0], 1)

    def test_the_checkpoints_are_found_as_the_program_finds_them(self):
        other = self.folder / "other"
        for arguments in ([self.config, "--set", f"run.dir={other}"], [f"--set=run.dir={other}", self.config],
                          ["--save-weights", "x", self.config, f"--set=checkpoint.dir={other}/checkpoints", "--set", "run.dir=nowhere"]):
            with self.subTest(arguments=arguments):
                self.run_plan([(1, 0)], "--once", arguments=arguments)
                self.assertTrue((other / "checkpoints" / "restarts").exists())
                shutil.rmtree(other)
        self.config.write_text(f'checkpoint . dir = "{other}/checkpoints" # "no"\n[run]\ndir = "nowhere"\n')
        self.run_plan([(1, 0)], "--once")
        self.assertTrue((other / "checkpoints" / "restarts").exists())

    def test_without_a_place_for_checkpoints_nothing_is_run(self):
        self.config.write_text("[run]\nsteps = 3\n")
        for arguments in ([self.config], [self.folder / "absent.toml"], ["--set", "run.dir=x"]):
            code, said, left = self.run_plan([(0, 0)], arguments=arguments)
            self.assertEqual((code, left), (2, 1), said)
        self.assertEqual(self.run_plan([(0, 0)], environment={"ORTHANT_CHECKPOINTS": str(self.checkpoints)})[0], 0)

    def test_failures_that_cannot_be_counted_end_it(self):
        code, said, left = self.run_plan([(1, 0)] * 2, environment={"ORTHANT_RESTART_STATE": "/proc/none/restarts"})
        self.assertEqual((code, left), (1, 1), said)
        self.assertIn("cannot be counted in '/proc/none/restarts'", said)

    def test_a_signal_is_passed_on_and_ends_it(self):
        (self.folder / "fake.sh").write_text('trap "sleep 0.3; exit 75" TERM USR1; touch "$1/up"; while :; do sleep 0.05; done')
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            with self.subTest(signal=name.name):
                (self.folder / "up").unlink(missing_ok=True)
                process = subprocess.Popen([*RESTART, "bash", self.folder / "fake.sh", self.folder, "x", "train", self.config])
                self.addCleanup(process.kill)
                while not (self.folder / "up").exists():
                    time.sleep(0.02)
                process.send_signal(name)
                self.assertEqual(process.wait(10), 75)


class HostileName(Policy):
    """The same in a folder whose name is out to be executed or split."""

    NAME = "a b\"$(touch x);`touch y`*?%s\u00e9"


class PoisonStep(LaunchTest):
    def test_a_step_that_always_fails_ends_the_restarts(self):
        config = self.write_config({"mesh": {"dp": 2}, "train": {"steps": 20}, "checkpoint": {"interval": 5, "background": False},
                                    "fault": {"kind": "kill", "rank": 1, "step": 7}})
        program = self.start(["train", config], ranks=2, launcher=[*RESTART, *MPIRUN_SH])
        done = program.wait(150)
        self.assertEqual(done.code, 137, done.output)
        self.assertIn("3 runs in a row failed after checkpoint step 5, before the next one", done.output)
        self.assertEqual(len(list(self.runs.glob("[0-9]" * 4))), 3)
        self.assert_gone(program, time.monotonic(), within=10)


if __name__ == "__main__":
    unittest.main()
