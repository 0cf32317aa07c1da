# SPDX-License-Identifier: Apache-2.0
"""The memory that a run says it will take is what it takes, and a run that would not fit says so before it begins."""

import json
import unittest

from launcher import LaunchTest

MODEL = {"model": {"layers": 6, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 1024},
         "train": {"steps": 2, "global_batch": 8, "micro_batch": 2, "seq_len": 128},
         "pipeline": {"post_validation": "off"}}

# stage and residency, checkpointing, mesh (pp, dp, tp), other changes
CONFIGS = [
    ({"stage": 0}, "none", (1, 1, 1), {}),
    ({"stage": 0}, "full", (1, 2, 1), {"train": {"precision": "bf16"}}),
    ({"stage": 1}, "none", (1, 2, 1), {}),
    ({"stage": 1}, "selected", (2, 1, 1), {"train": {"checkpoint_ops": ["attention"]}}),
    ({"stage": 2}, "none", (1, 2, 1), {"train": {"precision": "bf16"}}),
    ({"stage": 2}, "selected", (1, 2, 2), {"train": {"checkpoint_ops": ["attention", "mlp"]}}),
    ({"stage": 3, "residency": "layer"}, "none", (1, 2, 1), {}),
    ({"stage": 3, "residency": "layer"}, "first", (1, 4, 1), {"train": {"precision": "bf16", "checkpoint_layers": 3}}),
    ({"stage": 3, "residency": "layer"}, "full", (1, 2, 2), {}),
    ({"stage": 3, "residency": "chunk"}, "none", (2, 1, 2), {"pipeline": {"schedule": "zb_h1"}}),
    ({"stage": 3, "residency": "chunk"}, "full", (2, 2, 1), {"pipeline": {"schedule": "zb_h1"}}),
    ({"stage": 3, "residency": "chunk"}, "none", (3, 1, 1),
     {"pipeline": {"schedule": "interleaved", "post_validation": "on"}, "train": {"precision": "bf16",
                                                                                  "global_batch": 12}}),
]


HUNDRED_MILLION = {"model": {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "ffn": 2048, "vocab": 8192},
                   "train": {"steps": 2, "global_batch": 2, "micro_batch": 1, "seq_len": 64}}


class Memory(LaunchTest):
    def write(self, *changes):
        return self.write_config(MODEL, *changes)

    def measured(self, config, mesh):
        self.train(config, mesh)
        return json.loads((self.run_folder() / "summary.json").read_text())["memory"]

    def test_predicted_is_within_a_tenth_of_measured_and_hardly_ever_under(self):
        for fsdp, checkpointing, mesh, changes in CONFIGS:
            config = self.write({"fsdp": fsdp, "train": {"checkpoint_activations": checkpointing}}, changes)
            ranks = self.measured(config, mesh)
            self.assertEqual(len(ranks), mesh[0] * mesh[1] * mesh[2])
            for rank in ranks:
                with self.subTest(fsdp=fsdp, checkpointing=checkpointing, mesh=mesh, rank=rank["rank"]):
                    ratio = rank["predicted"] / rank["measured"]
                    print(f"{fsdp} {checkpointing} {mesh} rank {rank['rank']}: "
                          f"{rank['predicted']} of {rank['measured']}, {100 * (ratio - 1):+.1f} %")
                    self.assertGreater(ratio, 0.97)
                    self.assertLess(ratio, 1.10)
                    self.assertGreater(rank["resident"], rank["measured"])

    def test_a_process_takes_hardly_more_than_its_tensors(self):
        for fsdp in ({"stage": 0}, {"stage": 3, "residency": "layer"}):
            for rank in self.measured(self.write_config(HUNDRED_MILLION, {"fsdp": fsdp}), (1, 2, 1)):
                with self.subTest(fsdp=fsdp, rank=rank["rank"]):
                    ratio = rank["resident"] / (rank["resident_empty"] + rank["measured"])
                    print(f"{fsdp} rank {rank['rank']}: {rank['resident']} resident, {rank['resident_empty']} of it before the model, "
                          f"{rank['measured']} in tensors, {100 * (ratio - 1):+.1f} %")
                    self.assertLess(ratio, 1.10)

    def test_the_plan_is_printed_and_written_and_the_peak_is_told_at_the_end(self):
        config = self.write()
        done = self.orthant("train", config, "--set=mesh.pp=2", ranks=2)
        self.assertEqual(done.code, 0, done.output)
        for line in ("weights", "gradients", "optimizer", "buffers", "activations", "communication", "allocator slack",
                     "total", "peak of tensors: pp0 predicted "):
            self.assertTrue(any(text.startswith(line) for text in done.lines), f"{line}:\n{done.output}")
        plan = json.loads((self.run_folder() / "plan.json").read_text())
        self.assertEqual([rank["pp"] for rank in plan["ranks"]], [0, 1])
        self.assertGreater(plan["ranks"][0]["activations"], plan["ranks"][0]["weights"] / 10)

    def test_a_run_that_does_not_fit_ends_before_it_begins_with_the_table(self):
        config = self.write({"memory": {"limit": "8MiB"}})
        done = self.orthant("train", config, "--set=mesh.dp=2", ranks=2)
        self.assertEqual(done.code, 2, done.output)
        self.assertEqual(len(done.messages()), 1, done.output)
        for part in ("does not fit", "activations", "memory.limit is 8.0 MiB", "most of it is ", ": use "):
            self.assertIn(part, done.output)
        self.assertIsNone(self.run_folder())

    def test_auto_checkpoints_as_many_blocks_as_the_limit_wants_and_says_so(self):
        full = self.write({"train": {"checkpoint_activations": "full"}})
        self.train(full)
        least = json.loads((self.run_folder() / "plan.json").read_text())["ranks"][0]["total"]
        self.train(self.write())
        most = json.loads((self.run_folder() / "plan.json").read_text())["ranks"][0]["total"]
        limit = (least + most) // 2
        config = self.write({"train": {"checkpoint_activations": "auto"}, "memory": {"limit": f"{limit}B"}})
        done = self.orthant("train", config)
        self.assertEqual(done.code, 0, done.output)
        self.assertIn("activation checkpointing (auto): pp0 ", done.output)
        plan = json.loads((self.run_folder() / "plan.json").read_text())
        self.assertTrue(0 < plan["checkpointed_blocks"][0] < 6, plan)
        self.assertLessEqual(plan["ranks"][0]["total"], limit)
        measured = json.loads((self.run_folder() / "summary.json").read_text())["memory"][0]["measured"]
        self.assertLessEqual(measured, limit)

    def test_faults_in_the_keys_name_what_is_wanted(self):
        for changes, part in [({"train": {"checkpoint_activations": "ful"}}, 'did you mean "full"'),
                              ({"train": {"checkpoint_activations": "selected"}}, 'wants some of "attention", "mlp"'),
                              ({"train": {"checkpoint_activations": "selected", "checkpoint_ops": ["atention"]}},
                               'did you mean "attention"?'),
                              ({"train": {"checkpoint_ops": ["mlp"]}}, 'only checkpoint_activations = "selected"'),
                              ({"train": {"checkpoint_layers": 2}}, 'only checkpoint_activations = "first"'),
                              ({"memory": {"limit": "2gib"}}, "a number with one of B, KiB, MiB, GiB, TiB")]:
            done = self.orthant("train", self.write(changes))
            self.assertEqual(done.code, 2, done.output)
            self.assertIn(part, done.output)


if __name__ == "__main__":
    unittest.main()
