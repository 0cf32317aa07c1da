# SPDX-License-Identifier: Apache-2.0
"""No listener of our own: a run listens where any program of the same MPI does, and nowhere else."""

import pathlib
import re
import shutil
import subprocess
import unittest

from launcher import MPIRUN, LaunchTest

RANKS = 4
BARE = """\
#include <mpi.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>
int main(int argc, char** argv) {
  int provided, sum, one = 1;
  if (argc > 1) listen(socket(AF_INET, SOCK_STREAM, 0), 1);
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  printf("%d ranks\\n", sum);
  fflush(stdout);
  sleep(60);
  MPI_Finalize();
  return 0;
}
"""


def listeners(pids):
    """For each process of a program, by its name, what it listens on: sorted (name, protocol and address...), without port numbers."""
    lines = subprocess.run(["ss", "-ltunpH"], check=True, capture_output=True, text=True).stdout.splitlines()
    found = {pid: [] for pid in pids}
    for line in lines:
        protocol, _, _, _, address = line.split()[:5]
        for pid in {int(text) for text in re.findall(r"pid=(\d+)", line)} & set(pids):
            found[pid].append(f"{protocol} {address.rpartition(':')[0]}")
    return found


class Listeners(LaunchTest):
    def setUp(self):
        super().setUp()
        for tool, package in (("ss", "iproute2"), ("mpicc", "libopenmpi-dev")):
            if shutil.which(tool) is None:
                self.skipTest(f"{tool} is not installed ({package})")

    def by_role(self, program):
        """What mpirun listens on, and what each rank does."""
        pids = program.living()
        found = listeners(pids)
        is_mpirun = {pid: "mpirun" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode() for pid in pids}
        return (sorted(sorted(found[pid]) for pid in pids if is_mpirun[pid]),
                sorted(sorted(found[pid]) for pid in pids if not is_mpirun[pid]))

    def start_bare(self, *arguments):
        source = self.folder / "bare.c"
        source.write_text(BARE)
        subprocess.run(["mpicc", source, "-o", self.folder / "bare"], check=True, timeout=60)
        program = self.start_command([*MPIRUN, "-n", str(RANKS), self.folder / "bare", *arguments], self.folder / "bare")
        program.wait_until(lambda: program.output().count(f"{RANKS} ranks") == RANKS, self.START, "bare MPI program")
        return program

    def test_a_run_listens_where_a_bare_mpi_program_does(self):
        bare = self.start_bare()
        bare_mpirun, bare_ranks = self.by_role(bare)
        bare.end()
        config = self.write_config({"mesh": {"pp": 2, "dp": 2, "tp": 1}, "train": {"steps": 1000000}, "checkpoint": {"interval": 5}})
        program = self.start(["train", config], ranks=RANKS)
        self.wait_for_steps(program, 10)
        mpirun, ranks = self.by_role(program)
        program.end()
        print(f"mpirun {mpirun}, ranks {ranks}")
        self.assertEqual(len(ranks), RANKS)
        self.assertEqual(ranks, bare_ranks)
        self.assertEqual(mpirun, bare_mpirun)

        _, with_one_more = self.by_role(self.start_bare("listen"))
        self.assertEqual([len(rank) for rank in with_one_more], [len(rank) + 1 for rank in ranks], "one more would be seen")


if __name__ == "__main__":
    unittest.main()
