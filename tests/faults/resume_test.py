# SPDX-License-Identifier: Apache-2.0
"""A run that is stopped or killed and started again is the run that never was: the same numbers and the same state, bit
for bit. What is damaged, or of another run, is not gone on with."""

import os
import shutil
import signal
import socket
import stat
import time
import unittest

from checkpoint_case import SAVED, STEPS, CheckpointTest, parameters, saved_run, step_folder


TWO_RANKS = ["--set=mesh.pp=1", "--set=mesh.dp=2", "--set=mesh.tp=1"]


def fault(kind, step, rank=1):
    return [f"--set=fault.kind={kind}", f"--set=fault.step={step}", f"--set=fault.rank={rank}"]


class Exact(CheckpointTest):
    """Against the unbroken run."""

    def unbroken(self, config, last, ranks):
        self.run_on(config, f"--set=run.dir={self.folder / 'unbroken'}", ranks=ranks)
        broken, self.runs = self.runs, self.folder / "unbroken"
        wanted = self.steps_of_all_starts(), parameters(self.checkpoints, last)
        self.runs = broken
        self.assertEqual(sorted(wanted[0]), list(range(1, last + 1)))
        return wanted

    def assert_same_as(self, wanted, last):
        steps, state = wanted
        self.assertEqual(self.steps_of_all_starts(), steps)
        self.assertEqual(parameters(self.checkpoints, last), state)

    def test_two_resumes_in_thirty_steps_on_three_axes(self):
        mesh = {"pp": 2, "dp": 2, "tp": 2}
        config = self.write_config({"mesh": mesh, "pipeline": {"schedule": "zb_h1"}, "model": {"dropout": 0.1, "layers": 4},
                                    "train": {"steps": 30, "precision": "bf16", "global_batch": 8}, "checkpoint": {"interval": 10}})
        wanted = self.unbroken(config, 30, ranks=8)
        # Killed some steps after a save, stopped at a step that no interval has, and at last left alone.
        killed = self.run_on(config, "--set=checkpoint.background=false", *fault("kill", 17, rank=5), ranks=8, code=137)
        self.assertEqual(self.step_gone_on_from(killed), 0)
        stopped = self.run_on(config, *fault("usr1", 22, rank=3), ranks=8, code=75)
        self.assertEqual(self.step_gone_on_from(stopped), 10, stopped.output)
        last = max(self.look("list"))
        self.assertIn(last, (22, 23), "the step in which it was asked, or the one after")
        finished = self.run_on(config, ranks=8)
        self.assertEqual(self.step_gone_on_from(finished), last)
        self.assert_same_as(wanted, 30)
        self.assert_nothing_unfinished()

    def test_other_shardings_and_saves_that_training_waits_for(self):
        for stage, background in ((0, True), (2, False)):
            with self.subTest(stage=stage, background=background):
                config = self.write_config({"mesh": {"dp": 2}, "train": {"steps": 6}, "fsdp": {"stage": stage},
                                            "model": {"dropout": 0.1, "layers": 2},
                                            "checkpoint": {"interval": 2, "background": background}})
                shutil.rmtree(self.folder / "unbroken", ignore_errors=True)
                wanted = self.unbroken(config, 6, ranks=2)
                self.run_on(config, *fault("usr1", 3), ranks=2, code=75)
                finished = self.run_on(config, ranks=2)
                self.assertEqual(self.step_gone_on_from(finished), 3)
                self.assert_same_as(wanted, 6)

    def test_a_save_in_the_background_is_of_the_step_it_began_in(self):
        """One that takes longer than the steps after it, and so would mix in their weights if it did not copy."""
        config = self.write_config({"mesh": {"dp": 2}, "train": {"steps": 6}, "checkpoint": {"interval": 3}})
        _, wanted = self.unbroken(config, 6, ranks=2)
        at_3 = parameters(self.folder / "unbroken" / "checkpoints", 3)
        self.run_on(config, "--set=fault.phase=save", "--set=fault.delay_ms=1500", *fault("slow", 3), ranks=2)
        self.assertEqual(parameters(self.checkpoints, 3), at_3)
        self.assertEqual(parameters(self.checkpoints, 6), wanted)


