# SPDX-License-Identifier: Apache-2.0
"""What the process tests share: a data set of synthetic text, small configs, and the orthant program under mpirun.

ORTHANT_BINARY is the program to test (default: build/orthant).
"""

import contextlib
import functools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("ORTHANT_BINARY", str(ROOT / "build" / "orthant"))
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
MPIRUN_SH = ["bash", str(ROOT / "launch" / "mpirun.sh")]
VOCAB = 283  # odd, so that a vocabulary split over tensor ranks is padded
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# Legal for every mesh with pp, dp, tp in {1, 2, 4, 8} and pp * dp * tp <= 8, and for dp = 3.
TINY = {
    "model": {"layers": 8, "hidden": 32, "heads": 8, "kv_heads": 8, "ffn": 40},
    "train": {"steps": 3, "global_batch": 24, "micro_batch": 1, "seq_len": 16, "log_every": 1},
    "trace": {"steps": 0},
}


@functools.cache
def data_set():
    """A folder made by 'orthant data prepare', shared by the tests of one process."""
    folder = tempfile.TemporaryDirectory(prefix="orthant-data-")
    unittest.addModuleCleanup(_forget, folder)
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnop", k=chance.randint(2, 6))) for _ in range(300)]
    path = pathlib.Path(folder.name)
    (path / "text.txt").write_text("\n".join(" ".join(chance.choices(words, k=12)) for _ in range(1500)), "utf-8")
    subprocess.run([BINARY, "data", "prepare", path / "text.txt", "--output", path, "--vocab-size", str(VOCAB)],
                   check=True, timeout=60, stdout=subprocess.DEVNULL)
    return path


def _forget(folder):
    folder.cleanup()
    data_set.cache_clear()


def toml(tables):
    """Tables of plain values; JSON's scalars and arrays are TOML's."""
    lines = []
    for table, entries in tables.items():
        lines += [f"[{table}]"] + [f"{key} = {json.dumps(value)}" for key, value in entries.items()]
    return "\n".join(lines) + "\n"


class Finished:
    def __init__(self, code, output, seconds):
        self.code, self.output, self.seconds = code, output, seconds
        self.lines = output.replace("\r", "").splitlines()

    def messages(self):
        """What orthant itself said was wrong, without mpirun's remarks."""
        return [line for line in self.lines if line.startswith("orthant: ")]


class Program:
    """A started program, with all processes that bear `mark` (a path that only this test's command lines hold)."""

    def __init__(self, command, mark, stdin=subprocess.DEVNULL, **options):
        self.mark = str(mark)
        self.started = time.monotonic()
        self._output = tempfile.TemporaryFile()  # a pipe would stay open as long as any rank lives
        self.process = subprocess.Popen([str(part) for part in command], stdin=stdin, env=ENVIRONMENT, cwd=ROOT,
                                        stdout=options.pop("stdout", self._output), stderr=subprocess.STDOUT, **options)

    def living(self):
        """Process ids of mpirun and the ranks."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                command = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if int(entry.name) != os.getpid() and state != "Z" and any(self.mark.encode() in part for part in command):
                    found.append(int(entry.name))
        return found

    def output(self):
        self._output.seek(0)
        return self._output.read().decode("utf-8", "replace")

    def wait(self, timeout):
        """Raises subprocess.TimeoutExpired, with what was printed, if it takes longer."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.output()}") from None
        return Finished(code, self.output(), time.monotonic() - self.started)

    def wait_until(self, condition, timeout, what):
        end = time.monotonic() + timeout
        while not condition():
            if self.process.poll() is not None and not condition():
                raise AssertionError(f"ended with {self.process.returncode} before {what}:\n{self.output()}")
            if time.monotonic() > end:
                raise AssertionError(f"no {what} after {timeout} s:\n{self.output()}")
            time.sleep(0.02)

    def end(self):
        """Leaves nothing running, however the test went."""
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._output.close()


