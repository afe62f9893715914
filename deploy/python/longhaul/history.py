"""Metrics over time, as a table."""

from __future__ import annotations

import re
import time
from typing import Any, Dict, List, Tuple

from .api import ApiError, Run

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")


def parse_metrics(text: str) -> Dict[str, float]:
    """Metrics by name and labels, as ``longhaul_workers{state="training"}``."""
    metrics = {}
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.match(line)
        if match is not None:
            labels = match["labels"]
            metrics[match["name"] + (f"{{{labels}}}" if labels else "")] = float(match["value"])
    return metrics


class History:
    """What a run's metrics were, look by look."""

    def __init__(self, run: Run):
        self._run = run
        #: Unix time in seconds and the metrics, oldest first.
        self.looks: List[Tuple[float, Dict[str, float]]] = []

    def look(self) -> Dict[str, float]:
        """Looks once, and remembers."""
        metrics = parse_metrics(self._run.metrics())
        self.looks.append((time.time(), metrics))
        return metrics

    def watch(self, for_s: float, every_s: float = 1.0) -> None:
        """Looks now and then for so many seconds, or until the run is finished."""
        end = time.monotonic() + for_s
        while True:
            try:
                finished = self.look().get('longhaul_phase{phase="finished"}') == 1.0
            except ApiError:
                if self._run.is_over():
                    return
                raise
            left = end - time.monotonic()
            if finished or left <= 0:
                return
            time.sleep(min(every_s, left))

    def frame(self) -> Any:
        """A pandas frame with a row for each look, by time, and a column for each metric."""
        import pandas

        times = pandas.to_datetime([at for at, _ in self.looks], unit="s", utc=True)
        return pandas.DataFrame([metrics for _, metrics in self.looks], index=pandas.Index(times, name="time"))