class Refused(CheckpointTest):
    """What is not the same run any more is told key by key, with exit code 2. The mesh may be another one, as here."""

    def refuse(self, config, *arguments, code=2):
        before = sorted(self.checkpoints.rglob("*"))
        done = self.run_on(config, *TWO_RANKS, *arguments, ranks=2, code=code)
        self.assertEqual(len(done.messages()), 1, done.output)
        self.assertEqual(self.metrics(), [])
        after = sorted(self.checkpoints.rglob("*"))
        self.assertEqual([path for path in before if path not in after], [], "a refused start takes nothing away")
        return done.output

    def test_another_number_of_steps_unless_it_is_accepted(self):
        config = self.copy_of_saved_run()
        output = self.refuse(config, "--set=train.steps=14")
        self.assertIn("train.steps: 14, was 12", output)
        self.assertIn("checkpoint.accept_changes", output)
        accepted = self.run_on(config, *TWO_RANKS, "--set=train.steps=14", '--set=checkpoint.accept_changes=["train.steps"]', ranks=2)
        self.assertEqual(accepted.lines.count("accepted change: train.steps: 14, was 12"), 1, accepted.output)
        self.assertEqual(self.step_gone_on_from(accepted), 12)
        self.assertEqual([line["step"] for line in self.metrics()], [13, 14])

    def test_an_accepted_change_lets_no_other_pass(self):
        config = self.copy_of_saved_run()
        output = self.refuse(config, "--set=train.steps=14", "--set=optimizer.lr=0.5",
                             '--set=checkpoint.accept_changes=["train.steps"]')
        self.assertRegex(output, r"optimizer\.lr: 0\.5, was ")

    def test_another_seed(self):
        self.assertIn("train.seed: 7, was 1", self.refuse(self.copy_of_saved_run(), "--set=train.seed=7"))

    def test_another_model(self):
        output = self.refuse(self.copy_of_saved_run(), "--set=model.hidden=48", "--set=model.tie_embeddings=true")
        self.assertIn("model.hidden: 48, was 32", output)
        self.assertIn("model.tie_embeddings: true, was false", output)

    def test_another_model_even_if_it_is_accepted(self):
        """The config may be accepted; tensors of other shapes cannot be."""
        output = self.refuse(self.copy_of_saved_run(), "--set=model.hidden=48", "--set=checkpoint.resume=12",
                             '--set=checkpoint.accept_changes=["model.hidden", "model.head_dim"]', code=4)
        self.assertRegex(output, r"model\.\S+ has shape \[.*32.*\], the model wants \[.*48.*\]")

    def test_checkpoints_where_there_should_be_none(self):
        output = self.refuse(self.copy_of_saved_run(), "--set=checkpoint.resume=never")
        self.assertRegex(output, r'checkpoint\.resume = "never", but .* \(steps 4 8 12\)')

    def test_a_step_that_is_not_there(self):
        output = self.refuse(self.copy_of_saved_run(), "--set=checkpoint.resume=7", code=4)
        self.assertRegex(output, r"checkpoint\.resume = 7: .* has no such step; it has 4 8 12")


