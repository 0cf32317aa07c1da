# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a config or its data is told whole, once, soon, and with its exit code."""

import struct
import unittest

from launcher import LaunchTest, data_set

FIVE_FAULTS = """\
[model]
layers = 3
hidden = 24
heads = 3
ffn = 32
[mesh]
pp = 4
dp = 1
tp = 2
[train]
stesp = 5
global_batch = 5
micro_batch = 2
seq_len = 16
[optimizer]
lr = "fast"
"""
# line of the file, what is said there
EXPECTED = [
    (7, "mesh.pp = 4: ", "3 layers cannot fill 4 pipeline stages; use pp <= 3"),
    (9, "mesh.tp = 2: ", "heads = 3 is not divisible by tp = 2; use tp in {1}"),
    (11, "train.stesp = 5: ", "unknown key; did you mean train.steps?"),
    (12, "train.global_batch = 5: ", "global_batch = 5 is not divisible by dp * micro_batch = 1 * 2; use a multiple of 2"),
    (16, "optimizer.lr = \"fast\": ", "is a text; a finite number in [0, "),
]


class ConfigErrors(LaunchTest):
    def write_five_faults(self):
        path = self.folder / "config.toml"
        path.write_text(FIVE_FAULTS + f'[data]\ntrain = "{data_set() / "train.tokens"}"\n')
        return path

    def assert_tells_all_once(self, done, path, also=()):
        self.assertEqual(done.code, 2, done.output)
        told = [line.replace("'", '"') for line in done.lines if str(path) + ":" in line]  # either is TOML
        for line, key, why in [*EXPECTED, *also]:
            mine = [text for text in told if text.startswith(f"{path}:{line}: {key}")]
            self.assertEqual(len(mine), 1, f"line {line}, {key!r}:\n{done.output}")
            self.assertIn(why, mine[0])
        self.assertEqual(len(told), len(EXPECTED) + len(also), done.output)
        self.assertEqual(len(done.messages()), 1, done.output)

    def test_eight_ranks_tell_all_five_faults_once_within_15_s(self):
        path = self.write_five_faults()
        done = self.orthant("train", path, ranks=8)
        self.assert_tells_all_once(done, path)
        self.assertLess(done.seconds, 15)

    def test_one_rank_tells_them_and_the_number_of_ranks_within_5_s(self):
        path = self.write_five_faults()
        done = self.orthant("train", path)
        ranks = (8, "mesh.dp = 1: ", "pp * dp * tp = 4 * 1 * 2 = 8 but 1 ranks were started; start 8 ranks")
        self.assert_tells_all_once(done, path, also=[ranks])
        self.assertLess(done.seconds, 5)

    def test_a_sound_config_is_no_error(self):
        path = self.write_config({"train": {"steps": 0}})
        self.assertEqual(self.orthant("train", path).code, 0)

    def test_a_mesh_of_another_size_than_the_job_is_told_once(self):
        path = self.write_config({"mesh": {"pp": 2, "dp": 2, "tp": 2}})
        done = self.orthant("train", path, ranks=3)
        self.assertEqual(done.code, 2, done.output)
        self.assertEqual(len(done.messages()), 1, done.output)
        told = [line for line in done.lines if str(path) + ":" in line]
        self.assertEqual(len(told), 1, done.output)
        self.assertIn("mesh.dp = 2: pp * dp * tp = 2 * 2 * 2 = 8 but 3 ranks were started", told[0])
        self.assertFalse(self.runs.exists(), "a run that cannot start makes no folder")

    def test_ranks_that_the_inferred_axis_cannot_take_are_told(self):
        path = self.write_config()
        done = self.orthant("train", path, "--set=mesh.dp=0", "--set=mesh.tp=2", ranks=3)
        self.assertEqual(done.code, 2, done.output)
        self.assertIn("3 ranks are not divisible by the other axes' product 2", done.output)

    def test_an_override_is_named_as_the_place_of_its_fault(self):
        done = self.orthant("train", self.write_config(), "--set=train.precision=fp23")
        self.assertEqual(done.code, 2, done.output)
        self.assertRegex(done.output, '--set: train.precision = .fp23.: one of "fp32", "bf16", "fp64" is wanted; did you mean "fp32"\\?')

    def test_a_config_that_is_not_there_is_a_config_error(self):
        done = self.orthant("train", self.folder / "absent.toml")
        self.assertEqual(done.code, 2, done.output)
        self.assertIn(f"{self.folder / 'absent.toml'}", done.output)


class DataErrors(LaunchTest):
    def train_on(self, tokens, ranks=None):
        return self.orthant("train", self.write_config({"data": {"train": str(tokens)}}), "--set=mesh.dp=0", ranks=ranks)

    def damaged(self, change):
        content = bytearray((data_set() / "train.tokens").read_bytes())
        path = self.folder / "damaged.tokens"
        path.write_bytes(change(content))
        return path

    def test_data_that_is_not_there_is_told_once(self):
        done = self.train_on(self.folder / "absent.tokens", ranks=2)
        self.assertEqual(done.code, 3, done.output)
        self.assertEqual(len([line for line in done.lines if "absent.tokens" in line]), 1, done.output)

    def test_data_cut_short_is_a_data_error(self):
        for size in (0, 40, 64, 1000):
            with self.subTest(size=size):
                path = self.damaged(lambda content, size=size: content[:size])
                done = self.train_on(path)
                self.assertEqual(done.code, 3, done.output)
                self.assertIn(str(path), done.output)

    def test_a_file_of_another_kind_is_a_data_error(self):
        done = self.train_on(self.damaged(lambda content: b"ORTHTOKZ" + content[8:]))
        self.assertEqual(done.code, 3, done.output)

    def test_a_token_outside_the_vocabulary_ends_the_run(self):
        path = self.damaged(lambda content: content[:64] + struct.pack("<H", 60000) * ((len(content) - 64) // 2))
        done = self.train_on(path)
        self.assertEqual(done.code, 3, done.output)
        self.assertIn("60000", done.output)


if __name__ == "__main__":
    unittest.main()
