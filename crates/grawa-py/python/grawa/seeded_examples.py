"""Examples whose augmentation is a function of a seed and their number, whoever reads them."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class SeededExamples:
    """A data set that seeds PyTorch, NumPy and Python before each example. A data set with a generator of its own draws from that. Its other
    attributes are those of the data set: a ``worker_init_fn`` may read and set them."""

    _dataset: Any
    _seed: int

    def __init__(self, dataset: Any, seed: int) -> None:
        vars(self).update(_dataset=dataset, _seed=seed)
        if callable(getattr(dataset, "__getitems__", None)):
            # A DataLoader asks for it.
            vars(self).update(__getitems__=self._several)

    def __getattr__(self, name: str) -> Any:
        # Special methods are its own, and a copy that is being made has no data set yet.
        if name.startswith("__") or "_dataset" not in vars(self):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Any:
        _seed(self._seed + number)
        return self._dataset[number]

    def _several(self, numbers: list[int]) -> Any:
        _seed(self._seed + sum(numbers))
        return self._dataset.__getitems__(numbers)


def _seed(seed: int) -> None:
    # The generator itself: torch.manual_seed would also seed the GPUs.
    torch.random.default_generator.manual_seed(seed % 2**63)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


@contextmanager
def random_state_kept(device: torch.device | None) -> Iterator[None]:
    """Inside, draws of PyTorch, NumPy and Python leave those after it as they would have been."""
    numpy = sys.modules.get("numpy")
    python, numbers = random.getstate(), None if numpy is None else numpy.random.get_state()
    gpus = [device] if device is not None and device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(numbers)
