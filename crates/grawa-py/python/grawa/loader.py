"""Batches of a data set, dealt to all workers: no example twice in an epoch, and anew when members change."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler

from ._native import ExampleOrder
from .seeded_examples import SeededExamples

if TYPE_CHECKING:
    from .torch_run import Run


# A loop over passes that knows nothing of the end would go on for ever; one over a number of epochs ends by itself, and is not that long.
MOST_EMPTY_PASSES = 100_000
EMPTY_PASSES_TO_WARN = 1000


class DealtBatches(Sampler[list[int]]):
    """A batch sampler: the examples of this worker's batches, one list for each. A loader may ask ahead. When members change, batches
    that were asked for ahead belong to others: ``is_next`` says so, and what follows is dealt anew. So are the batches of steps that
    were not taken: those that a ``GradScaler`` skipped, for example."""

    def __init__(self, run: Run, examples: int, batch_size: int, accumulate: int = 1) -> None:
        self._run, self._batch, self._accumulate = run, batch_size, accumulate
        self._order = ExampleOrder(run.seed, examples)
        # What was asked for and not handed out: generation, and shard, of, step, part of the step.
        self._ahead: deque[tuple[int, tuple[int, int, int, int]]] = deque()
        self._generation = 0
        self._restarts = True
        self._part = 0

    def __iter__(self) -> Iterator[list[int]]:
        # Steps of this worker before the batch, and the part of that step.
        taken, part = 0, 0
        division: tuple[int, int] | None = None
        while True:
            session = self._run.session
            if self._restarts or division != session.shard[:2]:
                self._restarts = False
                self._generation += 1
                division = session.shard[:2]
                taken, part = session._native.steps_taken(), 0
            else:
                part = (part + 1) % self._accumulate
                taken += part == 0
            place = (*session._native.shard(taken), part)
            self._ahead.append((self._generation, place))
            yield self.examples(place)

    def examples(self, place: tuple[int, int, int, int]) -> list[int]:
        """The examples of a place."""
        shard, of, step, part = place
        whole = self._order.batch(shard, of, step, self._batch * self._accumulate)
        return whole[part * self._batch : (part + 1) * self._batch]

    def is_next(self) -> bool:
        """Whether the oldest batch that was asked for is the one that this worker must train on now."""
        generation, place = self._ahead.popleft()
        if place[3] == 0:
            self._part = 0
        if place == (*self._run.shard, self._part):
            self._part = (self._part + 1) % self._accumulate
            return True
        # The rest of this generation is of no use either; the next one begins where the run is.
        if generation == self._generation:
            self._restarts = True
        return False


class Pass(Iterator[Any]):
    """One pass of a loader. When the run is over it ends with :class:`RunIsOver`: a ``for`` loop takes that as its end, and a bare
    ``next()`` shows why there is no further batch."""

    def __init__(self, run: Run, batches: Iterator[Any]) -> None:
        self._run, self._batches = run, batches

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            if self._run.is_over:
                raise RunIsOver("the run is over: look at run.is_over before next(batches)") from None
            raise


class RunIsOver(StopIteration):
    """What ``next(batches)`` raises when the run is over."""


class Loader:
    """The batches of a ``torch.utils.data.DataLoader``, dealt by the run. One pass ends with the epoch of the run: with the first round
    after all workers together have read every example once. It takes the arguments of a ``DataLoader`` except those that say which
    examples are read: ``sampler``, ``batch_sampler``, ``shuffle``, ``drop_last``."""

    def __init__(self, run: Run, dataset: Any, batch_size: int, accumulate: int, **options: Any) -> None:
        self._run, self.dataset, self.batch_size = run, dataset, batch_size
        self.accumulate, self._options = accumulate, options
        self._batches = DealtBatches(run, len(dataset), batch_size, accumulate)
        self._loader: DataLoader[Any] = DataLoader(dataset, batch_sampler=self._batches, **options)
        # One for all epochs: what was read ahead at the end of one is of use in the next.
        self._iterator: Iterator[Any] | None = None
        self._empty_passes = 0

    def __iter__(self) -> Iterator[Any]:
        return Pass(self._run, self._pass())

    def _pass(self) -> Iterator[Any]:
        run = self._run
        run.start()
        run.begin_epoch()
        self._empty_passes += run.is_over
        if self._empty_passes == EMPTY_PASSES_TO_WARN:
            warnings.warn(
                f"the run is over, and its loader was asked for another pass {EMPTY_PASSES_TO_WARN} times: end your loop when run.is_over",
                stacklevel=3,
            )
        if self._empty_passes >= MOST_EMPTY_PASSES:
            raise RuntimeError(
                f"the run is over, and its loader was asked for another pass {MOST_EMPTY_PASSES} times: end your loop when run.is_over"
            )
        if self._iterator is None:
            self._iterator = iter(self._loader)
        while not (run.is_over or run.is_epoch_over):
            batch = next(self._iterator)
            if self._batches.is_next():
                run.note_batch(self)
                yield batch
        if run.is_over:
            self._iterator = None

    def __len__(self) -> int:
        """About how many batches a pass has for this worker: each pass ends with a round, and members come and go."""
        workers = self._run._count_workers()
        return max(1, math.ceil(len(self.dataset) / (self.batch_size * workers)))

    def is_same(self, dataset: Any, batch_size: int, accumulate: int, options: dict[str, Any]) -> bool:
        """Whether a loader of these arguments would be like this one."""
        mine = (self.batch_size, self.accumulate, self._options)
        return dataset is self.dataset and mine == (batch_size, accumulate, options)

    def some(self, batches: int) -> Iterator[Any]:
        """Some batches of examples that count for nothing, to recalibrate batch norm: by the run's seed, the same on all workers and each
        time, one pass at most. Nothing else draws from the random state."""
        size = min(self.batch_size, len(self.dataset))
        # Another order than that of the run.
        seed = self._run.seed ^ 0x5EED
        order = ExampleOrder(seed, len(self.dataset))
        chosen = [order.batch(0, 1, n, size) for n in range(max(1, min(batches, len(self.dataset) // size)))]
        options = {name: value for name, value in self._options.items() if name != "persistent_workers"}
        options["generator"] = torch.Generator().manual_seed(seed % 2**63)
        return iter(DataLoader(SeededExamples(self.dataset, seed), batch_sampler=chosen, **options))


def checked(dataset: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a loader without those that the run makes up for; errors where the examples cannot be dealt."""
    if isinstance(dataset, DataLoader):
        raise TypeError("this is a DataLoader, and the run deals the examples itself: give its dataset, as in run.loader(loader.dataset, batch_size)")
    if isinstance(dataset, IterableDataset) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(
            f"the run deals examples by their numbers, and a {type(dataset).__name__} has none: a data set with __len__ and __getitem__ is "
            "needed; or divide the stream by run.shard in a loop of your own, with grawa.join(..., batch=, examples=) and run.start()"
        )
    for name in ("sampler", "batch_sampler", "drop_last"):
        if options.get(name):
            raise TypeError(f"{name} is not an option here: the run deals the examples to all workers in a random order")
    if options.get("shuffle"):
        warnings.warn("shuffle=True is not needed: the run deals the examples in a random order anyway", stacklevel=4)
    return {name: value for name, value in options.items() if name not in ("sampler", "batch_sampler", "shuffle", "drop_last")}
