# SPDX-License-Identifier: Apache-2.0
"""'orthant simulate' and 'orthant schedule': figures, pictures and files, and wrong arguments told once."""

import json
import unittest
import xml.etree.ElementTree

from launcher import LaunchTest

SVG = "{http://www.w3.org/2000/svg}"
SHAPE = ["--stages", "4", "--microbatches", "8"]
FIGURES = ["makespan", "span", "ideal", "bubble", "bubble_span", "bubble_rate", "idle_per_rank",
           "peak_activations_per_rank", "order"]


class Simulate(LaunchTest):
    def done(self, *arguments):
        """What a command that must end well prints."""
        finished = self.orthant(*arguments)
        self.assertEqual(finished.code, 0, finished.output)
        return finished.output

    def report(self, *arguments):
        return json.loads(self.done("simulate", *arguments, "--json"))

    def test_published_case(self):
        report = self.report("--schedule", "zb_h1", "--stages", "8", "--microbatches", "24", "--chunks", "1", "--costs",
                             "18522,18086,9337,601")
        self.assertEqual(report["makespan"], 1310405)
        self.assertIsInstance(report["makespan"], int)
        self.assertAlmostEqual(report["bubble_rate"], 0.1585, delta=0.00005)
        self.assertLessEqual(set(FIGURES), set(report))
        self.assertEqual(report["peak_activations_per_rank"], [8, 7, 6, 5, 4, 3, 2, 1])
        self.assertEqual([len(ops) for ops in report["order"]], [3 * 24] * 8)

    def test_costs_and_memory_of_all_kinds(self):
        base = ["--schedule", "zb_h1", *SHAPE]
        by_rank = self.report(*base, "--stage-costs", "2,2,2;2,2,2;2,2,2;2,2,2", "--latency", "1", "--bandwidth", "10",
                              "--message-bytes", "5")
        self.assertEqual(by_rank["makespan"], self.report(*base, "--costs", "2,2,2,1.5")["makespan"])
        # reference 7a: the weight gradient's memory is held until W.
        held = self.report("--schedule", "zb_h1", "--stages", "4", "--microbatches", "12", "--memory", "2,-1,-1")
        self.assertEqual(held["peak_activations_per_rank"], [8, 7, 6, 5])

    def test_svg_has_a_box_for_each_operation(self):
        path = self.folder / "zb.svg"
        text = self.done("simulate", "--schedule", "zb_h1", *SHAPE, "--svg", path, "--text")
        self.assertIn("rank 0  F0  F1  F2  F3  .", text)
        picture = xml.etree.ElementTree.parse(path).getroot()
        boxes = [rect for rect in picture.iter(SVG + "rect") if rect.get("class", "").startswith("box ")]
        self.assertEqual(len(boxes), 3 * 4 * 8)
        self.assertTrue(all(box.find(SVG + "title").text for box in boxes))
        self.assertTrue(all(float(box.get("width")) > 0 for box in boxes))

    def test_schedules_through_files(self):
        for lowered in ([], ["--lowered"]):
            path = self.folder / "schedule.csv"
            self.done("schedule", "export", "--schedule", "dualpipe_v", *SHAPE, "--csv", path, *lowered)
            verdict = json.loads(self.done("schedule", "validate", path, "--json"))
            self.assertTrue(verdict["accepted"], verdict)
            self.assertEqual(verdict["peak_activations_per_rank"], [9, 9, 9, 9])
            from_file = self.report("--schedule", f"file:{path}", "--costs", "5,6,4,1")
            made = self.report("--schedule", "dualpipe_v", *SHAPE, "--costs", "5,6,4,1")
            self.assertEqual([from_file[key] for key in FIGURES], [made[key] for key in FIGURES])

    def test_validate_rejects(self):
        path = self.folder / "hangs.csv"
        path.write_text("0F0,0SEND_F0,0RECV_B0,0B0\n1B0,1SEND_B0,1RECV_F0,1F0\n")
        self.assert_told(["schedule", "validate", path], "row 2 (rank 1), column 1: \"1B0\": stands before \"1F0\"")
        path.write_text("0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1\n"
                        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n")
        finished = self.orthant("schedule", "validate", path)
        self.assertEqual(finished.code, 2, finished.output)
        self.assertIn("rejected", finished.lines)
        self.assert_told(["simulate", "--schedule", f"file:{path}"], "is rejected: ")

    def test_list_and_compare_know_the_same_schedules(self):
        names = [schedule["name"] for schedule in json.loads(self.done("schedule", "list", "--json"))]
        compared = json.loads(self.done("schedule", "compare", "--stages", "4", "--microbatches", "7", "--json"))
        told = [one["schedule"] for one in compared["schedules"] + compared["not_possible"]]
        self.assertEqual(sorted(told), sorted(names))
        self.assertIn("dualpipe_v", [one["schedule"] for one in compared["not_possible"]])
        figures = {one["schedule"]: one for one in compared["schedules"]}
        self.assertEqual(figures["1f1b"]["makespan"], 30)
        self.assertEqual(figures["1f1b"]["peak_activations"], 4)
        table = self.done("schedule", "compare", *SHAPE, "--markdown").splitlines()
        self.assertIn("| 1f1b | 1 | 33 | 27.3 % | 27.3 % | 4 | 1 |", table)

    def test_show(self):
        shape = ["--stages", "2", "--microbatches", "1"]
        self.assertEqual(self.done("schedule", "show", "--schedule", "gpipe", *shape, "--lowered"),
                         "rank 0: F0 SEND a0 RECV g0 B0 NORM_UNITS TIE NORM STEP\n"
                         "rank 1: RECV a0 F0 B0 SEND g0 NORM_UNITS TIE NORM STEP\n")
        self.assertIn("rank 1  .   F0  B0  B0  .   .\n",
                      self.done("schedule", "show", "--schedule", "gpipe", *shape, "--picture"))

    def assert_told(self, arguments, why):
        finished = self.orthant(*arguments)
        self.assertEqual(finished.code, 2, finished.output)
        self.assertIn(why, finished.output)
        self.assertLessEqual(len(finished.lines), 2, finished.output)

    def test_wrong_arguments_are_told(self):
        base = ["simulate", "--schedule", "1f1b", *SHAPE]
        for arguments, why in [
            (["simulate", "--schedule", "1f2b", *SHAPE], "schedule = \"1f2b\" is not known; use one of gpipe"),
            (["simulate", "--schedule", "1f1b"], "give --stages and --microbatches"),
            (["simulate", "--schedule", "1f1b", "--stages", "0", "--microbatches", "8"], "--stages: Value 0 not in range"),
            (["simulate", "--schedule", "1f1b", "--stages", "4", "--microbatches", "eight"], "--microbatches: "),
            (["simulate", "--schedule", "dualpipe_v", "--stages", "4", "--microbatches", "3"], "schedule dualpipe_v"),
            (["simulate", "--schedule", "file:/nowhere.csv"], "/nowhere.csv cannot be read"),
            ([*base, "--costs", "1,2"], "--costs 1,2: 2 number(s); wanted F,I,W or F,I,W,C"),
            ([*base, "--costs", "1,2,x"], "--costs 1,2,x: \"x\" is not a number"),
            ([*base, "--costs", "1,2,nan"], "\"nan\" is not a number"),
            ([*base, "--costs", "1,2,-3"], "-3 is negative"),
            ([*base, "--stage-costs", "1,1,1;2,2,2"], "4 stages but costs of 2"),
            ([*base, "--memory", "1,1,1"], "the three sum to 3"),
            ([*base, "--memory-limit", "3"], "over the limit of 3"),
            ([*base, "--svg", "/nowhere/a.svg"], "/nowhere/a.svg"),
            (["schedule", "export", "--schedule", "dualpipe", *SHAPE, "--csv", self.folder / "a.csv"], "two copies"),
        ]:
            with self.subTest(arguments):
                self.assert_told(arguments, why)


if __name__ == "__main__":
    unittest.main()
