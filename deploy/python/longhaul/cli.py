"""The command ``longhaul``: starts the programs that the wheel brings, or those in ``PATH``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import List, Optional

from .programs import program_path

#: What the command takes, and the program that each starts.
COMMANDS = {
    "demo": ("longhaul-demo", "train across an emulated slow link, on this machine"),
    "coordinator": ("coordinator", "the run's head: `longhaul coordinator up --config run.toml`"),
    "worker": ("worker", "a machine of the run: `longhaul worker join HOST:PORT --token …`"),
    "wan-emulator": ("wan-emulator", "a slow link to try things across"),
}


def usage() -> str:
    """Its help."""
    lines = ["usage: longhaul COMMAND ...", "", "commands (each has --help):"]
    lines += [f"  {name:<14}{what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(lines)


def main(arguments: Optional[List[str]] = None) -> int:
    """Becomes the program; returns only when there is none, with the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] not in COMMANDS:
        print(f"longhaul: there is no command {words[0]!r}\n\n{usage()}", file=sys.stderr)
        return 2
    name, _ = COMMANDS[words[0]]
    program = program_path(name)
    if not Path(program).is_absolute():
        print(
            f"longhaul: this package brings no programs, and {name} is not in PATH; install the wheel that "
            "`cargo xtask dist --wheel` makes, or build the programs (README.md of the sources)",
            file=sys.stderr,
        )
        return 127
    os.execv(program, [program, *words[1:]])
    raise AssertionError("execv returned")
