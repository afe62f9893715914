"""A run from its start to its end, with the real programs; LONGHAUL_PROGRAMS is the folder with them."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import longhaul

RUN = """
[run]
name = "from-python"
workers = 1
steps = 8
[model]
kind = "gpt2"
layers = 1
width = 16
heads = 2
context = 16
[data]
path = "text.txt"
sequence_length = 16
[train]
batch = 4
[sync]
preset = "dense"
[checkpoint]
dir = "checkpoints"
every_rounds = 4
"""


def numpy_and_pandas() -> bool:
    try:
        import numpy  # noqa: F401
        import pandas  # noqa: F401
    except ImportError:
        return False
    return True


@unittest.skipUnless("LONGHAUL_PROGRAMS" in os.environ, "LONGHAUL_PROGRAMS names no folder with the programs")
class ARun(unittest.TestCase):
    def setUp(self) -> None:
        self.programs = Path(os.environ["LONGHAUL_PROGRAMS"])
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        (self.folder / "text.txt").write_text("in the beginning there was a text of some length. " * 200)

    def join(self, coordinator: longhaul.Coordinator) -> longhaul.Worker:
        worker = longhaul.join(
            coordinator.join_line,
            "here",
            program=self.programs / "worker",
            log=self.folder / "worker.log",
            device="cpu",
            threads=1,
            cache_dir=self.folder / "cache",
            data=self.folder / "text.txt",
            checkpoint_dir=self.folder / "checkpoints",
        )
        self.addCleanup(worker.close)
        return worker

    def start(self, text: str = RUN, **options: object) -> longhaul.Coordinator:
        config = self.folder / "run.toml"
        config.write_text(text)
        coordinator = longhaul.start(
            config,
            self.folder / "state",
            program=self.programs / "coordinator",
            listen="127.0.0.1:0",
            http="127.0.0.1:0",
            **options,
        )
        self.addCleanup(coordinator.close)
        return coordinator

    def test_a_run_is_started_joined_watched_and_its_checkpoint_read(self) -> None:
        coordinator = self.start(stay=True)
        self.assertEqual(coordinator.run.status()["phase"], "gathering")
        worker = self.join(coordinator)
        history = longhaul.History(coordinator.run)
        history.watch(for_s=120, every_s=0.2)
        last = coordinator.run.status()
        self.assertEqual((last["phase"], last["step"]), ("finished", 8), worker.log.read_text())
        self.assertEqual(history.looks[-1][1]["longhaul_step"], 8.0)
        self.assertEqual(worker.process.wait(60), 0, worker.log.read_text())
        said = [event["text"] for event in coordinator.run.events(follow=True)]
        self.assertTrue(said)

        kept = longhaul.curves(self.folder / "state")[-1]
        self.assertEqual(kept.about["name"], "from-python")
        self.assertEqual([kept.rounds[-1]["step"], kept.samples[-1]["step"]], [8, 8])
        losses = [point["loss"] for point in kept.rounds]
        self.assertAlmostEqual(losses[-1], last["loss"], places=5)

        found = longhaul.checkpoints(self.folder / "checkpoints")
        self.assertEqual([checkpoint.round for checkpoint in found][-1], 8)
        self.assertEqual(found[-1].config["model_type"], "gpt2")
        wide = [name for name in found[-1].names() if name.endswith("wte.weight")]
        self.assertEqual(found[-1].shape(wide[0])[1], 16)
        if numpy_and_pandas():
            values = found[-1].tensors()[wide[0]]
            self.assertEqual(values.shape, found[-1].shape(wide[0]))
            frame = found[-1].frame()
            self.assertAlmostEqual(frame.loc[wide[0], "mean"], float(values.mean()), places=6)
            self.assertTrue(0.0 < frame.loc[wide[0], "largest"] < 10.0)
            self.assertEqual(list(kept.frame()["loss"]), losses)
            self.assertEqual(kept.sample_frame()["tokens"].iloc[-1], kept.samples[-1]["tokens"])
            self.assertTrue(kept.frame()["at"].is_monotonic_increasing)
            table = history.frame()
            self.assertEqual(len(table), len(history.looks))
            self.assertEqual(table["longhaul_step"].iloc[-1], 8.0)

    def test_an_operator_does_from_python_what_the_command_line_does(self) -> None:
        coordinator = self.start()
        run = coordinator.run
        run.pause()
        self.assertTrue(run.status()["paused"])
        run.resume()
        self.assertFalse(run.status()["paused"])
        token = run.create_token(life_s=60, uses=2)
        self.assertIn("--token lh1.", token["command"])
        self.assertIn(token["id"], [known["id"] for known in run.tokens()])
        run.revoke_token(token["id"])
        self.assertEqual(run.members(), [])
        with self.assertRaises(longhaul.ApiError) as refused:
            run.drain("w9")
        self.assertGreaterEqual(refused.exception.status, 400)
        with self.assertRaises(longhaul.ApiError) as refused:
            longhaul.Run(run.address, token="guessed").stop()
        self.assertEqual(refused.exception.status, 401)
        self.assertEqual(longhaul.Run(run.address).status()["name"], "from-python", "reading wants no token here")
        self.assertEqual(coordinator.close(), 0)
        with self.assertRaises(longhaul.ApiError) as gone:
            run.status()
        self.assertIn(run.address, str(gone.exception))

    def test_a_look_ends_with_the_coordinator_that_ends_with_its_run(self) -> None:
        coordinator = self.start()
        self.join(coordinator)
        # Longer than a coordinator lingers after the run.
        phases = [status["phase"] for status in coordinator.run.watch(every_s=4)]
        self.assertEqual(phases[0], "gathering")
        self.assertEqual(coordinator.process.wait(60), 0, coordinator.log.read_text())
        self.assertEqual(list(coordinator.run.watch()), [])
        # And a run that is finished has nobody to join it.
        again = self.start(stay=True)
        self.assertIsNone(again.join_line)
        self.assertEqual([status["phase"] for status in again.run.watch()], ["finished"])

    def test_an_interrupt_of_the_notebook_is_not_for_what_it_started(self) -> None:
        script = (
            "import longhaul, os, signal, sys\n"
            "signal.signal(signal.SIGINT, lambda *_: None)\n"
            "program, worker, config, folder = sys.argv[1:]\n"
            "with longhaul.start(config, folder + '/state', program=program, listen='127.0.0.1:0', http='127.0.0.1:0') as head, \\\n"
            "     longhaul.join(head.join_line, 'here', program=worker, log=folder + '/worker.log', device='cpu', threads=1,\n"
            "                   cache_dir=folder + '/cache') as worker:\n"
            "    groups = [os.getpgid(child.process.pid) for child in (head, worker)]\n"
            "    os.killpg(os.getpgid(0), signal.SIGINT)\n"
            "    head.run.status()\n"
            "    print(os.getpgid(0) not in groups, head.running(), worker.running())\n"
        )
        config = self.folder / "run.toml"
        config.write_text(RUN.replace("workers = 1", "workers = 2"))
        arguments = [self.programs / "coordinator", self.programs / "worker", config, self.folder]
        command = [sys.executable, "-c", script, *map(str, arguments)]
        environment = {**os.environ, "PYTHONPATH": str(Path(longhaul.__file__).parent.parent)}
        said = subprocess.run(command, capture_output=True, text=True, env=environment, start_new_session=True)
        self.assertEqual(said.stdout, "True True True\n", said.stderr)

    @unittest.skipUnless(numpy_and_pandas(), "there is no NumPy with pandas")
    def test_the_example_of_the_page_runs(self) -> None:
        page = (Path(__file__).parent.parent / "README.md").read_text()
        example = page.split("```python\n")[1].split("```")[0]
        for written, here in [
            ('listen="0.0.0.0:4800"', 'listen="127.0.0.1:0", http="127.0.0.1:0"'),
            ('device="cpu"', 'device="cpu", threads=1, cache_dir="cache"'),
            ("every_s=5", "every_s=0.2"),
        ]:
            self.assertIn(written, example)
            example = example.replace(written, here)
        (self.folder / "run.toml").write_text(RUN)
        environment = {
            **os.environ,
            "PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(longhaul.__file__).parent.parent),
        }
        said = subprocess.run(
            [sys.executable, "-W", "error", "-c", example],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environment,
        )
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("run", said.stdout)

    def test_a_coordinator_that_does_not_start_says_why(self) -> None:
        with self.assertRaises(longhaul.DidNotStart) as failed:
            self.start(RUN.replace("workers = 1", "wrokers = 1"))
        self.assertIn("wrokers", str(failed.exception))
        # And of that alone: its log has earlier starts, too.
        with self.assertRaises(longhaul.DidNotStart) as failed:
            self.start(RUN.replace("steps = 8", "stpes = 8"))
        self.assertNotIn("wrokers", str(failed.exception))

    def test_what_is_not_ready_in_time_is_not_left_behind(self) -> None:
        (self.folder / "silent").write_text("#!/bin/sh\necho waiting for another\nexec sleep 600\n")
        (self.folder / "silent").chmod(0o755)
        with self.assertRaises(longhaul.DidNotStart) as failed:
            longhaul.start("run.toml", self.folder / "state", program=self.folder / "silent", timeout_s=0.5)
        self.assertIn("waiting for another", str(failed.exception))
        with self.assertRaises(longhaul.DidNotStart) as failed:
            longhaul.start("run.toml", self.folder / "state", program=self.folder / "missing")
        self.assertIn("there is no program", str(failed.exception))


if __name__ == "__main__":
    unittest.main()