class Damaged(CheckpointTest):
    """The newest sound checkpoint is taken, and loudly so; a step that is asked for by number must be that one."""

    def newest(self):
        return step_folder(self.checkpoints, STEPS[-1])

    def shard(self, rank, step=STEPS[-1]):
        return step_folder(self.checkpoints, step) / f"rank-{rank:05}.safetensors"

    def assert_falls_back(self, config, name, *, to=8):
        """With a WARNING that names step and file, to a step from which the same end is reached."""
        done = self.run_on(config)
        warnings = [line for line in done.lines if line.startswith("WARNING: the checkpoint of step 12 cannot be used")]
        self.assertEqual(len(warnings), 1, done.output)
        self.assertIn(name, warnings[0])
        self.assertEqual(self.step_gone_on_from(done), to)
        self.assertEqual([line["step"] for line in self.metrics()], list(range(to + 1, 13)))
        self.assertEqual(parameters(self.checkpoints, 12), parameters(saved_run(), 12))
        self.assertTrue(all(look["sound"] for look in self.look("verify").values()))
        return done

    def assert_refused_by_number(self, config, *names):
        done = self.run_on(config, *TWO_RANKS, "--set=checkpoint.resume=12", ranks=2, code=4)
        self.assertEqual(len(done.messages()), 1, done.output)
        self.assertIn("checkpoint.resume = 12: ", done.messages()[0])
        for name in names:
            self.assertIn(name, done.messages()[0])
        self.assertNotIn("going on from", done.output)
        self.assertTrue(self.newest().is_dir())

    def assert_found(self, *names, step=12):
        """By 'orthant checkpoint verify', in this step and in no other."""
        looks = self.look("verify", code=4)
        self.assertEqual([number for number, look in looks.items() if not look["sound"]], [step])
        for name in names:
            self.assertIn(name, "\n".join(looks[step]["faults"]))

    def test_without_its_index_a_step_is_none(self):
        config = self.copy_of_saved_run()
        (self.newest() / "index.json").unlink()
        self.assertEqual(list(self.look("list")), [4, 8])
        done = self.run_on(config)
        self.assertEqual(self.step_gone_on_from(done), 8)
        self.assertEqual(parameters(self.checkpoints, 12), parameters(saved_run(), 12))
        self.assertEqual(sorted(path.name for path in self.newest().iterdir()),
                         sorted(path.name for path in step_folder(saved_run(), 12).iterdir()))
        self.assert_nothing_unfinished()

    def test_a_shard_cut_by_a_byte(self):
        config = self.copy_of_saved_run()
        size = self.shard(3).stat().st_size
        os.truncate(self.shard(3), size - 1)
        self.assert_found("rank-00003.safetensors", f"has {size - 1} bytes, the index says {size}")
        self.assert_refused_by_number(config, "rank-00003.safetensors", f"has {size - 1} bytes, the index says {size}")
        done = self.assert_falls_back(config, "rank-00003.safetensors")
        self.assertIn("the checkpoint of step 12 was set aside: this run went on from step 8", done.output)
        self.assertEqual(len(list(self.checkpoints.glob("set-aside-step-00000012-*"))), 1)

    def test_a_flipped_bit_in_what_the_last_rank_reads(self):
        config = self.copy_of_saved_run()
        with self.shard(3).open("r+b") as file:
            file.seek(-5, os.SEEK_END)
            byte = file.read(1)[0]
            file.seek(-5, os.SEEK_END)
            file.write(bytes([byte ^ 16]))
        self.assert_falls_back(config, "rank-00003.safetensors")

    def test_shards_swapped(self):
        config = self.copy_of_saved_run()
        first, second, aside = self.shard(1), self.shard(2), self.newest() / "aside"
        first.rename(aside), second.rename(first), aside.rename(second)
        self.assert_found("rank-00001.safetensors", "rank-00002.safetensors")
        self.assert_refused_by_number(config, "rank-0000")

    def test_a_shard_of_another_step(self):
        config = self.copy_of_saved_run()
        self.assertEqual(self.shard(1, 4).stat().st_size, self.shard(1, 8).stat().st_size)
        shutil.copy(self.shard(1, 4), self.shard(1, 8))
        self.assert_found("rank-00001.safetensors: its header is not the one that was written (it is of step 4)", step=8)
        shutil.copy(self.shard(1, 4), self.shard(1))
        self.assert_refused_by_number(config, "rank-00001.safetensors")

    def test_an_index_of_another_step(self):
        config = self.copy_of_saved_run()
        shutil.rmtree(self.newest())
        shutil.copytree(step_folder(self.checkpoints, 8), self.newest())
        self.assert_found("its index is of step 8")
        self.assert_refused_by_number(config, "its index is of step 8")

    def test_a_missing_shard_is_an_error_and_one_too_many_is_none(self):
        config = self.copy_of_saved_run()
        (self.newest() / "rank-00007.safetensors").write_bytes(b"junk")
        (self.newest() / "notes.txt").write_text("junk")
        done = self.run_on(config, *TWO_RANKS, "--set=checkpoint.resume=12", ranks=2)
        self.assertEqual(self.step_gone_on_from(done), 12)
        self.shard(2).unlink()
        self.assert_found("rank-00002.safetensors: is missing")
        self.assert_refused_by_number(config, "rank-00002.safetensors: is missing")

    def test_what_is_no_regular_file(self):
        """A link is not followed, even to the very file; a pipe is not waited for."""
        def link(path):
            path.rename(self.folder / "elsewhere")
            path.symlink_to(self.folder / "elsewhere")

        def device(path):
            path.unlink()
            path.symlink_to("/dev/zero")

        def pipe(path):
            path.unlink()
            os.mkfifo(path)

        def folder(path):
            path.unlink()
            path.mkdir()

        for name in ("rank-00001.safetensors", "index.json"):
            for make in (link, device, pipe, folder):
                with self.subTest(file=name, kind=make.__name__):
                    self.copy_of_saved_run()
                    make(self.newest() / name)
                    self.assert_found(f"{name}: is no regular file")
        self.assert_refused_by_number(self.last_config(), "index.json: is no regular file")

    def last_config(self):
        return self.folder / f"config{self.configs}.toml"

    def test_what_latest_says_does_not_matter(self):
        config = self.copy_of_saved_run()
        self.assertEqual((self.checkpoints / "latest").read_text(), "step-00000012\n")
        for content in (b"", b"step-99999999\n", b"../../x\0\xff"):
            (self.checkpoints / "latest").write_bytes(content)
            self.assertEqual(list(self.look("list")), list(STEPS))
        done = self.run_on(config, *TWO_RANKS, ranks=2)
        self.assertEqual(self.step_gone_on_from(done), 12)

    def test_when_none_is_sound_the_run_does_not_begin_anew(self):
        config = self.copy_of_saved_run()
        for step in STEPS:
            os.truncate(self.shard(0, step), 100)
        done = self.run_on(config, *TWO_RANKS, ranks=2, code=4)
        self.assertRegex(done.messages()[0], r"none of the checkpoints in .* \(steps 4 8 12\) is sound")
        self.assertEqual(self.metrics(), [])

    def test_names_that_are_no_step(self):
        self.copy_of_saved_run()
        for name in ("step-13", "step-0000000013", "step-00000013x", "step--0000013", "Step-00000013", "step-00000014 "):
            shutil.copytree(self.newest(), self.checkpoints / name)
        (self.checkpoints / "step-00000015").symlink_to(self.newest())
        (self.checkpoints / "step-00000016").write_text("a file")
        self.assertEqual(list(self.look("list")), list(STEPS))


