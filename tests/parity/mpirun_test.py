# SPDX-License-Identifier: Apache-2.0
"""Parity as real processes: under mpirun, three meshes train like one rank (the whole matrix runs with ranks as threads)."""

import unittest

import numpy as np
import safetensors.numpy

from launcher import LaunchTest

TOLERANCE = {"fp32": (1e-5, 1e-5), "fp64": (1e-11, 1e-10)}  # gradients of step 1; losses, norms and weights over all steps
STEPS = 20


class Mpirun(LaunchTest):
    def trajectory(self, config, mesh):
        files = {what: self.folder / f"{what}.safetensors" for what in ("initial", "gradients", "final")}
        self.train(config, mesh, "--set=train.steps=0", "--save-weights", files["initial"])
        metrics = self.train(config, mesh, "--save-gradients", files["gradients"], "--save-weights", files["final"])
        return metrics, {what: safetensors.numpy.load_file(path) for what, path in files.items()}

    def assert_close(self, got, want, tolerance):
        self.assertEqual(got.keys(), want.keys())
        for name, tensor in want.items():
            difference = np.linalg.norm((got[name] - tensor).astype(np.float64)) / np.linalg.norm(tensor.astype(np.float64))
            self.assertLessEqual(difference, tolerance, name)

    def test_processes_train_like_one_rank(self):
        for precision, (gradient, later) in TOLERANCE.items():
            config = self.write_config({"train": {"steps": STEPS, "precision": precision}, "pipeline": {"schedule": "zb_h1"}})
            steps, tensors = self.trajectory(config, (1, 1, 1))
            self.assertEqual(len(steps), STEPS)
            for mesh in ((2, 2, 2), (1, 4, 1), (4, 1, 2)):
                with self.subTest(precision=precision, mesh=mesh):
                    other_steps, others = self.trajectory(config, mesh)
                    self.assert_close(others["initial"], tensors["initial"], 0.0)
                    self.assert_close(others["gradients"], tensors["gradients"], gradient)
                    self.assert_close(others["final"], tensors["final"], later)
                    for a, b in zip(other_steps, steps, strict=True):
                        for key in ("loss", "grad_norm"):
                            self.assertAlmostEqual(a[key], b[key], delta=later * b[key], msg=f"{key} of step {b['step']}")


if __name__ == "__main__":
    unittest.main()
