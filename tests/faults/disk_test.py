# SPDX-License-Identifier: Apache-2.0
"""A disk that fails: a save that cannot be written fails as a whole, on all ranks; the one before it stays, training
goes on, and the next save is tried. A folder that cannot be written in is found before training."""

import os
import pathlib
import signal
import subprocess
import unittest

from checkpoint_case import CheckpointTest, parameters, saved_run, step_folder
from launcher import BINARY, MPIRUN
from traced_rank import calls_of, calls_of_save, require_strace

TRAINING = {"mesh": {"pp": 2, "dp": 2, "tp": 1}, "model": {"layers": 2}, "train": {"steps": 12},
            "checkpoint": {"interval": 3, "keep": 5, "background": False}}
ON_TWO_RANKS = {**TRAINING, "mesh": {"dp": 2}}

# In a mount namespace of its own. The disk goes with the namespace, so what is on it at the end is copied.
ON_A_DISK = """
set -euo pipefail
size="$1" disk="$2" after="$3"
shift 3
mount -t tmpfs -o "size=$size,mode=700" tmpfs "$disk"
code=0
"$@" || code=$?
cp -a "$disk/." "$after"
exit "$code"
"""
READ_ONLY = """
set -euo pipefail
mount --bind "$1" "$1"
mount -o remount,ro,bind "$1"
shift
exec "$@"
"""

# What a file system may do with the writes of a shard: less than was asked for, or nothing; or it may not open it. It says so, once.
SHIM = r"""
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/syscall.h>
#include <unistd.h>
static bool is_shard(int fd) {
  char link[64], path[4096] = {};
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return ::readlink(link, path, sizeof path - 1) > 0 && std::strstr(path, "/rank-") != nullptr;
}
static bool does(const char* what) { return std::strcmp(std::getenv("ORTHANT_TEST_WRITES"), what) == 0; }
static void tell(const char* text) {
  if (::write(2, text, std::strlen(text)) < 0) std::abort();
}
static ssize_t some(int fd, const void* bytes, size_t count, off_t offset) {
  static bool told = false;
  if (is_shard(fd) && count > 1000) {
    if (!told && does("lost")) return told = true, tell("a write is lost\n"), static_cast<ssize_t>(count);
    if (!told && does("short")) tell("writes are short\n");
    told = true;
    if (does("short")) count = 1000;
  }
  return ::syscall(SYS_pwrite64, fd, bytes, count, offset);
}
extern "C" int mkostemp(char* name, int flags) {
  static bool told = false;
  if (told || !does("no descriptor") || std::strstr(name, "/rank-00001") == nullptr) {
    char* place = name + std::strlen(name) - 6;
    std::snprintf(place, 7, "%06d", ::getpid() % 1000000);
    return ::syscall(SYS_openat, -100, name, flags | 0302, 0600);
  }
  return told = true, tell("no descriptor is left\n"), errno = EMFILE, -1;
}
extern "C" ssize_t pwrite(int fd, const void* bytes, size_t count, off_t offset) { return some(fd, bytes, count, offset); }
extern "C" ssize_t pwrite64(int fd, const void* bytes, size_t count, off_t offset) { return some(fd, bytes, count, offset); }
"""


def require_root():
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
        raise unittest.SkipTest("only root can mount file systems in a namespace of its own")


def bytes_on_disk(folder):
    return sum(path.lstat().st_blocks * 512 for path in [folder, *folder.rglob("*")])


def failed_saves(done):
    return [line for line in done.lines if line.startswith("the checkpoint of step ") and " failed (" in line]


