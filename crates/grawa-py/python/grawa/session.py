"""A session for arrays of any framework."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import _native
from .arrays import array_of
from .checkpoint_file import keep_checkpoint, kept_checkpoint
from .progress import Progress
from .round import Round

_alone_noted = False


class Session:
    """A worker's part in a run, for a training loop of yours on NumPy arrays (or any with ``__dlpack__``).

    The session counts your steps and says what is due; parameters are one flat array of 32-bit floats, which rounds change in place.

        x = numpy.zeros(1000, dtype=numpy.float32)
        session = grawa.Session(x, method="mean:period=16,pull=1", budget="2000step")
        while (due := session.due) != "end":
            if due == "step":
                loss, gradient = loss_and_gradient(x)
                x -= 0.1 * gradient
                session.step(loss)
            elif due == "round":
                session.round(x)
            else:
                model = session.evaluated_model(x)
        session.finish()

    Started by ``grawa launch`` or ``grawa join``, it finds the group by itself; ``coordinator="HOST:PORT"`` and ``key`` name another.
    Otherwise the worker is alone, which is printed once. All workers must give the same arguments; the first one defines the run, and
    one that differs gets a ``ValueError`` that names what differs.

    ``patience``: how many seconds to wait for the coordinator. ``wait``: how many seconds a round waits at least for a worker that is late;
    one that it goes on without loses its steps since the last round. By default 2, longer where rounds vary or are rare.
    """

    def __init__(
        self,
        parameters: Any,
        *,
        method: str = "mean",
        budget: str,
        tensors: Mapping[str, Sequence[int]] | Iterable[tuple[str, Sequence[int]]] | None = None,
        statistics: Iterable[tuple[str, Sequence[int]]] = (),
        batch: int = 1,
        examples: int = 1,
        evaluate: str | None = None,
        seed: int = 0,
        pace: str = "even",
        wire: str = "f32",
        name: str = "a model",
        patience: float = 60.0,
        wait: float | None = None,
        coordinator: str | None = None,
        key: str | os.PathLike[str] | None = None,
        listen: str = "127.0.0.1:0",
        host: str | None = None,
        checkpoint: bytes | None = None,
        _buffers: str | None = None,
    ) -> None:
        if coordinator is None:
            _refuse_torchrun()
        array, length = array_of(parameters)
        if tensors is None:
            tensors = [("parameters", [length])]
        pairs = list(tensors.items() if isinstance(tensors, Mapping) else tensors)
        named = [(name_, [int(size) for size in shape]) for name_, shape in pairs]
        total = sum(_product(shape) for _, shape in named)
        if total != length:
            raise ValueError(f"the tensors have {total} numbers in all, and the array of parameters {length}")
        statistics = [(name_, [int(size) for size in shape]) for name_, shape in statistics]
        place = None
        if coordinator is not None:
            place = (coordinator, None if key is None else os.fspath(key), listen, host)
        if checkpoint is None:
            checkpoint = kept_checkpoint(os.environ.get("GRAWA_OUT"))
        self._length = length
        try:
            self._native = _native.join(
                method=method,
                tensors=named,
                parameters=array,
                budget=budget,
                name=name,
                evaluate=evaluate,
                batch=batch,
                examples=examples,
                seed=seed,
                pace=pace,
                wire=wire,
                patience=patience,
                wait=wait,
                statistics=statistics,
                buffers=_buffers,
                place=place,
                checkpoint=checkpoint,
            )
        except _native.RunEnded as error:
            # Nothing is left to do, and that is no failure of this program.
            warnings.warn(str(error), stacklevel=2)
            self._native, self.has_missed_run = MissedRun(), True
        self._counts = sum(_product(shape) for _, shape in statistics)
        self._process, self._thread = os.getpid(), threading.get_ident()
        self.worker: int = self._native.worker()
        self.members: list[int] = self._native.members()
        self._progress = Progress(*self._native.progress())
        if self._native.is_alone():
            _note_alone()

    @property
    def due(self) -> str:
        """What comes next: ``"step"``, ``"round"``, ``"evaluate"`` or ``"end"``. Another call is an error."""
        return self._native.due()

    @property
    def workers(self) -> int:
        """Workers that the run began with."""
        return self._native.workers()

    @property
    def is_alone(self) -> bool:
        """Whether this worker found no group."""
        return self._native.is_alone()

    @property
    def is_first(self) -> bool:
        """Whether this worker has the lowest number of those in the last round: the one that prints. At the end exactly one worker is it,
        and stays it when others leave; one that has ended without the others is not. After ``stop(together=True)`` it ends the run, with
        all others, before it answers."""
        if self._has_stopped:
            self._end_if_stopped()
        return self._has_lowest_number()

    def _has_lowest_number(self) -> bool:
        return self.worker in self.members and self.worker == min(self.members)

    def _end_if_stopped(self) -> bool:
        """Where all were asked to stop, and this worker has left its loop: the end, together with all others. Not on other threads, which do
        not know whether it has."""
        if threading.get_ident() != self._thread or os.getpid() != self._process:
            return False
        try:
            if self._native.due() == "end" or not self._native.is_stopping():
                return False
        except _native.GrawaError:
            # It is over, or in a round.
            return False
        self._end_stopped()
        self._note_members()
        return True

    def _end_stopped(self) -> None:
        self._native.end_stopped()

    def _note_members(self) -> None:
        self.members, self.worker = self._native.members(), self._native.worker()

    @property
    def wants_norms(self) -> bool:
        """Whether each step needs the norm of each tensor's gradient."""
        return self._native.wants_norms()

    @property
    def wants_loss(self) -> bool:
        """Whether the method scores workers by their losses, so that each step needs one."""
        return self._native.wants_loss()

    @property
    def score_seed(self) -> int | None:
        """If the method scores a batch: the seed to draw it with, for the next round. Workers with a common batch have the same."""
        found = self._native.score_batch()
        return None if found is None else found[0]

    @property
    def shard(self) -> tuple[int, int, int]:
        """Which examples this worker reads next: its shard, of how many, and the number of the batch in it. At ``pace="free"`` batches are
        given one by one: ``(0, 1, n)`` is the n-th of all."""
        return self._native.shard()

    @property
    def progress(self) -> Progress:
        """The clock of the run; after the end, where it ended."""
        try:
            self._progress = Progress(*self._native.progress())
        except _native.GrawaError:
            pass
        return self._progress

    @property
    def prox(self) -> float:
        """The strength of the pull toward the centre after each step; 0 where the method has none."""
        return self._native.prox()

    def step(self, loss: float = float("nan"), norms: Sequence[float] = (), rate: float | None = None) -> str:
        """Counts a local step, and says what is due. ``slowmo`` and ``qsr`` need the learning ``rate`` of your optimizer."""
        return self._native.step(float(loss), list(norms), None if rate is None else float(rate))

    def step_unmeasured(self, rate: float | None = None) -> str:
        """Counts a local step whose loss and norms come later: reading them from a device at each step would make it wait."""
        return self._native.step_unmeasured(None if rate is None else float(rate))

    def measured(self, losses: Sequence[float], norms: Sequence[Sequence[float]] = ()) -> None:
        """The losses of the steps that were not measured, and the norms of each, in their order; before the next round."""
        self._native.measured(list(losses), list(norms))

    def round(self, parameters: Any, scores: Sequence[float] = ()) -> Round | None:
        """Holds a round with all workers, and pulls the parameters in place. None if there was none: the budget ended between two
        rounds, or there is no connection; then training continues, and the round is due again after the next step.

        Python's lock is released. Ctrl-C is raised when the round is over, a second one at once."""
        is_held = self._round([array_of(parameters, self._length)], scores)
        return self._last_round() if is_held else None

    def _round(
        self, arrays: list[tuple[Any, int]], scores: Sequence[float] = (), meanwhile: Callable[[], None] | None = None
    ) -> bool:
        """The same for parameters in several arrays, each given with its length: whether a round was held. ``meanwhile`` is called
        during the round; what it raises is raised when the round is over."""
        held = self._native.round(list(scores), arrays, meanwhile)
        text, members, events, self.was_replaced, self.is_out_of_contact, warning = held
        if warning is not None:
            warnings.warn(warning, stacklevel=3)
        if not self.is_out_of_contact:
            self.members, self.worker = members, self._native.worker()
        if text is None:
            return False
        self._answer = (text, events, self.was_replaced)
        return True

    def _last_round(self) -> Round | None:
        """The last round that was held. The dict is made when somebody asks for it: many rounds need none."""
        if self._answer is not None:
            self._held, self._answer = Round.parse(*self._answer), None
        return self._held

    _answer: tuple[str, list[str], bool] | None = None
    _held: Round | None = None
    was_replaced = False
    """Whether the last round replaced the parameters: then drop the state of your optimizer."""
    _has_stopped = False
    has_ended_alone = False
    """Whether the run ended for this worker without the others: the coordinator was out of reach for longer than its patience, or they ended
    it while this worker was away."""
    has_missed_end = False
    """Whether the others ended the run without this worker."""
    was_stopped = False
    """Whether all were asked to stop before the budget was spent."""
    has_missed_run = False
    is_out_of_contact = False
    """Whether the last round found no connection to the others."""

    def evaluated_model(self, parameters: Any, out: Any = None, statistics: Any = None) -> Any:
        """The model that the method evaluates, made of the parameters of all workers; a new NumPy array unless ``out`` is given. None if
        this worker lost its connection meanwhile. The parameters stay as they are.

        ``statistics`` are this worker's running statistics, those named in the settings of the session; the average of all workers' is written
        over them. Tensors named ``….running_mean`` and ``….running_var`` are pairs: a variance includes the differences of the means."""
        array, _ = array_of(parameters, self._length, writable=False)
        if out is None:
            import numpy

            out = numpy.empty(self._length, dtype=numpy.float32)
        counts = None if statistics is None else array_of(statistics, self._counts)[0]
        found = self._native.evaluated_model(array, array_of(out, self._length)[0], counts)
        if not found:
            return None
        self._note_members()
        self._keep_in_folder()
        return out

    def centre(self, out: Any = None) -> Any:
        """The centre after the last round; a new NumPy array unless ``out`` is given."""
        if out is None:
            import numpy

            out = numpy.empty(self._length, dtype=numpy.float32)
        self._native.centre(array_of(out, self._length)[0])
        return out

    def checkpoint(self) -> bytes | None:
        """What a run needs to continue if all workers are lost: give it to the sessions that join the same run again. None alone."""
        return self._native.checkpoint()

    def stop(self, together: bool = False) -> None:
        """Asks this worker to leave within a step, or all workers to stop together. From any thread, also during a round. After
        ``stop(together=True)`` a loop may be left at once: ``is_first``, ``finish`` and ``leave`` then wait for the others."""
        self._native.stop(together)
        self._has_stopped |= together

    def finish(self) -> Progress:
        """Reports the end of the run, which must be due, or all were asked to stop."""
        self._end_if_stopped()
        progress = self.progress
        self.has_ended_alone, self.has_missed_end = self._native.has_ended_alone(), self._native.has_missed_end()
        self.was_stopped = self._native.is_stopping()
        self._note_members()
        if not self.has_ended_alone:
            self._keep_in_folder()
        self.members = self._native.finish()
        if self.has_ended_alone and not self.has_missed_run:
            why = "the coordinator was out of reach at the end of the run"
            if self.has_missed_end:
                why = "the others ended the run while this worker was away"
            elif self.was_stopped:
                why = "the run was stopped, and this worker could not wait for the others"
            words = "this worker has ended with its own parameters, and has no model that was made of those of all"
            warnings.warn(f"{why}: {words}", stacklevel=2)
        return progress

    def leave(self) -> None:
        """Leaves the run; the others continue. If all were asked to stop, it ends the run together with them."""
        if self._end_if_stopped():
            self.finish()
        self._native.leave()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        # A process that was forked inside the block is not the worker.
        if os.getpid() == self._process:
            # After an error nobody is waited for.
            if error is None:
                self.leave()
            else:
                self._native.leave()

    def _keep_in_folder(self) -> None:
        """Under ``grawa launch`` the first worker keeps the run's folder up to date, so that a run that was stopped can continue."""
        folder = os.environ.get("GRAWA_OUT")
        if not folder or not self._has_lowest_number() or self.is_alone:
            return
        state = self._native.checkpoint()
        if state is not None:
            keep_checkpoint(folder, state)


