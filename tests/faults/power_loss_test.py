# SPDX-License-Identifier: Apache-2.0
"""A loss of power at any moment: a disk has for certain only what was flushed, and may have more. The system calls of a run are replayed on
such a disk; after each of them at least one checkpoint must be there for certain, and none that may be there may be less than whole."""

import os
import re
import unittest

from checkpoint_case import CheckpointTest
from launcher import BINARY, MPIRUN
from traced_rank import CALLS, require_strace

RANKS = 4
TRAINING = {"mesh": {"pp": 2, "dp": 2, "tp": 1}, "model": {"layers": 2}, "train": {"steps": 12},
            "checkpoint": {"interval": 3, "keep": 1, "background": False}}
PATH = r'"([^"]*)"'


class File:
    def __init__(self):
        self.is_flushed = True  # it has no bytes


class Folder:
    def __init__(self):
        self.names = {}    # as programs see it
        self.certain = {}  # as after the last flush

    def may_be(self, name):
        """All that a name can stand for after the loss."""
        return [entry for entry in {id(e): e for e in (self.names.get(name), self.certain.get(name))}.values() if entry]

    def is_certain(self, name):
        return name in self.certain and self.names.get(name) is self.certain[name]


class Disk:
    """What is below `root`, which is there for certain."""

    def __init__(self, root):
        self.root, self.top = str(root), Folder()

    def holds(self, path):
        return path.startswith(self.root + "/") or path == self.root

    def parts(self, path):
        return [part for part in path.removeprefix(self.root).split("/") if part]

    def find(self, path):
        entry = self.top
        for part in self.parts(path):
            entry = entry.names[part]
        return entry

    def parent(self, path):
        folder, _, name = path.rpartition("/")
        return self.find(folder).names, name

    def certain(self, path):
        """The folder there, if all that leads to it has been flushed."""
        entry = self.top
        for part in self.parts(path):
            if not entry.is_certain(part):
                return None
            entry = entry.certain[part]
        return entry

    def make(self, path, entry):
        names, name = self.parent(path)
        names.setdefault(name, entry)

    def remove(self, path):
        names, name = self.parent(path)
        del names[name]

    def rename(self, source, target, exchanges=False):
        (from_names, old), (to_names, new) = self.parent(source), self.parent(target)
        if exchanges:
            from_names[old], to_names[new] = to_names[new], from_names[old]
        else:
            to_names[new] = from_names.pop(old)

    def write(self, path):
        self.find(path).is_flushed = False

    def flush(self, path):
        entry = self.find(path)
        if isinstance(entry, Folder):
            entry.certain = dict(entry.names)
        else:
            entry.is_flushed = True


def completed_calls(log):
    """(name, arguments) of the calls of all processes that did not fail, in the order in which they ended."""
    begun = {}
    for line in log.read_text("utf-8", "replace").splitlines():
        process, _, rest = line.partition(" ")
        rest = rest.strip()
        if rest.endswith("<unfinished ...>"):
            begun[process] = rest.removesuffix("<unfinished ...>")
            continue
        resumed = re.match(r"<\.\.\. \w+ resumed>(.*)$", rest)
        if resumed:
            rest = begun.pop(process) + resumed[1]
        call = re.match(r"(\w+)\((.*)\)\s+= (\d+)", rest)
        if call:
            yield call[1], call[2]


def replay(disk, name, arguments):
    """True if the call concerned the disk."""
    of_descriptor = re.match(r"[\w-]+<([^>]*)>", arguments)  # of a file, or of the folder that a name is in
    path = of_descriptor[1] if of_descriptor else ""
    if name not in ("pwrite64", "ftruncate", "fsync"):
        path = os.path.join(path, re.search(PATH, arguments)[1])
    if not disk.holds(path):
        return False
    if name == "mkdir":
        disk.make(path, Folder())
    elif name == "openat":
        if "O_CREAT" in arguments:
            disk.make(path, File())
    elif name in ("pwrite64", "ftruncate"):
        disk.write(path)
    elif name == "fsync":
        disk.flush(path)
    elif name in ("rename", "renameat", "renameat2"):
        disk.rename(*re.findall(PATH, arguments), exchanges="RENAME_EXCHANGE" in arguments)
    else:
        disk.remove(path)
    return True


def is_whole(folder):
    """Whatever of it may be lost, all of it is there."""
    wanted = {"index.json", *(f"rank-{rank:05}.safetensors" for rank in range(RANKS))}
    return all(folder.is_certain(name) and folder.certain[name].is_flushed for name in wanted)


class PowerLoss(CheckpointTest):
    def traced_run(self, config):
        log = self.folder / "calls"
        done = self.start_command(["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-o", log, f"--trace=openat,{','.join(CALLS)}",
                                   *MPIRUN, "-n", str(RANKS), BINARY, "train", config]).wait(120)
        self.assertEqual(done.code, 0, done.output)
        return log

    def follow(self, disk, log):
        """Steps of the newest checkpoint that was there for certain, in order."""
        steps = []
        for name, arguments in completed_calls(log):
            if not replay(disk, name, arguments):
                continue
            folder = disk.certain(str(self.checkpoints)) or Folder()
            committed = [known for known in folder.names | folder.certain if re.fullmatch(r"step-\d{8}", known)]
            for known in committed:
                for entry in folder.may_be(known):
                    self.assertTrue(is_whole(entry), f"{known} after {name}({arguments})")
            certain = [int(known[5:]) for known in committed if folder.is_certain(known)]
            self.assertTrue(certain or not steps, f"no checkpoint after {name}({arguments})")
            if certain and [max(certain)] != steps[-1:]:
                steps.append(max(certain))
        return steps

    def test_leaves_one_checkpoint_or_the_next(self):
        require_strace()
        config = self.write_config(TRAINING)
        disk = Disk(self.folder)
        disk.make(str(self.folder / config.name), File())
        self.assertEqual(self.follow(disk, self.traced_run(config)), [3, 6, 9, 12])


if __name__ == "__main__":
    unittest.main()