class LaunchTest(unittest.TestCase):
    """A test with a temporary folder, a config writer and the program."""

    ATTEMPTS = 1  # of a measurement, while the machine is busy
    START = 60  # seconds for mpirun and the ranks to begin training, on a busy machine

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="orthant-test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.configs = 0

    def write_config(self, *changes):
        """TINY with tables of changes laid over it; returns the file's path. Its runs go to a new folder, `self.runs`."""
        self.configs += 1
        self.runs = self.folder / f"runs{self.configs}"
        tables = {table: dict(entries) for table, entries in TINY.items()}
        tables["data"] = {"train": str(data_set() / "train.tokens")}
        tables["run"] = {"dir": str(self.runs)}
        for change in changes:
            for table, entries in change.items():
                tables.setdefault(table, {}).update(entries)
        path = self.folder / f"config{self.configs}.toml"
        path.write_text(toml(tables))
        return path

    def start(self, arguments, ranks=None, launcher=MPIRUN, **options):
        """'orthant ARGUMENTS' under mpirun, or plainly if `ranks` is None."""
        command = [BINARY, *arguments] if ranks is None else [*launcher, "-n", ranks, BINARY, *arguments]
        return self.start_command(command, **options)

    def start_command(self, command, mark=None, **options):
        program = Program(command, mark or self.folder, **options)
        self.addCleanup(program.end)
        return program

    def orthant(self, *arguments, ranks=None, timeout=90):
        return self.start(arguments, ranks).wait(timeout)

    def train(self, config, mesh=(1, 1, 1), *arguments):
        """A run that must end well; returns the step lines of its metrics."""
        shape = dict(zip(("pp", "dp", "tp"), mesh))
        ranks = shape["pp"] * shape["dp"] * shape["tp"]
        sets = [f"--set=mesh.{axis}={size}" for axis, size in shape.items()]
        done = self.orthant("train", config, *sets, *arguments, ranks=ranks if ranks > 1 else None)
        self.assertEqual(done.code, 0, done.output)
        return self.metrics()

    def run_bench(self, name, *arguments, ranks=2):
        """orthant bench NAME on processes, or on threads without `ranks`."""
        command = [*MPIRUN, "-n", str(ranks)] if ranks else []
        return subprocess.run([*command, BINARY, "bench", name, *arguments], cwd=ROOT, env=ENVIRONMENT,
                              capture_output=True, text=True, timeout=300)

    def bench_result(self, name, *arguments, ranks=2):
        """What it prints as JSON, whose "busy" says that what was measured cannot be trusted."""
        done = self.run_bench(name, "--json", "--attempts", str(self.ATTEMPTS), *arguments, ranks=ranks)
        busy = "machine busy" in done.stderr
        self.assertEqual(done.returncode == 0, not busy, done.stderr)
        result = json.loads(done.stdout)
        self.assertEqual(result["busy"], busy)
        return result

    def run_folder(self):
        """The newest run's folder, or None."""
        return max(self.runs.glob("[0-9]" * 4), default=None)

    def metrics(self):
        """The newest run's steps so far."""
        folder = self.run_folder()
        path = folder / "metrics.jsonl" if folder else None
        lines = path.read_text().splitlines() if path and path.exists() else []
        return [line for line in map(json.loads, lines) if "loss" in line]

    def wait_for_steps(self, program, count):
        def reached():
            with contextlib.suppress(json.JSONDecodeError):  # a line that is being written
                return len(self.metrics()) >= count
        program.wait_until(reached, self.START, f"step {count}")

    def assert_gone(self, program, since, within):
        """All processes of the program are gone not later than `within` seconds after `since`."""
        while program.living() and time.monotonic() < since + within:
            time.sleep(0.02)
        self.assertEqual(program.living(), [], f"processes left {within} s later:\n{program.output()}")

    def assert_no_fragments(self):
        """No file that was half-written is left anywhere."""
        self.assertEqual([path for path in self.folder.rglob("*.tmp-*")], [])


SKIPPED = 77  # ctest's SKIP_RETURN_CODE


def main():
    """python launcher.py MODULE[.CLASS]: runs its tests. A failure outweighs what was skipped."""
    result = unittest.main(module=None, argv=sys.argv, verbosity=2, exit=False).result
    sys.exit(1 if not result.wasSuccessful() else SKIPPED if result.skipped else 0)


if __name__ == "__main__":
    main()
