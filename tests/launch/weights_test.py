# SPDX-License-Identifier: Apache-2.0
"""Weights go out of one mesh and into any other, under Hugging Face's names for Llama; a file that does not fit is refused."""

import unittest

import numpy as np
import safetensors.numpy

from launcher import TINY, VOCAB, LaunchTest

GROUPED = {"kv_heads": 4}  # fewer than heads


def llama_shapes(model, tied):
    hidden, ffn, head_dim = model["hidden"], model["ffn"], model["hidden"] // model["heads"]
    shapes = {"model.embed_tokens.weight": (VOCAB, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, hidden)
    for layer in range(model["layers"]):
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in {
            "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
            "self_attn.q_proj": (model["heads"] * head_dim, hidden), "self_attn.k_proj": (model["kv_heads"] * head_dim, hidden),
            "self_attn.v_proj": (model["kv_heads"] * head_dim, hidden), "self_attn.o_proj": (hidden, model["heads"] * head_dim),
            "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden), "mlp.down_proj": (hidden, ffn)}.items()}
    return shapes


class Weights(LaunchTest):
    def test_weights_of_one_mesh_start_any_other_alike(self):
        for tied in (False, True):
            with self.subTest(tied=tied):
                config = self.write_config({"model": {**GROUPED, "tie_embeddings": tied}, "optimizer": {"lr": 0.01}})
                saved = self.folder / "saved.safetensors"
                trained = self.train(config, (2, 2, 2), "--save-weights", saved)
                weights = safetensors.numpy.load_file(saved)
                shapes = llama_shapes({**TINY["model"], **GROUPED}, tied)
                self.assertEqual({name: tensor.shape for name, tensor in weights.items()}, shapes)
                self.assertEqual({tensor.dtype for tensor in weights.values()}, {np.dtype("float32")})

                again = self.folder / "again.safetensors"
                load = ("--load-weights", saved, "--set=train.steps=1", "--save-weights", again)
                losses = [self.train(config, mesh, *load)[0]["loss"] for mesh in ((1, 1, 1), (4, 1, 2))]
                self.assertLess(losses[0], trained[0]["loss"] - 0.1, "three steps have taught it something")
                self.assertAlmostEqual(losses[0], losses[1], delta=1e-6 * losses[0])
                self.assertFalse(np.array_equal(safetensors.numpy.load_file(again)["model.norm.weight"], weights["model.norm.weight"]))

    def test_loaded_weights_are_saved_bit_equal(self):
        config = self.write_config({"model": GROUPED, "train": {"steps": 0}})
        saved, again = self.folder / "saved.safetensors", self.folder / "again.safetensors"
        self.train(config, (1, 1, 1), "--set=train.seed=5", "--save-weights", saved)
        self.train(config, (2, 2, 2), "--set=train.seed=6", "--load-weights", saved, "--save-weights", again)
        before, after = safetensors.numpy.load_file(saved), safetensors.numpy.load_file(again)
        for name, tensor in before.items():
            np.testing.assert_array_equal(tensor, after[name], name)


class BadWeights(LaunchTest):
    def setUp(self):
        super().setUp()
        self.config = self.write_config({"model": {"layers": 2}, "train": {"steps": 0}})
        self.good = self.folder / "good.safetensors"
        self.train(self.config, (1, 1, 1), "--save-weights", self.good)

    def assert_refused(self, path, wanted, ranks=None):
        kept = self.folder / "kept.safetensors"
        kept.write_bytes(b"what was there before")
        runs = sorted(self.runs.iterdir())
        done = self.orthant("train", self.config, "--set=mesh.dp=0", "--load-weights", path, "--save-weights", kept, ranks=ranks)
        self.assertEqual(done.code, 4, done.output)
        self.assertIn(wanted, done.output)
        self.assertIn(str(path), done.output)
        self.assertEqual(kept.read_bytes(), b"what was there before")
        self.assertEqual(sorted(self.runs.iterdir()), runs, "a run that cannot start makes no folder")
        self.assert_no_fragments()

    def changed(self, change):
        weights = safetensors.numpy.load_file(self.good)
        change(weights)
        path = self.folder / "changed.safetensors"
        safetensors.numpy.save_file(weights, path)
        return path

    def test_a_missing_tensor_is_named(self):
        name = "model.layers.1.mlp.up_proj.weight"
        path = self.changed(lambda weights: weights.pop(name))
        for ranks in (None, 2):
            with self.subTest(ranks=ranks):
                self.assert_refused(path, f"{name} is missing", ranks)

    def test_a_tensor_of_another_shape_is_named(self):
        name = "model.layers.0.self_attn.q_proj.weight"
        path = self.changed(lambda weights: weights.update({name: np.zeros((16, 32), np.float32)}))
        self.assert_refused(path, f"{name} has shape [16, 32], the model wants [32, 32]")

    def test_a_tensor_of_another_type_is_named(self):
        name = "model.norm.weight"
        self.assert_refused(self.changed(lambda weights: weights.update({name: np.ones(32, np.int32)})), f"{name} has type I32")

    def test_a_tensor_too_many_is_named(self):
        name = "model.layers.2.mlp.up_proj.weight"
        path = self.changed(lambda weights: weights.update({name: np.zeros((40, 32), np.float32)}))
        self.assert_refused(path, f"{name} is not a parameter of the model")

    def test_a_damaged_file_is_refused(self):
        content = self.good.read_bytes()
        path = self.folder / "damaged.safetensors"
        for name, damaged in {"cut short": content[:-8], "only a length": content[:8], "header": content[:30] + b"\xff" + content[31:],
                              "empty": b""}.items():
            with self.subTest(name):
                path.write_bytes(damaged)
                self.assert_refused(path, "damaged.safetensors")

    def test_a_file_that_is_not_there_is_refused(self):
        self.assert_refused(self.folder / "absent.safetensors", "absent.safetensors")


if __name__ == "__main__":
    unittest.main()
