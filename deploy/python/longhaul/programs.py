"""A coordinator and workers as processes of this one."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any, List, Optional, Union

from .api import Run

# A worker leaves after the round, within 30 seconds.
LEAVE_S_MAX = 45.0


class DidNotStart(Exception):
    """A program ended before it was ready; the text is what it said."""


class _Program:
    """A child process that leaves in an orderly way when it is closed, as at the end of a ``with``."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path):
        self.process = process
        #: Where it writes what it says.
        self.log = log

    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def close(self) -> int:
        """Asks it to end (SIGTERM) and waits; answers its exit code."""
        if self.running():
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(LEAVE_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Coordinator(_Program):
    """A coordinator that :func:`start` has started. Closing it does not end the run: its workers train on and wait for it."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path, run: Run, join_line: str):
        super().__init__(process, log)
        self.run = run
        #: The line that joins a worker on another machine.
        self.join_line = join_line


class Worker(_Program):
    """A worker that :func:`join` has started. Closing it lets it leave after the round."""


def start(
    config: Union[str, Path],
    state_dir: Union[str, Path] = "longhaul-state",
    *,
    program: Union[str, Path] = "coordinator",
    **options: Any,
) -> Coordinator:
    """Starts ``coordinator up``, and waits until it is ready. Options are those of the command line, with underscores:
    ``listen="0.0.0.0:4800"``, ``stay=True``."""
    state = Path(state_dir)
    command = [str(program), "up", "--config", str(config), "--state-dir", str(state), *_arguments(options)]
    state.mkdir(parents=True, exist_ok=True)
    log = state / "coordinator.log"
    with log.open("a") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        )
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        process.stdout.close()
        process.wait()
        raise DidNotStart(log.read_text()[-4000:])
    return Coordinator(process, log, Run.of(state), line)


def join(
    join_line: str,
    site: str,
    *,
    program: Union[str, Path] = "worker",
    log: Union[str, Path] = "worker.log",
    **options: Any,
) -> Worker:
    """Starts a worker on this machine with a line that the coordinator printed. Options are those of ``worker join``:
    ``device="cuda:0"``, ``threads=4``, ``cache_dir="cache"``."""
    coordinator, token = _parse_join_line(join_line)
    command = [str(program), "join", coordinator, "--site", site, *_arguments(options)]
    path = Path(log)
    with path.open("a") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            text=True,
            # Other users of the machine see command lines.
            env={**os.environ, "LONGHAUL_TOKEN": token},
        )
    return Worker(process, path)


def _parse_join_line(line: str) -> "tuple[str, str]":
    """The coordinator's address and the token of ``worker join HOST:PORT --token lh1.… --site SITE``."""
    words = shlex.split(line)
    token = next((word for word in words if word.startswith("lh1.")), None)
    if words[:2] != ["worker", "join"] or len(words) < 3 or token is None:
        raise ValueError(f"this is not a line that a coordinator prints for workers: {line!r}")
    return words[2], token


def _arguments(options: "dict[str, Any]") -> List[str]:
    """``stay=True, listen="x"`` as ``--stay --listen=x``."""
    arguments = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            arguments.append(option)
        elif value is not None and value is not False:
            arguments.append(f"{option}={value}")
    return arguments
