"""A coordinator and workers as processes of this one."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, List, Optional, Tuple, Union

from .api import ApiError, Run

# A worker leaves after the round, within 65 seconds; who alone has the model, or a part of it, stays until its checkpoint is written, and copied if another worker stays, for ten minutes more at most.
LEAVE_S_MAX = 690.0
# A coordinator is ready within a second; one that has to wait for another in etcd says nothing meanwhile.
START_S_MAX = 60.0
# Between looks whether it is ready, in seconds.
LOOK_S = 0.05
# From the last answer of a coordinator to its end, in seconds.
END_S_MAX = 5.0
# Of what a program wrote, as much is told when it did not start, in bytes.
TOLD_BYTES_MAX = 4000


# Where a wheel that brings the programs has them.
BUNDLE = Path(__file__).resolve().parent / "bundle"


def program_path(program: Union[str, Path]) -> str:
    """A program by its name: the wheel's own, or else the one in ``PATH``. A path stays as it is, and so does a name that is nowhere."""
    text = str(program)
    if os.sep in text:
        return text
    own = BUNDLE / "bin" / text
    found = None if own.is_file() else shutil.which(text)
    return str(own) if own.is_file() else (os.path.abspath(found) if found else text)


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

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Coordinator(_Program):
    """A coordinator that :func:`start` has started. Closing it does not end the run: its workers train on and wait for it."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path, run: Run, join_line: Optional[str]):
        super().__init__(process, log)
        self.run = run
        #: The line that joins a worker on another machine; none: the run is finished already.
        self.join_line = join_line


class Worker(_Program):
    """A worker that :func:`join` has started. Closing it lets it leave after the round."""


def start(
    config: Union[str, Path],
    state_dir: Union[str, Path] = "longhaul-state",
    *,
    program: Union[str, Path] = "coordinator",
    timeout_s: float = START_S_MAX,
    **options: Any,
) -> Coordinator:
    """Starts ``coordinator up``, and waits until it is ready. Options are those of the command line, with underscores:
    ``listen="0.0.0.0:4800"``, ``stay=True``. Without ``stay`` it ends soon after its run is finished."""
    state = Path(state_dir)
    state.mkdir(parents=True, exist_ok=True)
    token_file = Path(options.setdefault("token_file", state / "join-token"))
    command = [program_path(program), "up", "--config", str(config), "--state-dir", str(state), *_arguments(options)]
    log, address_file = state / "coordinator.log", state / "http-address"
    written = log.stat().st_size if log.exists() else 0
    old_token, old_address = _stamp(token_file), _stamp(address_file)
    process = _spawn(command, log, dict(os.environ))
    give_up = time.monotonic() + timeout_s
    try:
        while True:
            if process.poll() is not None:
                raise DidNotStart(_told(log, written))
            if _stamp(token_file) not in (None, old_token):
                return _started(process, log, state, token_file.read_text().strip())
            if _stamp(address_file) not in (None, old_address) and _is_finished(state):
                return _started(process, log, state, None)
            if time.monotonic() > give_up:
                raise DidNotStart(f"it was not ready within {timeout_s} s\n{_told(log, written)}")
            time.sleep(LOOK_S)
    except BaseException:
        # An interrupt, too: nobody would have it in hand.
        if process.poll() is None:
            process.terminate()
            process.wait()
        raise


def _started(process: "subprocess.Popen[str]", log: Path, state: Path, line: Optional[str]) -> Coordinator:
    run = Run.of(state)

    def is_over() -> bool:
        # One that no longer answers is on its way out.
        try:
            return process.wait(END_S_MAX) == 0
        except subprocess.TimeoutExpired:
            return False

    run.is_over = is_over
    return Coordinator(process, log, run, line)


def _stamp(path: Path) -> Optional[Tuple[int, int]]:
    """Of a file that is replaced as a whole: another one each time."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _is_finished(state: Path) -> bool:
    try:
        return bool(Run.of(state, timeout_s=1.0).status()["phase"] == "finished")
    except (ApiError, KeyError, TypeError):
        return False


def _told(log: Path, since: int) -> str:
    """The end of what was written since then, as a log has earlier runs, too."""
    with log.open("rb") as file:
        file.seek(max(since, log.stat().st_size - TOLD_BYTES_MAX))
        return file.read().decode(errors="replace")


def _spawn(command: List[str], log: Path, environment: "dict[str, str]") -> "subprocess.Popen[str]":
    with log.open("a") as output:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                text=True,
                env=environment,
                # An interrupt of the notebook, which all processes of its group get, is not for them.
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise DidNotStart(f"there is no program {command[0]}: say program=\"target/release/…\"") from error


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
    command = [program_path(program), "join", coordinator, "--site", site, *_arguments(options)]
    path = Path(log)
    # Other users of the machine see command lines.
    environment = {**os.environ, "LONGHAUL_TOKEN": token}
    environment.pop("LONGHAUL_TOKEN_FILE", None)
    process = _spawn(command, path, environment)
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
