# SPDX-License-Identifier: Apache-2.0
"""Gradients and losses against plain PyTorch, which runs here: a Llama written down as its definition, on the weights that orthant
starts from and on the very tokens of its file."""

import unittest

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F

from launcher import LaunchTest, data_set

MODEL = {"layers": 4, "hidden": 48, "heads": 6, "kv_heads": 2, "ffn": 72, "rope_theta": 10000.0, "norm_eps": 1e-5}
SEQ, BATCH, STEPS, LR = 16, 6, 20, 1e-3
MESHES = ((1, 1, 1), (2, 2, 2))


def sequences(step):
    """Inputs and targets [BATCH, SEQ] of a step: sequence n is tokens n * SEQ to (n + 1) * SEQ, the last one a target only."""
    tokens = np.fromfile(data_set() / "train.tokens", dtype="<u2", offset=64).astype(np.int64)
    rows = [tokens[n * SEQ : (n + 1) * SEQ + 1] for n in range(step * BATCH, (step + 1) * BATCH)]
    rows = torch.from_numpy(np.stack(rows))
    return rows[:, :-1], rows[:, 1:]


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + MODEL["norm_eps"]) * weight


def rotate(x):
    """x [B, heads, S, K]: turns the pairs (k, k + K/2) by position * theta^(-2k/K)."""
    size = x.shape[-1]
    frequency = MODEL["rope_theta"] ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attention(x, weights):
    head_dim = MODEL["hidden"] // MODEL["heads"]
    q, k, v = (F.linear(x, weights(f"self_attn.{name}_proj")).unflatten(-1, (-1, head_dim)).transpose(1, 2) for name in "qkv")
    copies = MODEL["heads"] // MODEL["kv_heads"]
    q, k, v = rotate(q), rotate(k).repeat_interleave(copies, 1), v.repeat_interleave(copies, 1)
    scores = q @ k.transpose(-1, -2) * head_dim**-0.5
    future = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
    return F.linear(mixed.transpose(1, 2).flatten(2), weights("self_attn.o_proj"))


def loss_of(parameters, inputs, targets):
    """The mean cross-entropy of a batch; a model without lm_head is tied."""
    embedding = parameters["model.embed_tokens.weight"]
    x = F.embedding(inputs, embedding)
    for layer in range(MODEL["layers"]):
        def weights(name, layer=layer):
            return parameters[f"model.layers.{layer}.{name}.weight"]
        x = x + attention(rms_norm(x, weights("input_layernorm")), weights)
        y = rms_norm(x, weights("post_attention_layernorm"))
        x = x + F.linear(F.silu(F.linear(y, weights("mlp.gate_proj"))) * F.linear(y, weights("mlp.up_proj")), weights("mlp.down_proj"))
    x = rms_norm(x, parameters["model.norm.weight"])
    return F.cross_entropy(F.linear(x, parameters.get("lm_head.weight", embedding)).flatten(0, 1), targets.flatten())


def train(parameters):
    """The gradients of the first step, by name, and the losses and gradient norms of all."""
    leaves = list(parameters.values())
    optimizer = torch.optim.AdamW([{"params": [p for p in leaves if p.ndim == 2], "weight_decay": 0.1},
                                   {"params": [p for p in leaves if p.ndim == 1], "weight_decay": 0.0}],
                                  lr=LR, betas=(0.9, 0.95), eps=1e-8)
    gradients, losses, norms = {}, [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(parameters, *sequences(step))
        loss.backward()
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in parameters.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(leaves, 1.0).item())
        optimizer.step()
        losses.append(loss.item())
    return gradients, losses, norms


class PyTorch(LaunchTest):
    def compare(self, precision, tied, gradient_tolerance, loss_tolerance):
        config = self.write_config({
            "model": {**MODEL, "tie_embeddings": tied, "init_std": 0.05},
            "train": {"steps": STEPS, "global_batch": BATCH, "micro_batch": 1, "seq_len": SEQ, "precision": precision, "grad_clip": 1.0},
            "optimizer": {"kind": "adamw", "lr": LR, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
            "lr_schedule": {"kind": "constant"}, "pipeline": {"schedule": "zb_h1"}, "data": {"shuffle": False}})
        initial = self.folder / "initial.safetensors"
        self.train(config, (1, 1, 1), "--set=train.steps=0", "--save-weights", initial)
        parameters = safetensors.torch.load_file(initial)
        dtype = {"fp32": torch.float32, "fp64": torch.float64}[precision]
        self.assertEqual({p.dtype for p in parameters.values()}, {dtype})
        self.assertEqual("lm_head.weight" in parameters, not tied)
        gradients, losses, norms = train({name: p.requires_grad_() for name, p in parameters.items()})
        self.assertGreater(max(norms), 1.0, "some step is clipped")

        for mesh in MESHES:
            with self.subTest(mesh=mesh):
                saved = self.folder / "gradients.safetensors"
                metrics = self.train(config, mesh, "--save-gradients", saved)
                ours = safetensors.torch.load_file(saved)
                self.assertEqual(ours.keys(), gradients.keys())
                for name, gradient in gradients.items():
                    difference = ((ours[name] - gradient).norm() / gradient.norm()).item()
                    self.assertLess(difference, gradient_tolerance, name)
                self.assertEqual(len(metrics), STEPS)
                for mine, loss, norm in zip(metrics, losses, norms):
                    self.assertAlmostEqual(mine["loss"], loss, delta=loss_tolerance, msg=f"step {mine['step']}")
                    self.assertAlmostEqual(mine["grad_norm"], norm, delta=loss_tolerance * norm, msg=f"step {mine['step']}")

    def test_fp32_untied(self):
        self.compare("fp32", False, 1e-5, 2e-4)

    def test_fp32_tied(self):
        self.compare("fp32", True, 1e-5, 2e-4)

    def test_fp64_untied(self):
        self.compare("fp64", False, 1e-11, 1e-9)

    def test_fp64_tied(self):
        self.compare("fp64", True, 1e-11, 1e-9)


if __name__ == "__main__":
    torch.set_num_threads(1)
    unittest.main()
