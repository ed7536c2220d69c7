"""A PyTorch model in a run."""

from __future__ import annotations

import inspect
import math
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from . import buffers as buffer_policy
from ._native import GrawaError
from .hooks import StepHooks
from .loader import DealtBatches, Loader, checked
from .progress import Progress
from .round import Round
from .session import Session
from .refused_models import refuse, refuse_wrapped
from .seeded_examples import random_state_kept
from .shared_parameters import SharedParameters

# Losses and norms are read after this number of steps at the latest.
MOST_STEPS = 1024

_joined: weakref.ref[Run] | None = None


def join(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    method: str = "mean",
    *,
    budget: str | None = None,
    batch: int | None = None,
    examples: int | None = None,
    buffers: str = "recalibrate",
    score: Callable[..., torch.Tensor] | None = None,
    evaluate: str | None = "1epoch",
    seed: int = 0,
    pace: str = "even",
    wire: str = "f32",
    name: str | None = None,
    patience: float = 60.0,
    wait: float | None = None,
    coordinator: str | None = None,
    key: str | os.PathLike[str] | None = None,
    listen: str = "127.0.0.1:0",
    host: str | None = None,
    comm: str = "grawa",
) -> Run:
    """Trains the model together with other workers. Every step of the optimizer counts, and after every ``period`` steps of the method
    the parameters are mixed with those of the others, in place.

    The run begins when its budget, batch and number of examples are known: ``run.epochs(n)`` and ``run.loader(...)`` say so, or the
    arguments ``budget``, ``batch`` and ``examples`` with ``run.start()``. Until then nothing is sent. All workers must give the same.

    - ``method``: one of ``grawa methods``, with any of its knobs, such as ``"mean:period=32"`` (local SGD).
    - ``buffers``: of the model inside ``run.averaged()``. ``"recalibrate"``: batch norm's statistics are counted anew on training batches;
      ``"average"``: those of all workers, averaged as if one worker had seen all batches, each ``evaluate``; until the next one those stay;
      ``"keep"``: this worker's own. Buffers are never mixed in training.
    - ``score``: for methods that score a batch (``lgrawa``): returns the summed loss of one, with gradients. If it takes an argument, that
      is a ``torch.Generator``; a batch drawn with it is the one that the method asks for.
    - ``evaluate``: how often all make the model of ``run.averaged()``.
    - ``wait``: how many seconds a round waits at least for a worker that is late, such as one that evaluates alone. One that it goes on
      without loses its steps since the last round. By default 2, longer where rounds vary or are rare (a tenth of a period, at most 60).
    - ``patience``: how many seconds to wait for the coordinator; ten times as long for the workers that the run begins with.
    - ``coordinator``, ``key``, ``listen``, ``host``: a group that was not started by ``grawa launch`` or ``grawa join``.
    - ``comm``: ``"torch"`` uses the default process group of ``torch.distributed`` in the place of grawa's own transport: parameters stay
      on their device, the number of workers is fixed, and if one fails the job fails.

    Shared are the parameters with ``requires_grad``, tied ones once. The state of the optimizer is this worker's own; it is dropped where
    a round replaces the parameters.
    """
    return Run(
        model,
        optimizer,
        method,
        budget=budget,
        batch=batch,
        examples=examples,
        buffers=buffers,
        score=score,
        evaluate=evaluate,
        seed=seed,
        pace=pace,
        wire=wire,
        name=name,
        patience=patience,
        wait=wait,
        coordinator=coordinator,
        key=key,
        listen=listen,
        host=host,
        comm=comm,
    )


