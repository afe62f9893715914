"""Start, join and watch runs of Longhaul, and read their checkpoints.

README.md of this package shows how they go together.
"""

from .api import ApiError, Run
from .checkpoint import Checkpoint, DamagedCheckpoint, checkpoints
from .curves import Curves, UnreadableHistory, curves
from .history import History, parse_metrics
from .programs import Coordinator, DidNotStart, Worker, join, start

__all__ = [
    "ApiError",
    "Checkpoint",
    "Coordinator",
    "Curves",
    "DamagedCheckpoint",
    "DidNotStart",
    "History",
    "Run",
    "UnreadableHistory",
    "Worker",
    "checkpoints",
    "curves",
    "join",
    "parse_metrics",
    "start",
]
