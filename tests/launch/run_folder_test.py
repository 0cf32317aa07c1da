# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: a timeline of every rank, and a config that alone reproduces it."""

import json
import unittest

from launcher import LaunchTest


class RunFolder(LaunchTest):
    def test_the_trace_has_a_process_per_rank_and_a_track_per_stream(self):
        config = self.write_config({"trace": {"first_step": 1, "steps": 1}, "pipeline": {"schedule": "zb_h1"}})
        self.train(config, (2, 2, 2))
        events = json.loads((self.run_folder() / "trace.json").read_text())["traceEvents"]
        named = {(event["name"], event["args"]["name"]) for event in events if event["ph"] == "M" and "name" in event["args"]}
        processes = sorted(name for kind, name in named if kind == "process_name")
        self.assertEqual(len(processes), 8)
        self.assertIn("rank 5 pp1 dp0 tp1", processes)
        tracks = {name for kind, name in named if kind == "thread_name"}
        self.assertLessEqual({"compute", "tp", "dp_gather", "dp_reduce", "stage", "pp"}, tracks)
        spans = {event["name"] for event in events if event["ph"] == "X"}
        for name in ("F s1 m3", "I s0 m2", "W s1 m0"):
            self.assertTrue(any(span.startswith(name) for span in spans), f"no {name}: {sorted(spans)}")
        for name in ("AG layers.2", "RS layers.6", "NORM"):
            self.assertIn(name, spans)

    def test_the_resolved_config_reproduces_the_run(self):
        config = self.write_config({"mesh": {"dp": 0}})
        losses = [step["loss"] for step in self.train(config, (1, 2, 1), "--set=train.seed=9", "--set=optimizer.lr=0.01")]
        resolved = self.run_folder() / "config.toml"
        done = self.orthant("train", resolved, ranks=2)
        self.assertEqual(done.code, 0, done.output)
        self.assertEqual([step["loss"] for step in self.metrics()], losses)

    def test_without_a_trace_there_is_no_trace_file(self):
        self.train(self.write_config())
        self.assertFalse((self.run_folder() / "trace.json").exists())


if __name__ == "__main__":
    unittest.main()