class Commands(CheckpointTest):
    def test_list_and_verify_tell_what_is_there(self):
        for command in ("list", "verify"):
            done = self.orthant("checkpoint", command, saved_run())
            self.assertEqual(done.code, 0, done.output)
            self.assertEqual(len(done.lines), len(STEPS), done.output)
            for line, step in zip(done.lines, STEPS):
                self.assertRegex(line, rf"^step +{step} .* MiB in 4 files  {step * 24} samples  pp2 dp2 tp1, fsdp stage 3, 1f1b  "
                                       r"index [0-9a-f]{16}" + ("  sound$" if command == "verify" else "$"))
            by_run_folder = self.orthant("checkpoint", command, saved_run().parent)
            self.assertEqual(by_run_folder.output, done.output)

    def test_verify_takes_one_step(self):
        self.assertEqual(list(self.look("verify", "--step=8", folder=saved_run())), [8])
        done = self.orthant("checkpoint", "verify", saved_run(), "--step=9")
        self.assertEqual(done.code, 4)
        self.assertRegex(done.output, r"orthant: error: .* has no step 9; it has 4 8 12")

    def test_a_damaged_index_is_shown_by_list(self):
        self.copy_of_saved_run()
        (step_folder(self.checkpoints, 8) / "index.json").write_text("{}\n")
        done = self.orthant("checkpoint", "list", self.checkpoints)
        self.assertEqual(done.code, 4, done.output)
        self.assertRegex(done.output, r"(?m)^step +8  DAMAGED\n  .*step-00000008/index\.json: the index ")
        self.assertRegex(done.output, r"(?m)^step +12 .* MiB")

    def test_a_folder_without_checkpoints(self):
        for folder in (self.folder, self.folder / "none"):
            done = self.orthant("checkpoint", "list", folder)
            self.assertEqual(done.code, 4, done.output)
            self.assertRegex(done.output, r"^orthant: error: '.*' holds no checkpoints; give the folder")