class MissedRun:
    """In the place of the native session, where the run had ended before this worker could join it."""

    def __getattr__(self, name: str) -> Any:
        answers = {
            "due": "end", "worker": 0, "workers": 0, "is_alone": False, "members": [], "has_ended_alone": True, "has_missed_end": True,
            "is_stopping": False, "wants_norms": False, "wants_loss": False, "score_batch": None, "shard": (0, 1, 0), "steps_taken": 0,
            "progress": (0, 0.0, 0.0, 0.0), "prox": 0.0, "checkpoint": None, "finish": [], "leave": None, "stop": None,
        }  # fmt: skip
        if name not in answers:
            raise _native.RunEnded("the run had ended before this worker could join it")
        return lambda *_: answers[name]


def _product(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _refuse_torchrun() -> None:
    """Processes that torchrun has started know nothing of a group of grawa's: each would train alone."""
    size = os.environ.get("WORLD_SIZE", "1")
    if "GRAWA_COORDINATOR" not in os.environ and "RANK" in os.environ and size.isdecimal() and int(size) > 1:
        raise RuntimeError(
            f"{size} processes were started by torchrun or the like (RANK and WORLD_SIZE are set), and each would train alone: use their "
            "group with grawa.join(..., comm='torch') after torch.distributed.init_process_group(), or start them with grawa launch"
        )


def _note_alone() -> None:
    global _alone_noted
    if not _alone_noted:
        _alone_noted = True
        print(
            "grawa: no group, this worker trains alone; for more start it with: grawa launch --workers N -- python ...",
            file=sys.stderr,
        )