class Full(CheckpointTest):
    """A disk with room for one checkpoint and a half."""

    def setUp(self):
        super().setUp()
        require_root()
        self.disk, self.after = self.folder / "disk", self.folder / "after"
        self.disk.mkdir(), self.after.mkdir()

    def start_on_disk(self, *changes):
        config = self.write_config({"mesh": TRAINING["mesh"], "checkpoint": {"dir": str(self.disk), "interval": 3}}, *changes)
        size = int(1.5 * bytes_on_disk(step_folder(saved_run(), 4)))
        return self.start_command(["unshare", "-m", "bash", "-c", ON_A_DISK, "bash", str(size), self.disk, self.after,
                                   *MPIRUN, "-n", "4", BINARY, "train", config])

    def assert_the_first_alone_is_there(self, done):
        failures = failed_saves(done)
        self.assertEqual(len(failures), 2, done.output)
        for line, step in zip(failures, (6, 9)):
            self.assertEqual(line, f"the checkpoint of step {step} failed (write); that of step 3 stays:")
        self.assertRegex(done.output.replace("\r", ""), r"(?m)^  rank [0-3]: .*: No space left on device; make room or choose another folder$")
        looks = self.look("verify", folder=self.after)
        self.assertEqual([(step, look["sound"]) for step, look in looks.items()], [(3, True)])
        self.assertEqual(sorted(path.name for path in self.after.iterdir()), ["goodput.jsonl", "latest", "lock", "step-00000003"])

    def test_training_goes_on_without_the_saves_that_do_not_fit(self):
        done = self.start_on_disk({"train": {"steps": 9}}).wait(90)
        self.assertEqual(done.code, 4, done.output)  # trained to the end, but its last state is not on disk
        self.assertIn("orthant: error: the checkpoint of the last step, 9, could not be written", done.lines)
        self.assert_the_first_alone_is_there(done)
        self.assertEqual([line["step"] for line in self.metrics()], list(range(1, 10)))

    def test_too_many_failures_in_a_row_end_the_run(self):
        done = self.start_on_disk({"train": {"steps": 1000}, "checkpoint": {"max_failures": 2}}).wait(90)
        self.assertEqual(done.code, 4, done.output)
        self.assert_the_first_alone_is_there(done)
        self.assertEqual(len(done.messages()), 1, done.output)
        self.assertIn("2 failures in a row are too many (checkpoint.max_failures)", done.output)

    def test_when_there_is_room_again_it_is_saved_again(self):
        program = self.start_on_disk({"train": {"steps": 100000}, "checkpoint": {"max_failures": 100000}})
        program.wait_until(lambda: program.output().count(" failed (write)") >= 2, self.START, "failed saves")
        mpirun = next(pid for pid in program.living() if pathlib.Path(f"/proc/{pid}/comm").read_text() == "mpirun\n")
        subprocess.run(["nsenter", "-t", str(mpirun), "-m", "mount", "-o", "remount,size=64m", self.disk], check=True)
        seen = len(program.output())
        program.wait_until(lambda: "\ncheckpoint of step " in program.output()[seen:].replace("\r", ""), self.START, "checkpoint")
        os.kill(mpirun, signal.SIGUSR1)
        done = program.wait(30)
        self.assertEqual(done.code, 75, done.output)
        looks = self.look("verify", folder=self.after)
        self.assertTrue(all(look["sound"] for look in looks.values()))
        self.assertEqual(max(looks), self.metrics()[-1]["step"])


