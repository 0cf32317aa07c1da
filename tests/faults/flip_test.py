# SPDX-License-Identifier: Apache-2.0
"""Every changed byte and every cut of a checkpoint is found by 'orthant checkpoint verify', which names the file."""

import os
import random
import shutil
import struct
import unittest

from checkpoint_case import SAVED, CheckpointTest, step_folder

SEED = 1
FLIPS = 200
COPIES = 20  # steps in the folder, each damaged in one place at a time


def end_of_header(path):
    """Of a shard; an index is nothing but a header."""
    return path.stat().st_size if path.name == "index.json" else 8 + struct.unpack("<Q", path.open("rb").read(8))[0]


def edges(path):
    """First and last byte of a file's length, header (with its padding) and tensors."""
    return sorted({0, 7, 8, end_of_header(path) - 1, min(end_of_header(path), path.stat().st_size - 1), path.stat().st_size - 1})


class Damage:
    """In file `name`: `place(path)` says where, and flips and cuts do what."""

    def __init__(self, name, place, mask=None):
        self.name, self.place, self.mask = name, place, mask

    def do(self, folder):
        path = folder / self.name
        at = self.place(path)
        self.text = f"{path}: cut to {at} bytes" if self.mask is None else f"{path}: byte {at} ^ {self.mask}"
        if self.mask is None:
            os.truncate(path, at)
            return
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ self.mask]))


class EveryByte(CheckpointTest):
    def assert_all_found(self, what, damages):
        """Damages COPIES steps at a time."""
        found = 0
        for begin in range(0, len(damages), COPIES):
            shutil.copytree(self.sound, self.checkpoints)
            batch = dict(zip(range(1, COPIES + 1), damages[begin:begin + COPIES]))
            for step, damage in batch.items():
                damage.do(step_folder(self.checkpoints, step))
            looks = self.look("verify", code=4)
            self.assertEqual(len(looks), COPIES)
            for step, look in looks.items():
                self.assertEqual(look["sound"], step not in batch, f"{batch[step].text if step in batch else look} (seed {SEED})")
                if step in batch:
                    self.assertIn(f"/step-{step:08}/{batch[step].name}: ", "\n".join(look["faults"]), batch[step].text)
                    found += 1
            shutil.rmtree(self.checkpoints)
        print(f"{found} of {len(damages)} {what} found (seed {SEED})")
        self.assertEqual(found, len(damages))

    def flips(self):
        """At all edges; at random, half of them in any byte of a checkpoint, and so mostly in tensors, half of them in
        headers and the index."""
        chance = random.Random(SEED)
        flips = [Damage(name, lambda path, i=i: edges(path)[i], 1 << chance.randrange(8))
                 for name in self.files for i in range(len(edges(step_folder(self.sound, 1) / name)))]
        sizes = [(step_folder(self.sound, 1) / name).stat().st_size for name in self.files]
        for number in range(FLIPS):
            share, mask = chance.random(), chance.randrange(1, 256)
            if number % 2 == 0:
                name = chance.choices(self.files, sizes)[0]
                flips.append(Damage(name, lambda path, share=share: int(share * path.stat().st_size), mask))
            else:
                name = chance.choice(self.files)
                flips.append(Damage(name, lambda path, share=share: int(share * end_of_header(path)), mask))
        return flips

    def cuts(self):
        """At all edges and in the middle; and files that are longer than they were."""
        cuts = []
        for name in self.files:
            cuts += [Damage(name, lambda path, i=i: edges(path)[i]) for i in range(len(edges(step_folder(self.sound, 1) / name)))]
            cuts += [Damage(name, lambda path: path.stat().st_size // 2), Damage(name, lambda path: path.stat().st_size + 1),
                     Damage(name, lambda path: path.stat().st_size + 4096)]
        return cuts

    def test_that_is_changed_or_cut_is_found(self):
        config = self.write_config(SAVED, {"train": {"steps": COPIES}, "checkpoint": {"interval": 1, "keep": COPIES}})
        self.run_on(config)
        self.sound = self.folder / "sound"
        self.checkpoints.rename(self.sound)
        self.files = sorted(path.name for path in step_folder(self.sound, 1).iterdir())
        self.assertEqual(self.files, ["index.json"] + [f"rank-{rank:05}.safetensors" for rank in range(4)])
        self.assertTrue(all(look["sound"] for look in self.look("verify", folder=self.sound).values()))
        for what, damages in (("cuts", self.cuts()), ("flips", self.flips())):
            with self.subTest(what=what):
                self.assert_all_found(what, damages)


if __name__ == "__main__":
    unittest.main()
