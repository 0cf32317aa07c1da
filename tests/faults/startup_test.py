# SPDX-License-Identifier: Apache-2.0
"""What can be wrong before the first step is found then: ranks that do not have the same, a launcher that is not MPI's, odd names."""

import os
import shutil
import signal
import subprocess
import time
import unittest

import launcher
from launcher import BINARY, MPIRUN, MPIRUN_SH, ROOT, LaunchTest, data_set
from observed import committed_steps

MESH = {"pp": 2, "dp": 2, "tp": 1}
WITHIN = 20  # seconds for all processes, on a busy machine; a rank that waits for another would wait for 120


class RanksDiffer(LaunchTest):
    """Ranks 0, 1 and 3 are started with one file, rank 2 with another."""

    def start_with(self, most, third):
        command = [*MPIRUN]
        for ranks, config in ((2, most), (1, third), (1, most)):
            command += [":"] * (len(command) > len(MPIRUN)) + ["-n", ranks, BINARY, "train", config]
        program = self.start_command(command)
        done = program.wait(WITHIN)
        self.assertEqual(done.code, 2, done.output)
        self.assertEqual(len(done.messages()), 1, done.output)
        self.assert_gone(program, time.monotonic(), within=10)
        self.assertFalse((self.runs / "0001").exists(), "a run that cannot start makes no folder")
        return done

    def write_pair(self, *changes):
        """Two configs, the second with changes, of the same run folder."""
        first, runs = self.write_config({"mesh": MESH}), self.runs
        second = self.write_config({"mesh": MESH}, *changes, {"run": {"dir": str(runs)}})
        self.runs = runs
        return first, second

    def test_another_config_is_told_once_with_keys_values_and_ranks(self):
        done = self.start_with(*self.write_pair({"train": {"seed": 7, "grad_clip": 0.5}}))
        self.assertIn("the ranks do not have the same:", done.output)
        told = [line.strip() for line in done.lines if " on ranks " in line]
        self.assertEqual(told, ["train.grad_clip: 0.5 on ranks 2; 1.0 on ranks 0 1 3", "train.seed: 1 on ranks 0 1 3; 7 on ranks 2"], done.output)

    def test_other_data_is_told(self):
        content = bytearray((data_set() / "train.tokens").read_bytes())
        other = self.folder / "other.tokens"
        content[-2:] = bytes(2)
        content[32] ^= 1  # the fingerprint in the header
        other.write_bytes(content)
        done = self.start_with(*self.write_pair({"data": {"train": str(other)}}))
        told = {line.strip().partition(": ")[0]: line for line in done.lines if " on ranks " in line}
        self.assertEqual(set(told), {"data.train", "the tokens of data.train"}, done.output)
        self.assertRegex(told["the tokens of data.train"], r"[0-9a-f]{16} on ranks (0 1 3|2); [0-9a-f]{16} on ranks (0 1 3|2)$")

    def test_another_program_is_told(self):
        most, _ = self.write_pair()
        other = self.folder / "orthant"
        shutil.copy2(BINARY, other)
        with open(other, "ab") as file:
            file.write(b"\0")
        command = [*MPIRUN, "-n", "3", BINARY, "train", most, ":", "-n", "1", other, "train", most]
        program = self.start_command(command)
        done = program.wait(WITHIN)
        self.assertEqual(done.code, 2, done.output)
        told = [line.strip() for line in done.lines if " on ranks " in line]
        self.assertEqual(len(told), 1, done.output)
        self.assertRegex(told[0], r"^the program: [0-9a-f]{16} on ranks [\d ]+; [0-9a-f]{16} on ranks [\d ]+$")

    def test_a_config_that_one_rank_cannot_read_is_told_with_its_rank(self):
        most, broken = self.write_pair({"train": {"stesp": 5}})
        for what, config, words in (("a key", broken, "unknown key; did you mean train.steps?"),
                                    ("the file", self.folder / "absent.toml", "absent.toml")):
            with self.subTest(what):
                done = self.start_with(most, config)
                start = next(number for number, line in enumerate(done.lines) if line.startswith("orthant: error:"))
                self.assertEqual(done.lines[start + 1], "rank 2:", done.output)
                self.assertIn(words, done.lines[start + 2])
                self.assertEqual(done.output.count("\nrank "), 1, done.output)

    def test_data_that_one_rank_cannot_read_is_told_with_its_rank(self):
        most, third = self.write_pair({"data": {"train": str(self.folder / "absent.tokens")}})
        command = [*MPIRUN, "-n", "2", BINARY, "train", most, ":", "-n", "1", BINARY, "train", third, ":", "-n", "1", BINARY, "train", most]
        program = self.start_command(command)
        done = program.wait(WITHIN)
        self.assertEqual(done.code, 3, done.output)
        self.assertEqual(len(done.messages()), 1, done.output)
        self.assertRegex(done.output, r"(?m)^rank 2:\n.*absent\.tokens")