class Faulty(CheckpointTest):
    """One rank's disk. Whatever happens, the numbers are those of a run without a fault."""

    sound = {}  # by rank that was traced: numbers and state of a run without a fault, and its fsync() calls in the save of step 6

    def setUp(self):
        super().setUp()
        require_strace()

    def run_traced(self, rank, *options, code=0, changes=None):
        config = self.write_config(TRAINING, changes or {})
        self.log = self.folder / "strace"
        done = self.trace(rank, self.log, ["train", config], *options)
        self.assertEqual(done.code, code, done.output)
        self.assertEqual("(INJECTED)" in self.log.read_text(), any("error=" in option for option in options))
        return done

    def sound_run(self, rank):
        if rank not in self.sound:
            self.run_traced(rank)
            flushes = [call for call in calls_of_save(calls_of(self.log), 6, 9) if call.name == "fsync"]
            self.sound[rank] = self.steps_of_all_starts(), parameters(self.checkpoints, 12), flushes
        return self.sound[rank]

    def flushes(self, rank):
        return self.sound_run(rank)[2]

    def assert_ended_well(self, steps):
        self.assertEqual(self.assert_all_sound(), steps)
        self.assert_nothing_unfinished()
        found = self.steps_of_all_starts(), parameters(self.checkpoints, 12)
        self.assertEqual(found, self.sound_run(rank=0)[:2])

    def test_a_flush_that_fails_before_the_commit_fails_the_save(self):
        for rank in (0, 1):
            flushes = self.flushes(rank)
            shard_or_index = [call for call in flushes if call.names[0].startswith(("rank-", "index"))]
            self.assertEqual(len(shard_or_index), 2 if rank == 0 else 1, flushes)
            for call in shard_or_index:
                with self.subTest(rank=rank, call=str(call)):
                    done = self.run_traced(rank, f"--inject=fsync:error=EIO:when={call.number}")
                    phase = "write" if call.names[0].startswith("rank-") else "commit"
                    self.assertEqual(failed_saves(done), [f"the checkpoint of step 6 failed ({phase}); that of step 3 stays:"])
                    self.assertRegex(done.output.replace("\r", ""), rf"(?m)^  rank {rank}: .*/(rank-0000{rank}\.safetensors|index\.json): "
                                                                    r"cannot flush it: Input/output error$")
                    self.assert_ended_well([3, 9, 12])

    def test_what_cannot_be_written_in_latest_fails_no_save(self):
        call = next(call for call in self.flushes(0) if call.names[0].startswith("latest"))
        done = self.run_traced(0, f"--inject=fsync:error=EIO:when={call.number}")
        self.assert_ended_well([3, 6, 9, 12])
        self.assertEqual(failed_saves(done), [])

    def test_a_disk_that_never_flushes_again_ends_the_run(self):
        first = self.flushes(1)[0]
        done = self.run_traced(1, f"--inject=fsync:error=EIO:when={first.number}+", code=4, changes={"train": {"steps": 100}})
        self.assertEqual(len(failed_saves(done)), 3, done.output)
        self.assertEqual(len(done.messages()), 1, done.output)
        self.assertIn("3 failures in a row are too many (checkpoint.max_failures)", done.output)
        self.assertEqual(self.assert_all_sound(), [3])

    def test_a_disk_that_does_not_flush_is_found_before_training(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                done = self.run_traced(rank, "--inject=fsync:error=EIO:when=1", code=4)
                self.assertEqual(len(done.messages()), 1, done.output)
                what = r"/checkpoints/probe-\S+" if rank else str(self.folder)  # where rank 0 has made a folder
                self.assertRegex(done.messages()[0], rf"{what}: cannot flush it: Input/output error$")
                self.assertEqual(self.metrics(), [])

    def test_a_flush_that_does_not_return_ends_the_run_as_a_hang(self):
        call = next(call for call in self.flushes(1) if call.names[0].startswith("rank-"))
        done = self.run_traced(1, f"--inject=fsync:delay_enter=600s:when={call.number}", code=6, changes={"comm": {"timeout_s": 6}})
        verdict, = [line for line in done.messages() if line.startswith("orthant: hang: ")]
        self.assertIn("phase save, step 6", verdict)
        self.assertEqual(self.assert_all_sound(), [3])

    def test_interrupted_writes_are_done_again(self):
        self.run_traced(1, "--inject=pwrite64:error=EINTR:when=1+2")
        self.assertGreater(self.log.read_text().count("EINTR"), 20)
        self.assert_ended_well([3, 6, 9, 12])


class Writes(CheckpointTest):
    """pwrite() that does less than it is asked for, in all ranks."""

    def run_with(self, kind, config):
        library = self.folder / "writes.so"
        subprocess.run(["c++", "-shared", "-fPIC", "-O1", "-x", "c++", "-", "-o", library], input=SHIM.encode(), check=True)
        done = self.start_command([*MPIRUN, "-n", "4", "-x", f"LD_PRELOAD={library}", "-x", f"ORTHANT_TEST_WRITES={kind}",
                                   BINARY, "train", config]).wait(90)
        self.assertEqual(done.code, 0, done.output)
        return done

    def test_short_ones_are_finished(self):
        self.run_on(self.write_config(TRAINING))
        wanted = parameters(self.checkpoints, 12)
        done = self.run_with("short", self.write_config(TRAINING))
        self.assertEqual(done.output.count("writes are short"), 4, done.output)
        self.assertEqual(self.assert_all_sound(), [3, 6, 9, 12])
        self.assertEqual(parameters(self.checkpoints, 12), wanted)

    def test_one_that_the_disk_lost_is_found(self):
        config = self.write_config(TRAINING, {"train": {"steps": 4}})
        done = self.run_with("lost", config)
        self.assertEqual(done.output.count("a write is lost"), 4, done.output)
        looks = self.look("verify", code=4)
        self.assertEqual([step for step, look in looks.items() if not look["sound"]], [3])
        for rank in range(4):
            self.assertIn(f"/rank-{rank:05}.safetensors: ", "\n".join(looks[3]["faults"]))


    def test_one_that_cannot_be_opened_fails_the_save_and_not_the_run(self):
        done = self.run_with("no descriptor", self.write_config(TRAINING))
        self.assertEqual(done.output.count("no descriptor is left"), 1, done.output)
        self.assertEqual(failed_saves(done), ["the checkpoint of step 3 failed (write); what was there before stays:"])
        self.assertRegex(done.output.replace("\r", ""), r"(?m)^  rank 1: .*/rank-00001\.safetensors: cannot create it: Too many open files$")
        self.assertEqual(self.assert_all_sound(), [6, 9, 12])


class Limit(CheckpointTest):
    def test_a_file_size_limit_fails_the_save_and_not_the_run(self):
        config = self.write_config(TRAINING)
        done = self.start_command([*MPIRUN, "--mca", "btl", "self,tcp", "-n", "4", "prlimit", "--fsize=40000", BINARY, "train", config]).wait(90)
        self.assertEqual(done.code, 4, done.output)
        self.assertRegex(done.output, r"rank [0-3]: .*/rank-0000[0-3]\.safetensors: cannot write it: File too large")


class Unwritable(CheckpointTest):
    """Found before training, told once, within seconds."""

    SECONDS = 20  # 2 on a machine with nothing else to do

    def refuse(self, command, code, text):
        done = self.start_command(command).wait(60)
        self.assertEqual(done.code, code, done.output)
        self.assertEqual(len(done.messages()), 1, done.output)
        self.assertRegex(done.messages()[0], text)
        self.assertNotIn("  loss ", done.output)
        self.assertLess(done.seconds, self.SECONDS, done.output)

    def command(self, config, *arguments):
        return [*MPIRUN, "-n", "2", BINARY, "train", config, *arguments]

    def read_only(self, path, command):
        require_root()
        path.mkdir(exist_ok=True, parents=True)
        return ["unshare", "-m", "bash", "-c", READ_ONLY, "bash", path, *command]

    def test_checkpoint_dir_on_a_read_only_disk(self):
        config = self.write_config(ON_TWO_RANKS)
        self.refuse(self.read_only(self.checkpoints, self.command(config)), 4, r"checkpoints/probe-\S+: cannot create it: Read-only file system")

    def test_run_dir_on_a_read_only_disk(self):
        for place in ("", "inside"):
            with self.subTest(place=place):
                config = self.write_config(ON_TWO_RANKS)
                there = self.command(config, f"--set=checkpoint.dir={self.folder / 'checkpoints'}", f"--set=run.dir={self.runs / place}")
                self.refuse(self.read_only(self.runs, there), 2, r"run\.dir: cannot make '.*': Read-only file system")
        self.refuse(self.read_only(self.runs, self.command(config)), 4, r"/checkpoints: cannot make it: Read-only file system")

    def test_a_file_in_its_place(self):
        config = self.write_config(ON_TWO_RANKS)
        (self.folder / "file").write_text("")
        for name in ("file", "file/below"):
            self.refuse(self.command(config, f"--set=checkpoint.dir={self.folder / name}"), 4, rf"/{name}: cannot (use|make) it: Not a directory")
            self.refuse(self.command(config, f"--set=run.dir={self.folder / name}", f"--set=checkpoint.dir={self.folder / 'checkpoints'}"),
                        2, rf"run\.dir: cannot make '.*/{name}(/\d+)?': Not a directory")

    def test_parents_are_made(self):
        config = self.write_config(ON_TWO_RANKS, {"train": {"steps": 1}})
        self.run_on(config, f"--set=checkpoint.dir={self.folder / 'a/b/c'}", ranks=2)
        self.assertEqual(list(self.look("verify", folder=self.folder / "a/b/c")), [1])


if __name__ == "__main__":
    unittest.main()
