"""How far a run is."""

from __future__ import annotations

from typing import NamedTuple


class Progress(NamedTuple):
    """The clock of the run: all workers have the same, also one that joined late. Use it for learning-rate schedules."""

    steps: int
    """Local steps of each worker."""
    epochs: float
    """Passes over the training set by all workers together."""
    seconds: float
    """Training time."""
    share: float
    """How much of the budget is spent: 0 at the start, 1 at the end."""
