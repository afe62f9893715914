"""What needs no program: safetensors, metrics, join lines."""

import json
import socket
import tempfile
import threading
import unittest
from pathlib import Path

import longhaul
from longhaul.programs import _arguments, _parse_join_line


def written(folder: Path, header: object, values: bytes = b"", length: "int | None" = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(header).encode()
    size = len(text) if length is None else length
    (folder / "model.safetensors").write_bytes(size.to_bytes(8, "little") + text + values)
    return folder


class Files(unittest.TestCase):
    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)

    def test_checkpoints_are_found_in_the_order_of_their_rounds_and_those_being_written_are_not(self) -> None:
        for name in ["run/round-000120", "run/round-000040", "run/.round-000160", ".hidden/round-000200"]:
            written(self.folder / name, {})
        found = longhaul.checkpoints(self.folder)
        self.assertEqual([checkpoint.round for checkpoint in found], [40, 120])

    def test_one_that_is_damaged_or_thrown_away_does_not_hide_the_others(self) -> None:
        written(self.folder / "round-1", [1])
        written(self.folder / "round-2", {})
        (self.folder / "round-3").mkdir()
        (self.folder / "round-3" / "model.safetensors").symlink_to(self.folder / "gone")
        written(self.folder / "round-x", {})
        with self.assertWarnsRegex(UserWarning, "round-1"):
            found = longhaul.checkpoints(self.folder)
        self.assertEqual([checkpoint.round for checkpoint in found], [2])

    def test_values_are_those_in_the_file_whatever_their_type(self) -> None:
        try:
            import numpy
        except ImportError:
            self.skipTest("there is no NumPy")
        header = {
            "__metadata__": {"format": "pt"},
            "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
            "b": {"dtype": "BF16", "shape": [1, 2], "data_offsets": [8, 12]},
            "c": {"dtype": "I64", "shape": [0], "data_offsets": [12, 12]},
            "d": {"dtype": "F8_E5M2", "shape": [2], "data_offsets": [12, 14]},
            "e": {"dtype": "F8_E4M3", "shape": [4], "data_offsets": [14, 18]},
            "f": {"dtype": "U32", "shape": [1], "data_offsets": [18, 22]},
        }
        values = numpy.array([1.5, -2.0], "<f4").tobytes() + bytes([0x80, 0x3F, 0x00, 0xC0])
        # One and minus one and a half; one, the largest, the smallest, and a half less than nothing.
        values += bytes([0x3C, 0xBE]) + bytes([0x38, 0x7E, 0x01, 0xB0]) + bytes([0xFF] * 4)
        tensors = longhaul.Checkpoint(written(self.folder / "round-1", header, values)).tensors()
        self.assertEqual(tensors["a"].tolist(), [1.5, -2.0])
        self.assertEqual(tensors["b"].tolist(), [[1.0, -2.0]])
        self.assertEqual(tensors["c"].shape, (0,))
        self.assertEqual(tensors["d"].tolist(), [1.0, -1.5])
        self.assertEqual(tensors["e"].tolist(), [1.0, 448.0, 2.0**-9, -0.5])
        self.assertEqual(tensors["f"].tolist(), [0xFFFFFFFF])
        self.assertEqual(set(tensors), set(header) - {"__metadata__"})

    def test_a_file_that_is_not_what_it_says_is_refused_before_anything_of_it_is_used(self) -> None:
        entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        wrong = [
            ({"a": entry}, b"", None),
            ({"a": {**entry, "shape": [-2]}}, bytes(8), None),
            ({"a": {**entry, "shape": [3]}}, bytes(8), None),
            ({"a": {**entry, "dtype": "F7"}}, bytes(8), None),
            ({"a": {**entry, "data_offsets": [8, 0]}}, bytes(8), None),
            ({"a": {**entry, "data_offsets": [0.0, 8.0]}}, bytes(8), None),
            ({"a": {**entry, "shape": [2, True]}}, bytes(8), None),
            ({"a": 7}, bytes(8), None),
            ([1], bytes(8), None),
            ({}, b"", 1 << 62),
        ]
        for header, values, length in wrong:
            folder = written(self.folder / "round-1", header, values, length)
            with self.assertRaises(longhaul.DamagedCheckpoint, msg=str(header)):
                longhaul.Checkpoint(folder)
        deep = b"[" * 1_000_000
        (self.folder / "round-1" / "model.safetensors").write_bytes(len(deep).to_bytes(8, "little") + deep)
        with self.assertRaises(longhaul.DamagedCheckpoint):
            longhaul.Checkpoint(self.folder / "round-1")
        (self.folder / "round-1" / "model.safetensors").write_bytes(b"12")
        with self.assertRaises(longhaul.DamagedCheckpoint):
            longhaul.Checkpoint(self.folder / "round-1")

    def test_curves_are_read_without_what_a_crash_has_cut_short_and_of_other_releases_not(self) -> None:
        folder = self.folder / "history" / "a"
        folder.mkdir(parents=True)
        point = {"at_ms": 5, "round": 3, "step": 6, "loss": 2.0}
        sample = {"at_ms": 5, "step": 6, "round": 3, "training": 2, "run": [7, 0, 0, 0, 0, 9, 90, 5, 4, 3]}
        sample.update(sites=[[7, 0, 0, 0, 0, 9, 90]], ways=[[100.0, 0.5]], encodings=[[0.25, 4.0]])
        about = {"format": 1, "run": "a", "name": "one", "begun_ms": 1}
        lines = [{"run": about}, {"site": [0, "oslo"]}, {"way": [0, "oslo", "rome"]}, {"round": point}, {"sample": sample}]
        text = "\n".join(json.dumps(line) for line in lines) + '\n{"round": {"at_ms": 6, "ro'
        (folder / "points.jsonl").write_text(text)
        later = {**point, "round": 4, "loss": None}
        (folder / "last.json").write_text(json.dumps({"open": {"round": [later, 1], "sample": None}}))
        foreign = self.folder / "history" / "b"
        foreign.mkdir()
        (foreign / "points.jsonl").write_text(json.dumps({"run": {**about, "format": 2}}) + "\n")
        (one,) = longhaul.curves(self.folder)
        self.assertEqual([(at["round"], at["loss"]) for at in one.rounds], [(3, 2.0), (4, None)])
        row = one.samples[0]
        self.assertEqual((row["density of oslo"], row["value_bits of oslo"]), (0.25, 4.0))
        self.assertEqual((row["encode_ms"], row["bubble_ms"], row.get("bubble_ms of oslo")), (5, 3, None), "releases before had none")
        self.assertEqual((row["tokens"], row["wan_bytes of oslo"], row["round_trip_s of oslo → rome"]), (7, 9, 0.5))
        with self.assertRaises(longhaul.UnreadableHistory):
            longhaul.Curves(foreign)
        with self.assertRaises(longhaul.UnreadableHistory):
            longhaul.Curves(self.folder / "nowhere")

    def test_metrics_are_read_with_their_labels(self) -> None:
        text = '# HELP a b\nlonghaul_step 3.0\nlonghaul_workers{state="training"} 2\n# EOF\n'
        self.assertEqual(
            longhaul.parse_metrics(text), {"longhaul_step": 3.0, 'longhaul_workers{state="training"}': 2.0}
        )

    def test_a_join_line_is_one_that_a_coordinator_prints(self) -> None:
        parsed = _parse_join_line("worker join head:4800 --token lh1.abc --site SITE")
        self.assertEqual(parsed, ("head:4800", "lh1.abc"))
        for line in ["", "worker join", "worker join head:4800", "rm -rf lh1.abc now"]:
            with self.assertRaises(ValueError, msg=line):
                _parse_join_line(line)

    def test_what_answers_and_is_no_coordinator_is_an_api_error(self) -> None:
        answers = [b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n<p>"]
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve() -> None:
                for answer in answers:
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(4096)
                        connection.sendall(answer)

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            run = longhaul.Run("127.0.0.1:%d" % server.getsockname()[1])
            for answer in answers:
                with self.assertRaises(longhaul.ApiError, msg=str(answer)):
                    run.status()
            thread.join()

    def test_the_package_says_that_it_has_types(self) -> None:
        self.assertTrue((Path(longhaul.__file__).parent / "py.typed").is_file())

    def test_options_become_those_of_the_command_line(self) -> None:
        self.assertEqual(
            _arguments({"stay": True, "print_config": False, "listen": "x:1", "advertise": None}),
            ["--stay", "--listen=x:1"],
        )


if __name__ == "__main__":
    unittest.main()
