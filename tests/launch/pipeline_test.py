# SPDX-License-Identifier: Apache-2.0
"""Pipelines as one runs them: schedules from a file, by cost profile, and steps that are left out."""

import json
import unittest

from launcher import LaunchTest


class Pipelines(LaunchTest):
    def losses(self, schedule, *overrides, mesh=(2, 1, 1)):
        config = self.write_config({"train": {"precision": "fp64"}})
        return [step["loss"] for step in self.train(config, mesh, f"--set=pipeline.schedule={schedule}", *overrides)]

    def test_a_schedule_from_a_file_trains_like_the_one_that_was_exported(self):
        for schedule, *more in (["zb_v"], ["interleaved", "--lowered"], ["dualpipe_v"]):
            with self.subTest(schedule=schedule):
                path = self.folder / f"{schedule}.csv"
                done = self.orthant("schedule", "export", "--schedule", schedule, "--stages", "2", "--microbatches", "24",
                                    "--csv", path, *more)
                self.assertEqual(done.code, 0, done.output)
                self.assertEqual(self.losses(f"file:{path}"), self.losses(schedule))

    def test_auto_takes_the_least_predicted_step_within_the_memory_limit_and_says_why(self):
        self.losses("zb_h1")
        profile = self.run_folder() / "profile.json"
        costs = json.loads(profile.read_text())
        self.assertEqual(len(costs["layers"]), 10)
        self.assertTrue(all(layer["F_us"] > 0 and layer["W_us"] >= 0 for layer in costs["layers"]), costs)
        self.assertGreater(costs["message_us"], 0)
        self.assertEqual([rank["place"] for rank in costs["ranks"]], ["pp0 dp0 tp0", "pp1 dp0 tp0"])
        for rank, stage in zip(costs["ranks"], costs["stages"]):
            self.assertAlmostEqual(rank["us"], sum(stage.values()) - stage["stage"], places=3)
            self.assertEqual(rank["over_fastest"], 1, "nobody else has its layers")
        for stage in costs["stages"]:
            self.assertGreater(stage["I_us"], 0)

        config = self.write_config()
        done = self.orthant("train", config, "--set=mesh.pp=2", "--set=pipeline.schedule=auto",
                            f"--set=pipeline.profile={profile}", ranks=2)
        self.assertEqual(done.code, 0, done.output)
        fitting = {}
        for line in done.lines:
            words = line.split()
            if "micro-batches" in words and "ms" in words and "limit" not in words:
                fitting[" ".join(words[:words.index("ms") - 1])] = float(words[words.index("ms") - 1])
        self.assertGreater(len(fitting), 4, done.output)
        taken = next(line for line in done.lines if line.startswith("taken: ")).removeprefix("taken: ")
        fastest = {name.split()[0] for name, ms in fitting.items() if ms == min(fitting.values())}  # as printed
        self.assertIn(taken, fastest, done.output)

    def test_auto_without_a_profile_is_told_what_it_needs(self):
        done = self.orthant("train", self.write_config(), "--set=pipeline.schedule=auto")
        self.assertEqual(done.code, 2, done.output)
        self.assertIn("set pipeline.profile to the profile.json of a run", done.output)

    def test_a_step_that_is_not_finite_is_left_out_loudly_or_ends_the_run(self):
        config = self.write_config({"train": {"steps": 5}, "fault": {"kind": "infinity", "rank": 1, "step": 3}})
        for mode in ("on", "off"):
            with self.subTest(post_validation=mode):
                common = ["train", config, "--set=mesh.pp=2", f"--set=pipeline.post_validation={mode}"]
                done = self.orthant(*common, "--set=train.max_skipped_steps=1", ranks=2)
                self.assertEqual(done.code, 0, done.output)
                self.assertIn("step 3: loss", done.output)
                self.assertIn("the step changed no weight", done.output)
                self.assertEqual(json.loads((self.run_folder() / "summary.json").read_text())["skipped_steps"], 1)
                self.assertEqual(len(self.metrics()), 5)
                done = self.orthant(*common, ranks=2)
                self.assertEqual(done.code, 5, done.output)

    def test_rules_of_schedules_are_told_with_numbers(self):
        for schedule, mesh, overrides, said in (
                ("interleaved", 2, ["--set=train.global_batch=5"], "interleaved"),
                ("dualpipe", 2, ["--set=train.global_batch=3"], "dualpipe"),
                ("zb_v", 2, ["--set=pipeline.chunks=3"], "use chunks = 2"),
                ("1f1b", 2, ["--set=pipeline.layers_per_stage=[3, 4]"], "layers_per_stage"),
                ("1f1b", 2, ["--set=pipeline.layers_per_stage=[3, 4, 1]"], "3 numbers"),
                ("zb_h3", 2, [], "zb_h2"),
                ("file:/nowhere.csv", 2, [], "/nowhere.csv")):
            with self.subTest(schedule=schedule, overrides=overrides):
                done = self.orthant("train", self.write_config(), f"--set=mesh.pp={mesh}",
                                    f"--set=pipeline.schedule={schedule}", *overrides, ranks=mesh)
                self.assertEqual(done.code, 2, done.output)
                self.assertIn(said, done.output)


if __name__ == "__main__":
    unittest.main()