class Launchers(LaunchTest):
    def test_processes_that_mpi_does_not_know_of_are_an_error_each(self):
        config = self.write_config()
        for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
            with self.subTest(name):
                done = subprocess.run([BINARY, "train", config], env={**launcher.ENVIRONMENT, name: "4"}, cwd=ROOT, timeout=WITHIN,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                self.assertEqual(done.returncode, 2, done.stdout)
                self.assertIn(f"the launcher has started 4 processes ({name}), but MPI knows of one", done.stdout)
                self.assertFalse(self.runs.exists())

    def test_one_process_that_says_so_is_none(self):
        config = self.write_config({"train": {"steps": 1}})
        done = self.orthant("train", config, ranks=1)
        self.assertEqual(done.code, 0, done.output)

    def test_a_mesh_of_another_size_and_axes_that_cannot_be(self):
        done = self.orthant("train", self.write_config({"mesh": {"pp": 2, "dp": 1, "tp": 1}}), ranks=3)
        self.assertEqual(done.code, 2, done.output)
        self.assertIn("pp * dp * tp = 2 * 1 * 1 = 2 but 3 ranks were started; start 2 ranks, or set one axis to 0 to infer it", done.output)
        for axes, words in (({"pp": 1, "dp": -2, "tp": 1}, "mesh.dp = -2: an integer in [0, "),
                            ({"pp": 0, "dp": 1, "tp": 0}, "one axis at most may be 0 (inferred from the number of ranks)")):
            done = self.orthant("train", self.write_config({"mesh": axes}))
            self.assertEqual(done.code, 2, done.output)
            self.assertIn(words, done.output)


class OddNames(LaunchTest):
    def setUp(self):
        super().setUp()
        self.odd = self.folder / "a b'\"$(touch x);é%s{}\\"
        self.odd.mkdir()

    def test_a_run_saves_stops_and_goes_on_in_folders_with_odd_names(self):
        for name in ("train.tokens",):
            shutil.copy(data_set() / name, self.odd / name)
        plain = self.write_config({"mesh": MESH, "lr_schedule": {"kind": "constant"}, "train": {"steps": 1000000},
                                   "data": {"train": str(self.odd / "train.tokens")}, "checkpoint": {"interval": 2},
                                   "run": {"dir": str(self.odd / "runs")}})
        config = plain.rename(self.odd / plain.name)
        self.runs = self.odd / "runs"
        program = self.start(["train", config], ranks=4, launcher=MPIRUN_SH)
        self.wait_for_steps(program, 3)
        program.process.send_signal(signal.SIGTERM)
        done = program.wait(30)
        self.assertEqual(done.code, 75, done.output)
        step = len(self.metrics())
        self.assertEqual(committed_steps(self.runs / "checkpoints")[-1], step)
        self.assertIn(f"run folder {self.runs / '0001'}", done.output)
        again = self.orthant("train", config, f"--set=train.steps={step + 2}", ranks=4)
        self.assertEqual(again.code, 0, again.output)
        self.assertIn(f"going on from the checkpoint of step {step} in {self.runs / 'checkpoints'}", again.output)
        self.assertEqual([line["step"] for line in self.metrics()], [step + 1, step + 2])
        for place in (ROOT, self.folder, self.odd):
            self.assertFalse((place / "x").exists(), "a name was executed")

    def test_a_name_that_is_not_utf8_works(self):
        name = os.fsencode(self.folder) + b"/\xff\xfe.toml"
        os.rename(self.write_config({"train": {"steps": 1}}), name)
        done = self.orthant("train", os.fsdecode(name))
        self.assertEqual(done.code, 0, done.output)


if __name__ == "__main__":
    unittest.main()
