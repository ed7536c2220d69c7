"""Distributed training that seldom communicates.

`grawa.join(model, optimizer)` trains a PyTorch model with other workers; `grawa.Session` does the same for arrays of any framework.
Start workers with `grawa launch --workers 4 -- python train.py`, and more of them, from any machine and at any time, with
`grawa join HOST:PORT --key FILE -- python train.py`. Without either the program trains alone.

    with grawa.join(model, optimizer, method="local-lgrawa:period=32") as run:
        for epoch in run.epochs(60):
            for x, y in run.loader(data, batch_size=128):
                loss_of(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            with run.averaged():
                print(epoch, test(model))

`grawa.export(model, example, "net.json")` writes a convolutional network for grawa's own engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._native import VERSION as __version__
from ._native import GrawaError
from .export import ExportError, export
from .progress import Progress
from .round import Round
from .session import Session

if TYPE_CHECKING:
    from .torch_run import Run, join

__all__ = ["ExportError", "GrawaError", "Progress", "Round", "Run", "Session", "__version__", "export", "join"]


def __getattr__(name: str) -> Any:
    # PyTorch is loaded only by those who use it.
    if name in ("join", "Run"):
        try:
            from . import torch_run
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"grawa.{name} needs PyTorch: pip install torch; grawa.Session works without it", name="torch"
            ) from error
        return getattr(torch_run, name)
    raise AttributeError(f"module 'grawa' has no attribute {name!r}")