class Folder(CheckpointTest):
    def test_everything_is_its_owners_alone(self):
        config = self.write_config(SAVED, {"train": {"steps": 5}, "trace": {"first_step": 1, "steps": 1}})
        before = os.umask(0)  # the widest that a user may have
        try:
            self.run_on(config, "--save-weights", self.folder / "weights.safetensors")
        finally:
            os.umask(before)
        paths = [self.runs, *self.runs.rglob("*"), self.folder / "weights.safetensors"]
        self.assertGreater(len(paths), 12)
        for path in paths:
            wanted = 0o700 if path.is_dir() else 0o600
            self.assertEqual(oct(stat.S_IMODE(path.lstat().st_mode)), oct(wanted), path)

    def test_what_a_killed_start_has_left_is_removed_and_nothing_else(self):
        config = self.copy_of_saved_run()
        run = "0123456789abcdef"
        elsewhere = self.folder / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "file").write_text("not to be followed")
        for name in (f"step-00000016.tmp-{run}", f".trash-step-00000004-{run}"):
            (self.checkpoints / name).mkdir()
            (self.checkpoints / name / "rank-00000.safetensors").write_bytes(b"half")
            (self.checkpoints / name / "link").symlink_to(elsewhere)
        for name in ("latest.tmp-aB3dEf", f"probe-{run}-1", f"probe-{run}-0.tmp-aB3dEf"):
            (self.checkpoints / name).write_text("")
        kept = ["notes.txt", "step-16.tmp-mine", ".trash-mine"]
        for name in kept:
            (self.checkpoints / name).mkdir()
        self.run_on(config, *TWO_RANKS, ranks=2)
        for name in kept:
            (self.checkpoints / name).rmdir()
        self.assertTrue((elsewhere / "file").exists())
        self.assert_nothing_unfinished()

    def test_a_second_run_is_refused_and_a_dead_ones_lock_is_not_in_the_way(self):
        config = self.write_config(SAVED, {"train": {"steps": 1000000}, "checkpoint": {"interval": 5}})
        first = self.start(["train", config], ranks=4)
        self.wait_for_steps(first, 3)
        holder = (self.checkpoints / "lock").read_text()
        second = self.run_on(config, code=2)
        self.assertEqual(len(second.messages()), 1, second.output)
        self.assertRegex(second.messages()[0], r"checkpoint\.dir: another run is using '.*/checkpoints' \(host .*, process \d+, run [0-9a-f]+\)")
        self.assertIn(holder, second.messages()[0])
        self.assertIn(f"host {socket.gethostname()}, process ", holder)
        self.assertIn(int(holder.split("process ")[1].split(",")[0]), first.living())
        self.assertLess(second.seconds, 15)
        self.assertIsNone(first.process.poll(), "the first goes on")

        first.end()
        self.assertEqual((self.checkpoints / "lock").read_text(), holder)
        third = self.start(["train", config], ranks=4)
        third.wait_until(lambda: (self.checkpoints / "lock").read_text() != holder, self.START, "lock of its own")

    def test_of_runs_started_at_once_one_goes_on(self):
        config = self.write_config({"mesh": {"dp": 2}, "train": {"steps": 1000000}})
        started = [self.start(["train", config], ranks=2) for _ in range(3)]
        end = time.monotonic() + self.START
        while sum(program.process.poll() is None for program in started) > 1 and time.monotonic() < end:
            time.sleep(0.05)
        codes = [program.process.poll() for program in started]
        self.assertEqual(sorted(codes, key=str), [2, 2, None], [program.output() for program in started])
        self.wait_for_steps(started[codes.index(None)], 3)


if __name__ == "__main__":
    unittest.main()