class Run:
    """A worker's part in a run, made by ``grawa.join``.

    At the end all workers wait for each other and have the same model in ``run.averaged()``, and exactly one is ``run.is_first``. A loop of
    your own asks ``run.is_over``; ``run.epochs()`` and ``run.loader(...)`` end by themselves."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        method: str,
        *,
        budget: str | None,
        batch: int | None,
        examples: int | None,
        buffers: str,
        score: Callable[..., torch.Tensor] | None,
        evaluate: str | None,
        comm: str,
        **options: Any,
    ) -> None:
        global _joined
        if comm not in ("grawa", "torch"):
            raise ValueError(f"comm is {comm!r}; choose grawa or torch")
        if buffers not in buffer_policy.CHOICES:
            raise ValueError(f"buffers is {buffers!r}; choose one of {', '.join(buffer_policy.CHOICES)}")
        if not hasattr(optimizer, "register_step_post_hook"):
            raise TypeError(f"a torch.optim.Optimizer is needed, of PyTorch 2.1 or later; this is a {type(optimizer).__name__}")
        running = None if _joined is None else _joined()
        if running is not None and not running._has_left:
            raise RuntimeError(
                "this process has joined a run already: a process is one worker; leave the first with `with` or run.leave(). Several "
                "models are joined as one, in a torch.nn.ModuleList, with the optimizer whose steps count"
            )
        refuse(model, buffers)
        self.model, self.optimizer, self.method = model, optimizer, method
        self._comm = comm
        self._shared = SharedParameters(model, stays_on_device=comm == "torch")
        self._budget, self._batch, self._examples = budget, batch, examples
        self._buffers, self._score, self._evaluate = buffers, score, evaluate
        self._options = {**options, "name": options["name"] or type(model).__name__}
        self._session: Session | None = None
        self._checkpoint: bytes | None = None
        self._statistics: buffer_policy.RunningStatistics | None = None
        if buffers == "average" and buffer_policy.batch_norms(model):
            self._statistics = buffer_policy.RunningStatistics(model)
        self._averaged_statistics: torch.Tensor | None = None
        self._hooks = StepHooks(optimizer, self._before_step, self._after_step)
        self._callbacks: list[Callable[[Round], object]] = []
        self._norms: torch.Tensor | None = None
        self._loss: torch.Tensor | float = math.nan
        # Loss and norms of each step since the last round. They stay on their device until then.
        self._steps: list[tuple[torch.Tensor | float, torch.Tensor | None]] = []
        # The centre as the parameters are, for the prox term; None until the first step after a round.
        self._centre: list[torch.Tensor] | None = None
        self._evaluated: torch.Tensor | None = None
        # Whether it was made after the last round.
        self._is_evaluated_last = False
        self._state_steps = 0
        # Batches since the last step, and steps of this worker.
        self._batches, self._own_steps = 0, 0
        # Before the first step: whether an epoch is over, whether the shard was asked for, how often the model was evaluated.
        self._has_looped, self._has_asked, self._evaluations = False, False, 0
        self._has_yielded_early = False
        self._process = os.getpid()
        self._loader: Loader | None = None
        self._first_epoch = 0
        self.is_epoch_over = False
        self._is_over = False
        self._has_left = False
        # `stop` was called here; the loop is inside a step; and one step may follow an end that did not wait for one.
        self._has_stopped = self._is_advancing = self._may_step_once = False
        _joined = weakref.ref(self)

    # The run.

    def start(
        self, budget: str | None = None, batch: int | None = None, examples: int | None = None
    ) -> Run:
        """Joins the group, if that has not happened. ``run.loader`` calls it."""
        if self._session is not None or self.is_over:
            return self
        if self._has_left:
            raise RuntimeError("this run was left; join again")
        budget, batch, examples = budget or self._budget, batch or self._batch, examples or self._examples
        if budget is None:
            raise RuntimeError("how much to train is not known: use run.epochs(n), or grawa.join(..., budget='5000step')")
        if batch is None or examples is None:
            raise RuntimeError(
                "batch size and number of examples are not known: use run.loader(dataset, batch_size), or "
                "grawa.join(..., batch=128, examples=len(dataset))"
            )
        flat = self._shared.gather()
        kind: Any = Session
        if self._comm == "torch":
            from .process_group import ProcessGroupSession as kind
        self._session = kind(
            flat,
            method=self.method,
            budget=budget,
            tensors=self._shared.tensors,
            statistics=() if self._statistics is None else self._statistics.tensors,
            _buffers=self._buffers if buffer_policy.batch_norms(self.model) else None,
            batch=batch,
            examples=examples,
            evaluate=self._evaluate,
            checkpoint=self._checkpoint,
            **self._options,
        )
        self._shared.scatter()
        if self._state_steps > 0 and self._session.progress.steps == 0 and not self._session.has_missed_run:
            self._session.leave()
            self._session, self._has_left = None, True
            self._hooks.remove()
            raise RuntimeError(
                f"the state that was given to run.load_state_dict is of step {self._state_steps}, and this group begins at step 0: a state "
                "counts only in the group that it is of, with the same coordinator or one that has resumed it (grawa launch --resume); to "
                "begin a new run from weights that were saved, load them into the model and leave run.load_state_dict away"
            )
        if self._has_yielded_early and self.progress.epochs >= 1:
            warnings.warn(
                f"the run continues in epoch {self._epoch()}, and run.epochs has called it 0, since the run had not begun: call "
                "run.loader(...) before run.epochs(...)",
                stacklevel=3,
            )
        self._advance(self._session.due)
        if self._has_stopped and not self.is_over:
            self._session.stop(together=True)
            self._end_if_stopped()
        return self

    @property
    def is_over(self) -> bool:
        """Whether the run is over for this worker: its budget is spent, all were asked to stop, or it has left. A loop of your own ends
        then: ``while not run.is_over: ...``. A step of the optimizer after the end is an error."""
        return self._is_over

    @property
    def session(self) -> Session:
        """The session; an error before the run begins."""
        if self._session is None:
            raise RuntimeError("the run has not begun: iterate over run.loader(...), or call run.start()")
        return self._session

    @property
    def last_round(self) -> Round | None:
        """The last round that was held."""
        return None if self._session is None else self._session._last_round()

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self._options["seed"])

    @property
    def worker(self) -> int:
        """The number of this worker. It is no rank: numbers of workers that left are used again."""
        return 0 if self._session is None else self._session.worker

    @property
    def workers(self) -> list[int]:
        """The numbers of the workers in the last round."""
        self._end_if_stopped()
        return [0] if self._session is None else self._session.members

    @property
    def is_first(self) -> bool:
        """Whether this worker has the lowest number: the one that prints and saves. At the end exactly one worker is it. After ``stop()`` it
        waits for the end of all."""
        self._end_if_stopped()
        return self._session is None or self._session.is_first

    @property
    def progress(self) -> Progress:
        """The clock of the run, for learning-rate schedules: all workers have the same, also one that joined late."""
        return Progress(0, 0.0, 0.0, 0.0) if self._session is None else self._session.progress

    @property
    def shard(self) -> tuple[int, int, int]:
        """Which examples this worker reads next: its shard, of how many, and the number of the batch in it."""
        self._has_asked = True
        return self.session.shard

    def epochs(self, n: float | None = None) -> Iterator[int]:
        """The epochs of the run, ``n`` in all; without ``n`` until its ``budget`` is spent. An epoch ends with the first round after all
        workers together have read every example, so numbers may be skipped where an epoch is shorter than a round. A worker that
        joins late begins where the others are (its first number is 0 if the loader is made inside the loop)."""
        if n is not None:
            if self._session is None and self._budget not in (None, f"{n}epoch"):
                raise ValueError(f"both run.epochs({n}) and the budget {self._budget!r} are given: leave one of them away")
            self._budget = self._budget or f"{n}epoch"
        return self._epochs()

    def _epochs(self) -> Iterator[int]:
        if self._batch is not None and self._examples is not None:
            self.start()
        while not self.is_over:
            self._has_yielded_early |= self._session is None
            yield self._epoch()
            self._has_looped = True

    def _epoch(self) -> int:
        # A quotient may lie a rounding below a whole number.
        return int(self.progress.epochs + 1e-9)

    def begin_epoch(self) -> None:
        """A pass of a loader begins."""
        self.is_epoch_over = False
        self._first_epoch = self._epoch()

    def loader(self, dataset: Any, batch_size: int = 1, *, accumulate: int = 1, **options: Any) -> Loader:
        """Batches of a data set, for one epoch at a time. All workers together read every example once in an epoch; when workers join or
        leave the rest is dealt anew, also what DataLoader's processes have read ahead. ``accumulate`` batches make one step of the
        optimizer. Other options are those of ``torch.utils.data.DataLoader``."""
        options = checked(dataset, options)
        if self._session is None:
            self._batch, self._examples = batch_size * accumulate, len(dataset)
        elif batch_size * accumulate != self._batch or len(dataset) != self._examples:
            raise ValueError(
                f"the run has {self._examples} examples in batches of {self._batch}; this loader has {len(dataset)} in batches of "
                f"{batch_size * accumulate}: use a torch.utils.data.DataLoader for other data"
            )
        kept = self._loader
        if kept is not None and kept.is_same(dataset, batch_size, accumulate, options):
            return kept
        self._loader = Loader(self, dataset, batch_size, accumulate, **options)
        return self._loader

    def sampler(self, dataset: Any, batch_size: int, *, accumulate: int = 1) -> DealtBatches:
        """The examples of this worker's batches, for a ``DataLoader`` of your own: ``DataLoader(dataset, batch_sampler=...)``. It never ends;
        call ``is_next()`` for each batch, and skip those for which it is false."""
        self._batch, self._examples = batch_size * accumulate, len(dataset)
        return DealtBatches(self, len(dataset), batch_size, accumulate)

    def on_round(self, callback: Callable[[Round], object]) -> Callable[[Round], object]:
        """Calls this with every round, a dict: ``run.on_round(wandb.log)``, for example."""
        self._callbacks.append(callback)
        return callback

    def loss(self, loss: torch.Tensor | float) -> None:
        """The loss of the next step, for the record; methods that score by the loss need it. A step with a closure takes the closure's."""
        self._loss = loss.detach() if isinstance(loss, torch.Tensor) else loss

    # The evaluated model.

    @contextmanager
    def averaged(self, calibrate: Iterable[Any] | None = None, batches: int = 50) -> Iterator[torch.nn.Module]:
        """Inside the block the model has parameters that are those of the last round, the same on all workers: where all have just made
        the model that the method evaluates (each ``evaluate``, by default the end of each epoch, and the end of the run) this one, which is
        the mean of the workers or the centre; else the centre of the last round. Nothing is sent, so one worker may call it by itself.
        Batch norm is recalibrated on the batches of ``calibrate``, or on ``batches`` of the loader's data (one pass at most), the same on
        all workers. Afterwards all is as before: parameters, buffers, each module's `training`, and the random state."""
        self._end_if_stopped()
        self._look_for_steps(self._evaluations)
        self._evaluations += self._session is not None
        with self._with_evaluated(calibrate, batches) as model:
            yield model

    @contextmanager
    def _with_evaluated(self, calibrate: Iterable[Any] | None = None, batches: int = 50) -> Iterator[torch.nn.Module]:
        parameters = self._shared.copies()
        kept = [(buffer, buffer.detach().clone()) for buffer in self.model.buffers()]
        modes = [(module, module.training) for module in self.model.modules()]
        try:
            evaluated = self._evaluated_model()
            if evaluated is not None:
                self._shared.scatter(evaluated)
                self._calibrate(calibrate, batches)
            yield self.model
        finally:
            self._shared.put_back(parameters)
            with torch.no_grad():
                for buffer, copy in kept:
                    buffer.copy_(copy)
            # A test that calls `model.eval()` must not let the next epoch train without dropout.
            for module, training in modes:
                module.training = training

    def _evaluated_model(self) -> torch.Tensor | None:
        if self._session is None or self._session.is_alone:
            return None
        if self._session.has_missed_end and self._evaluated is None:
            raise RuntimeError(
                "the run ended before this worker could take part, so it has no model of it: look at run.is_first, or take the model from where "
                "the others saved it"
            )
        if not self._is_evaluated_last and not self.is_over:
            return self._session.centre(torch.empty_like(self._shared.flat))
        return self._evaluated

    def _keep_last(self) -> None:
        """The session is about to end, and with it the centre of the last round."""
        if self._is_evaluated_last or self._session is None or self._session.is_alone:
            return
        out = torch.empty_like(self._shared.flat) if self._evaluated is None else self._evaluated
        self._evaluated, self._is_evaluated_last = self._session.centre(out), True

    def _calibrate(self, calibrate: Iterable[Any] | None, batches: int) -> None:
        if self._statistics is not None and self._averaged_statistics is not None:
            self._statistics.scatter(self._averaged_statistics)
        elif self._statistics is not None and self.progress.steps > 0 and not self._has_warned_of_statistics:
            self._has_warned_of_statistics = True
            warnings.warn(
                "the statistics of batch norm were not averaged yet, and this worker's own are used, so each worker evaluates another model: "
                f"they are averaged each evaluate={self._evaluate!r} of grawa.join",
                stacklevel=6,
            )
        if self._buffers != "recalibrate" or not buffer_policy.batch_norms(self.model):
            return
        if calibrate is None and self._loader is None:
            raise RuntimeError("batch norm needs batches: run.averaged(calibrate=batches), or grawa.join(..., buffers='keep')")
        with random_state_kept(self._shared.device):
            buffer_policy.recalibrate(self.model, self._loader.some(batches) if calibrate is None else calibrate)

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Writes the evaluated model: its ``state_dict``, by ``torch.save``, or as safetensors if the name ends so. Options are those of
        ``averaged``."""
        self._end_if_stopped()
        self._look_for_steps()
        with self._with_evaluated(**options) as model:
            state = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
            if os.fspath(path).endswith(".safetensors"):
                from safetensors.torch import save

                from .checksum import with_checksum

                # Tied weights are written once for each name.
                content = with_checksum(save({name: value.clone() for name, value in state.items()}))
                with open(path, "wb") as file:
                    file.write(content)
            else:
                torch.save(state, path)

    def state_dict(self) -> dict[str, Any]:
        """What a run needs to continue if all of its workers are lost: method, progress, and the state of the group. The optimizer has a
        ``state_dict`` of its own."""
        kept = self._checkpoint
        if self._session is not None:
            # A run that is over has no state to continue from.
            kept = None if self.is_over else self._session.checkpoint()
        return {"method": self.method, "progress": tuple(self.progress), "checkpoint": kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """To be called before the run begins. It counts where the same run continues: with the same coordinator, or another one that has
        resumed it, and no worker that has a newer state. A group that begins anew is an error."""
        if self._session is not None:
            raise RuntimeError("the run has begun: load its state before the loader is iterated")
        # The group compares the method, knob by knob: one method has several texts, and what a text meant has changed.
        self._checkpoint, self._state_steps = state["checkpoint"], int(state["progress"][0])

    # The end.

    def stop(self) -> None:
        """All workers stop together, within a step; also if this one leaves its loop at once: what asks for the result, such as ``is_first``,
        ``averaged()``, ``save`` and ``leave``, then waits for the end of all. After the end it does nothing, and before ``start`` the run ends
        when it starts."""
        if not self.is_over and not self._has_left:
            self._has_stopped = True
            if self._session is not None:
                self._session.stop(together=True)

    def _end_if_stopped(self, also_by_others: bool = False) -> None:
        """This worker has left its loop, after all were asked to stop: the end, without another step."""
        session = self._session
        if session is None or self.is_over or self._has_left or self._is_advancing or not (self._has_stopped or also_by_others):
            return
        if session._end_if_stopped():
            self._steps.clear()
            self._may_step_once = True
            self._end()

    def leave(self) -> None:
        """Leaves the run; the others continue. If all were asked to stop, it ends the run together with them."""
        if os.getpid() == self._process and not self._leaves_at_once:
            self._end_if_stopped(also_by_others=True)
        self._hooks.remove()
        self._has_left = True
        if os.getpid() != self._process:
            # Forked from the worker's process: it is no worker.
            return
        if self._session is not None and not self.is_over:
            takes_no_step = self._takes_no_step(least=1, asked=self._has_asked)
            with suppress(GrawaError):
                self._keep_last()
            self._session._native.leave()
            self._is_over = True
            # Last: a warning may be an error.
            if takes_no_step:
                self._warn_of_no_step()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        # An error explains why there was no step.
        self._has_warned_of_no_step |= error is not None
        # Nor is anybody waited for.
        self._leaves_at_once = error is not None
        self.leave()

    # A step.

    def _before_step(self, scale: float | torch.Tensor, loss: Any) -> None:
        if isinstance(loss, (torch.Tensor, float)):
            self.loss(loss)
        if self._session is None or self.is_over or not self._session.wants_norms:
            return
        norms = self._shared.norms([parameter.grad for parameter in self._shared.parameters])
        self._norms = norms if isinstance(scale, float) else norms / scale.to(norms.device)

    def _after_step(self) -> None:
        if self._may_step_once:
            # The loop had begun it. Like the others' steps since the last round it is in no model.
            self._may_step_once = False
            return
        if self.is_over:
            raise RuntimeError(
                f"the run is over, at step {self.progress.steps}: this step would be in no model of the run; leave your loop when run.is_over, "
                "or call run.leave() to train on by yourself"
            )
        session = self.session
        if self._own_steps == 0:
            refuse_wrapped(self._shared.parameters)
        self._own_steps, self._batches = self._own_steps + 1, 0
        loss, self._loss = self._loss, math.nan
        if isinstance(loss, float) and math.isnan(loss) and session.wants_loss:
            raise RuntimeError(f"{self.method} scores workers by their losses: call run.loss(loss) before each optimizer.step()")
        if session.prox > 0:
            self._apply_prox(session.prox)
        self._steps.append((loss, self._norms))
        self._norms = None
        # Some groups may be frozen, and some optimizers choose their rates themselves.
        rates = [group.get("lr") for group in self.optimizer.param_groups]
        due = session.step_unmeasured(max((float(rate) for rate in rates if rate is not None), default=0.0))
        if due != "step" or len(self._steps) >= MOST_STEPS:
            self._hand_over_steps()
        self._advance(due)

    def note_batch(self, loader: Loader) -> None:
        """A batch is handed out. Training that does not go through the optimizer is not seen, and nothing is shared."""
        self._batches += 1
        if self._batches >= len(loader) + 2 * loader.accumulate:
            self._warn_of_no_step()

    def _takes_no_step(self, least: int, asked: bool = False) -> bool:
        """Whether it seems to train, without a step of the optimizer: ``least`` batches were read, or it can be seen otherwise."""
        if self._session is None or self.is_over or self._own_steps > 0:
            return False
        # Until the first step `flat` has what was last written to the parameters.
        return self._batches >= least or asked or self._has_looped or self._shared.differ()

    def _look_for_steps(self, evaluations: int = 0) -> None:
        """Before an evaluation. The first one may come when the batches of the first step were read."""
        accumulate = 1 if self._loader is None else self._loader.accumulate
        if self._takes_no_step(least=accumulate + 1, asked=evaluations > 0):
            self._warn_of_no_step()

    def _warn_of_no_step(self) -> None:
        if not self._has_warned_of_no_step:
            self._has_warned_of_no_step = True
            seen = f"{self._batches} batches were read" if self._batches > 0 else "the run has begun"
            warnings.warn(
                f"{seen}, and the {type(self.optimizer).__name__} that was given to grawa.join took no step: no round "
                "is held, and nothing is shared; give grawa.join the optimizer whose step() trains the model",
                stacklevel=4,
            )

    _leaves_at_once = False
    _has_warned_of_no_step = False
    _has_warned_of_statistics = False

    def _count_workers(self) -> int:
        """How many workers there are. If the run has not begun and can, it begins."""
        if self._session is None and not self.is_over:
            if self._budget is None:
                # Not another error: tqdm and list go on without a length.
                raise TypeError(
                    "how long a loader is depends on the number of workers: call run.epochs(n) first, as in `epochs = run.epochs(n)`, or give "
                    "grawa.join a budget"
                )
            self.start()
        return 1 if self._session is None else max(1, len(self._session.members))

    def _hand_over_steps(self) -> None:
        """Reads the losses and norms of the last steps, with one copy each."""
        losses = [loss for loss, _ in self._steps]
        norms = [norms for _, norms in self._steps if norms is not None]
        kinds = {(loss.device, loss.dtype) if isinstance(loss, torch.Tensor) else None for loss in losses}
        if len(kinds) == 1 and None not in kinds:
            read = torch.stack([loss.reshape(()) for loss in losses]).tolist()
        else:
            read = [float(loss) for loss in losses]
        self.session.measured(read, torch.stack(norms).tolist() if norms else [])
        self._steps.clear()

    @torch.no_grad()
    def _apply_prox(self, strength: float) -> None:
        if self._centre is None:
            parts = self._shared.parts(self.session.centre(torch.empty_like(self._shared.flat)))
            self._centre = [part.to(parameter) for part, parameter in zip(parts, self._shared.parameters)]
        # One call for all: a call for each would take longer than the optimizer's step.
        torch._foreach_lerp_(self._shared.parameters, self._centre, strength)

    def _advance(self, due: str) -> None:
        """Does what is due, up to the next step."""
        if due == "step":
            return
        session = self.session
        # What is called meanwhile, such as a callback, has not left the loop.
        self._is_advancing = True
        try:
            while due != "step":
                if due == "round":
                    self._hold_round()
                elif due == "evaluate":
                    self._make_evaluated()
                else:
                    self._end()
                    return
                due = session.due
        finally:
            self._is_advancing = False
        # Also where this worker takes part again after the others have ended the epoch.
        self.is_epoch_over |= self._epoch() > self._first_epoch

    def _hold_round(self) -> None:
        shared, scores = self._shared, self._scores()
        near = shared.near() if self._comm == "grawa" else None
        if near is not None:
            is_held = self.session._round(near, scores, meanwhile=self._during_round)
        else:
            self._during_round()
            is_held = self.session.round(shared.gather(), scores) is not None
            shared.scatter()
        if self._own_steps == 0:
            shared.gather()
        if is_held or self.session.was_replaced:
            # Statistics stay, up to the next average: this worker's own would make another model of it than that of the others.
            self._is_evaluated_last = False
        if self.session.was_replaced:
            for parameter in self._shared.parameters:
                self.optimizer.state.pop(parameter, None)
        if is_held:
            for callback in self._callbacks:
                callback(self.session._last_round())

    def _during_round(self) -> None:
        """Nobody waits for this where the native part copies the parameters: it runs while the round is held."""
        self._centre = None
        self._shared.note_written()
        self._shared.check()

    def _make_evaluated(self) -> None:
        out = torch.empty_like(self._shared.flat) if self._evaluated is None else self._evaluated
        counts = None if self._statistics is None else self._statistics.gather()
        if self.session.evaluated_model(self._shared.gather(), out, counts) is not None:
            self._evaluated, self._averaged_statistics, self._is_evaluated_last = out, counts, True

    def _end(self) -> None:
        if not self.session.has_missed_run:
            self._keep_last()
        self.session.finish()
        if self.session.has_ended_alone and not (self.session.has_missed_end or self.session.was_stopped):
            # It has trained on alone: its own parameters are of more use than an old centre.
            self._evaluated = None
        self._is_over = self.is_epoch_over = True

    def _scores(self) -> list[float]:
        """The norms of the gradient of a score batch. Gradients, statistics and the random state of the step stay as they are."""
        seed = self.session.score_seed
        if seed is None:
            return []
        if self._score is None:
            raise RuntimeError(f"{self.method} scores a batch at each round: give grawa.join a score=, a function that returns its summed loss")
        kept = [(buffer, buffer.detach().clone()) for buffer in self.model.buffers()]
        mode = self.model.training
        try:
            arguments: list[Any] = []
            if inspect.signature(self._score).parameters:
                arguments.append(torch.Generator().manual_seed(seed))
            with torch.enable_grad():
                loss = self._score(*arguments)
                gradients = torch.autograd.grad(loss, self._shared.parameters, allow_unused=True)
        finally:
            self.model.train(mode)
            with torch.no_grad():
                for buffer, copy in kept:
                    buffer.copy_(copy)
        return self._shared.norms(list(gradients)).tolist()
