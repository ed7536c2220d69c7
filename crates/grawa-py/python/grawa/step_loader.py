"""Batches for frameworks that drive the training loop: they make their loaders before their optimizers, and count steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .torch_run import Run


class StepLoader:
    """The batches that a run deals to this worker, until the run is over. It is made before the run is joined, and bound to it with
    ``bind``. Its length is the whole run: frameworks take it as one epoch. A late worker gets fewer."""

    def __init__(self, dataset: Any, batch_size: int, **options: Any) -> None:
        self.dataset, self.batch_size, self._options = dataset, batch_size, options
        self._run: Run | None = None
        self._accumulate, self._steps = 1, 0

    def expect(self, steps: int, accumulate: int) -> None:
        """How long the run is: steps of the optimizer, and batches of each."""
        self._steps, self._accumulate = steps, accumulate

    def bind(self, run: Run) -> None:
        """The run that deals the batches."""
        self._run = run
        run.loader(self.dataset, self.batch_size, accumulate=self._accumulate, **self._options)

    def __len__(self) -> int:
        return self._steps * self._accumulate

    def __iter__(self) -> Iterator[Any]:
        run = self._run
        if run is None:
            raise RuntimeError("batches are dealt when training has begun; for other data use a torch.utils.data.DataLoader")
        while not run.is_over:
            yield from run.loader(self.dataset, self.batch_size, accumulate=self._accumulate, **self._options)
