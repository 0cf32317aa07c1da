# SPDX-License-Identifier: Apache-2.0
"""The same losses on every mesh, by the script that people use, too."""

import os
import stat
import subprocess
import unittest

from launcher import BINARY, ENVIRONMENT, ROOT, LaunchTest

# Stands in for orthant: writes metrics as it does, with a last loss that is $DRIFT millionths too high unless dp = 1, and fails if dp = 3.
STUB = """\
#!/usr/bin/env bash
for argument in "$@"; do
  case "$argument" in
    run.dir=*) folder="${argument#run.dir=}/0001" ;;
    mesh.dp=*) dp="${argument#mesh.dp=}" ;;
  esac
done
[[ "${OMPI_COMM_WORLD_RANK:-0}" == 0 ]] || exit 0
mkdir -p "$folder"
for step in 1 2 3; do printf '{"step":%d,"loss":5.0000%02d,"grad_norm":1}\\n' $step $((step == 3 && dp > 1 ? DRIFT : 0)); done > "$folder/metrics.jsonl"
exit $((dp == 3))
"""


class Meshes(LaunchTest):
    def compare(self, config, *meshes, binary=BINARY, drift=0):
        done = subprocess.run(["bash", ROOT / "tests/launch/meshes.sh", config, *meshes], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env={**ENVIRONMENT, "ORTHANT_BINARY": str(binary), "DRIFT": str(drift)}, text=True, timeout=600)
        return done.returncode, [line for line in done.stdout.splitlines() if line.startswith("pp")], done.stdout

    def test_all_meshes_of_up_to_eight_ranks_train_alike(self):
        config = self.write_config({"pipeline": {"schedule": "zb_h1"}, "data": {"shuffle": True}})
        code, rows, output = self.compare(config)
        self.assertEqual(code, 0, output)
        self.assertEqual(len(rows), 21, output)

    def test_the_script_sees_a_loss_that_differs_and_a_run_that_fails(self):
        stub = self.folder / "stub"
        stub.write_text(STUB)
        os.chmod(stub, stat.S_IRWXU)
        for meshes, drift, wanted in [(["1,1,1", "1,2,1"], 9, 0), (["1,1,1", "1,2,1"], 20, 1), (["1,1,1", "1,3,1"], 0, 1)]:
            with self.subTest(meshes=meshes, drift=drift):
                code, rows, output = self.compare(self.folder / "none.toml", *meshes, binary=stub, drift=drift)
                self.assertEqual(code, wanted, output)
                self.assertEqual(len(rows), 2, output)


if __name__ == "__main__":
    unittest.main()
