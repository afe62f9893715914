"""The curves that a coordinator keeps of each run, in its state directory: ``history/RUN/``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Union

#: What a sample's sums are of, in the file's order.
_DONE = ("tokens", "compute_ms", "wait_ms", "data_wait_ms", "checkpoint_ms", "wan_bytes", "dense_bytes", "encode_ms",
         "encode_wait_ms", "bubble_ms")
_FORMAT = 1


class UnreadableHistory(Exception):
    """There is none, or it is of a release that this package does not know."""


class Curves:
    """What is known of one run over time. Long runs have one point for several rounds."""

    def __init__(self, folder: Union[str, Path]):
        self.folder = Path(folder)
        #: The run's name, id and beginning, and what it trains.
        self.about: Dict[str, Any] = {}
        #: Rounds, oldest first: loss, learning rate, norm of the gradient, validation, ...
        self.rounds: List[Dict[str, Any]] = []
        #: Moments, oldest first: what workers had done by then, all together and by site, and what ways carry.
        self.samples: List[Dict[str, Any]] = []
        self._sites: Dict[int, str] = {}
        self._ways: Dict[int, str] = {}
        samples: List[Dict[str, Any]] = []
        for kind, value in _lines(self.folder / "points.jsonl"):
            if kind == "run":
                self.about = value
            elif kind == "site":
                self._sites[value[0]] = value[1]
            elif kind == "way":
                self._ways[value[0]] = f"{value[1]} → {value[2]}"
            elif kind == "round":
                self.rounds.append(value)
            elif kind == "sample":
                samples.append(value)
        if self.about.get("format") != _FORMAT:
            raise UnreadableHistory(f"{self.folder} has no history of format {_FORMAT}")
        newest = _newest(self.folder / "last.json")
        # A point that waits for others has the number of the last of them.
        if newest.get("round") and (not self.rounds or newest["round"]["round"] > self.rounds[-1]["round"]):
            self.rounds.append(newest["round"])
        if newest.get("sample") and (not samples or newest["sample"]["at_ms"] > samples[-1]["at_ms"]):
            samples.append(newest["sample"])
        self.samples = [self._named(sample) for sample in samples]

    def _named(self, sample: Dict[str, Any]) -> Dict[str, Any]:
        """A sample with a key for each number."""
        row = {key: sample[key] for key in ("at_ms", "step", "round", "training")}
        row.update(zip(_DONE, sample["run"]))
        for place, done in enumerate(sample["sites"]):
            row.update((f"{name} of {self._sites.get(place, place)}", value) for name, value in zip(_DONE, done))
        for place, way in enumerate(sample["ways"]):
            name = self._ways.get(place, place)
            row[f"bytes_per_s of {name}"], row[f"round_trip_s of {name}"] = way[0], way[1]
        for place, encoding in enumerate(sample.get("encodings", ())):
            if encoding is not None:
                name = self._sites.get(place, place)
                row[f"density of {name}"], row[f"value_bits of {name}"] = encoding
        return row

    def frame(self) -> Any:
        """A pandas frame with a row for each round, by its number."""
        import pandas

        return _with_time(pandas.DataFrame(self.rounds)).set_index("round")

    def sample_frame(self) -> Any:
        """A pandas frame with a row for each sample, by time. Sums are since the run began."""
        import pandas

        return _with_time(pandas.DataFrame(self.samples)).set_index("at")


def curves(state_dir: Union[str, Path]) -> List[Curves]:
    """Of all runs in a coordinator's state directory that can be read, the oldest first."""
    found = []
    for points in Path(state_dir).glob("history/*/points.jsonl"):
        try:
            found.append(Curves(points.parent))
        except UnreadableHistory:
            continue
    return sorted(found, key=lambda one: one.about["begun_ms"])


def _lines(path: Path) -> Iterator[Any]:
    """Kind and value of each line; a last one that a crash has cut short, or a damaged one, is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    ((kind, value),) = json.loads(line).items()
                except (ValueError, AttributeError):
                    continue
                yield kind, value
    except OSError as error:
        raise UnreadableHistory(f"read {path}: {error}") from error


def _newest(path: Path) -> Dict[str, Optional[Dict[str, Any]]]:
    """Points that are not in the file of points yet."""
    try:
        waiting = json.loads(path.read_text(encoding="utf-8")).get("open", {})
    except (OSError, ValueError, AttributeError):
        return {}
    return {kind: point[0] for kind, point in waiting.items() if point}


def _with_time(frame: Any) -> Any:
    import pandas

    frame.insert(0, "at", pandas.to_datetime(frame.pop("at_ms"), unit="ms", utc=True))
    return frame
