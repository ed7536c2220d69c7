"""Rounds over the process group of ``torch.distributed``, on the device where the parameters are."""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from . import _native
from .progress import Progress
from .round import Round
from .session import Session

_LARGEST = torch.finfo(torch.float32).max

# Workers that are alike are so from the beginning: parameters are compared in this number of rounds.
MOST_COMPARED = 16
# As the native part says it where it has the parameters.
ALIKE = (
    "workers {} and {} have the same parameters after their steps, bit for bit: they train on the same batches, so one of them is of no use; draw "
    "batches with another seed in each worker (seed + worker), or take those of the run's loader"
)


class Carrier:
    """Carries out what the native part has decided. Every process calls the same operations in the same order."""

    def __init__(self, vector: torch.Tensor, sizes: list[int]) -> None:
        self.vector, self._sizes = vector, sizes
        self.centre = torch.zeros_like(vector)
        self.view: torch.Tensor | None = None
        self.velocity: torch.Tensor | None = None
        self._send = torch.empty_like(vector)
        self._stream: Any = None
        self.failure: BaseException | None = None

    def prepare(self) -> None:
        """The native part calls from a thread of its own: there, work goes to the stream that is the current one here."""
        if self.vector.is_cuda:
            self._stream = torch.cuda.current_stream(self.vector.device)

    @contextmanager
    def _here(self) -> Iterator[None]:
        try:
            with torch.no_grad(), torch.cuda.stream(self._stream):
                yield
        except BaseException as error:
            self.failure = error
            raise

    def gather(self, message: bytes) -> list[bytes]:
        """The messages of all processes, in the order of their ranks."""
        with self._here():
            device, size = self.vector.device, dist.get_world_size()
            length = torch.tensor([len(message)], dtype=torch.int64, device=device)
            lengths = [torch.empty_like(length) for _ in range(size)]
            dist.all_gather(lengths, length)
            counts = [int(length) for length in lengths]
            padded = bytearray(max(1, *counts))
            padded[: len(message)] = message
            mine = torch.frombuffer(padded, dtype=torch.uint8).to(device)
            all_ = [torch.empty_like(mine) for _ in range(size)]
            dist.all_gather(all_, mine)
            return [bytes(found.cpu().numpy()[:count]) for found, count in zip(all_, counts)]

    def mix(
        self,
        is_view: bool,
        weights: Sequence[float],
        is_kept: Sequence[bool],
        rate: float | None,
        outer: tuple[float, float, bool, float] | None,
        pull: tuple[float, bool, bool, float],
    ) -> int:
        """Makes the next centre: the sum of ``weights`` times the vectors of all, one weight for all tensors or one for each; or, with a
        ``rate``, the old centre moved toward it; or, with ``outer``, moved by an outer optimizer. Where nobody has a weight the old centre stays. Then pulls this worker."""
        with self._here():
            new, old = self._send, self.centre
            sizes = self._sizes if len(weights) > 1 else [new.numel()]
            new.copy_(self.vector)
            parts = list(new.split(sizes))
            torch._foreach_mul_(parts, list(weights))
            for part, weight in zip(parts, weights):
                if weight == 0.0:
                    # Not multiplied: the vector of a worker without weight may not be finite.
                    part.zero_()
            dist.all_reduce(new)
            if is_view:
                self.view = new.clone() if self.view is None else self.view.copy_(new)
                return 4 * new.numel()
            if rate is not None:
                new.mul_(rate).add_(old, alpha=1.0 - rate)
            new.clamp_(-_LARGEST, _LARGEST)
            if outer is not None and not any(is_kept):
                self._outer_step(old, new, *outer)
            for part, kept, stays in zip(parts, old.split(sizes), is_kept):
                if stays:
                    part.copy_(kept)
            self._pull(old, new, *pull)
            self.centre, self._send = new, old
            return 4 * new.numel()

    def _outer_step(
        self, old: torch.Tensor, new: torch.Tensor, rate: float, momentum: float, is_nesterov: bool, unit: float
    ) -> None:
        """SGD whose gradient is the old centre less the mean of the workers, which ``new`` holds, in units of the learning rate."""
        if self.velocity is None:
            self.velocity = torch.zeros_like(new)
        gradient = (old - new).div_(unit) if unit > 0.0 else torch.zeros_like(new)
        self.velocity.mul_(momentum).add_(gradient)
        if unit > 0.0 and rate == 1.0 and momentum == 0.0:
            return
        step = gradient.add_(self.velocity, alpha=momentum) if is_nesterov else self.velocity
        torch.add(old, step, alpha=-rate * unit, out=new).clamp_(-_LARGEST, _LARGEST)

    def _pull(
        self, old: torch.Tensor, new: torch.Tensor, strength: float, is_toward_old: bool, is_replaced: bool, push: float
    ) -> None:
        if is_replaced:
            self.vector.copy_(new)
        elif push > 0.0:
            way = new - self.vector
            distance, size = (float(torch.linalg.vector_norm(x, dtype=torch.float64)) for x in (way, new))
            # Rounding alone is no direction to be pushed in.
            strength -= push / distance if distance > 1e-6 * size else 0.0
            self.vector.add_(way, alpha=strength).clamp_(-_LARGEST, _LARGEST)
        elif strength == 1.0:
            self.vector.copy_(old if is_toward_old else new)
        elif strength > 0.0:
            self.vector.mul_(1.0 - strength).add_(old if is_toward_old else new, alpha=strength).clamp_(-_LARGEST, _LARGEST)


class ProcessGroupSession(Session):
    """A ``Session`` whose vectors stay on their device. Its workers are those of the default process group, to the end. Options of grawa's own
    transport are refused."""

    def __init__(
        self,
        parameters: torch.Tensor,
        *,
        method: str,
        budget: str,
        tensors: list[tuple[str, list[int]]],
        batch: int,
        examples: int,
        evaluate: str | None,
        seed: int,
        pace: str,
        name: str,
        statistics: Iterable[tuple[str, Sequence[int]]] = (),
        checkpoint: bytes | None = None,
        **options: Any,
    ) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "comm='torch' uses the process group of torch.distributed, and there is none: call "
                "torch.distributed.init_process_group() first, or leave comm away and use grawa launch"
            )
        for option, usual in (("coordinator", None), ("key", None), ("host", None), ("wire", "f32"), ("wait", None)):
            if options.get(option, usual) != usual:
                raise ValueError(f"{option} is an option of grawa's own transport: leave it away with comm='torch'")
        if checkpoint is not None:
            raise ValueError("a state of a group does not fit comm='torch': load the model and the optimizer, and begin anew")
        if pace != "even":
            raise ValueError(f"pace is {pace!r}; over torch.distributed all workers take the same number of steps: 'even'")
        sizes = [torch.Size(shape).numel() for _, shape in tensors]
        self._carrier = Carrier(parameters, sizes)
        self._carrier.prepare()
        statistics = list(statistics)
        settings = {
            "method": method, "budget": budget, "evaluate": evaluate, "batch": batch, "examples": examples, "seed": seed, "name": name,
            **{f"tensor {name}": f"number {number} of shape {shape}" for number, (name, shape) in enumerate(tensors, 1)},
            **{f"statistics {name}": list(shape) for name, shape in statistics},
        }  # fmt: skip
        self._agree(settings)
        # What the native part sees of the parameters: a number for each tensor, 1 or NaN.
        self._signs = torch.ones(len(tensors))
        self._length, self._process, self._thread = len(tensors), os.getpid(), threading.get_ident()
        self._counts = sum(torch.Size(shape).numel() for _, shape in statistics)
        self._native = self._call(
            _native.join,
            method=method,
            tensors=[(name, [1]) for name, _ in tensors],
            parameters=self._signs,
            budget=budget,
            name=name,
            evaluate=evaluate,
            batch=batch,
            examples=examples,
            seed=seed,
            pace=pace,
            wire="f32",
            patience=0.0,
            statistics=statistics,
            buffers=options.get("_buffers"),
            process_group=(self._carrier, dist.get_rank(), dist.get_world_size()),
        )
        self.worker = self._native.worker()
        self.members = list(range(self._native.workers()))
        self._progress = Progress(*self._native.progress())
        self._compared, self._has_warned = 0, False
        self._began_with = _checksum(parameters)

    def round(self, parameters: torch.Tensor, scores: Sequence[float] = ()) -> Round | None:
        is_finite = self._look_at(parameters)
        # At another time the native part refuses, and nobody would answer.
        compares = self._compared < MOST_COMPARED and len(self.members) > 1 and self.due == "round"
        if compares:
            self._compared += 1
            self._warn_if_alike(_checksum(parameters), is_finite)
        held = self._call(super().round, self._signs, scores)
        if compares:
            self._began_with = _checksum(parameters)
        return held

    @torch.no_grad()
    def _warn_if_alike(self, mine: torch.Tensor, is_finite: bool) -> None:
        """Gathers what the parameters are. A worker whose steps changed nothing is not like another one."""
        if not is_finite:
            mine = torch.zeros_like(mine)
        mine = mine * (mine != self._began_with)
        all_ = [torch.empty_like(mine) for _ in self.members]
        dist.all_gather(all_, mine)
        seen: dict[int, int] = {}
        for worker, found in enumerate(torch.stack(all_).tolist()):
            other = seen.setdefault(found, worker)
            if found != 0 and other != worker and not self._has_warned:
                self._has_warned = True
                warnings.warn(ALIKE.format(other, worker), stacklevel=3)

    def evaluated_model(self, parameters: torch.Tensor, out: Any = None, statistics: Any = None) -> Any:
        self._carrier.vector, self._carrier.view = parameters, None
        # Some methods evaluate the mean of all, some the centre, others each worker by itself: a number that no centre has comes back then.
        mine, chosen = torch.full_like(self._signs, 2.0), torch.empty_like(self._signs)
        self._call(super().evaluated_model, mine, chosen, statistics)
        found = self._carrier.view
        if found is None:
            found = parameters if bool((chosen == mine).all()) else self._carrier.centre
        return found.clone() if out is None else out.copy_(found)

    def centre(self, out: Any = None) -> torch.Tensor:
        return self._carrier.centre.clone() if out is None else out.copy_(self._carrier.centre)

    def finish(self) -> Progress:
        return self._call(super().finish)

    def _end_stopped(self) -> None:
        self._call(super()._end_stopped)

    def _look_at(self, parameters: torch.Tensor) -> bool:
        self._carrier.vector = parameters
        is_finite = bool(torch.isfinite(parameters).all())
        self._signs.fill_(1.0 if is_finite else torch.nan)
        return is_finite

    def _call(self, call: Any, *arguments: Any, **named: Any) -> Any:
        self._carrier.prepare()
        try:
            return call(*arguments, **named)
        except _native.GrawaError:
            # What torch.distributed raised says more than that a connection failed.
            if self._carrier.failure is not None:
                raise self._carrier.failure from None
            raise

    def _agree(self, mine: dict[str, Any]) -> None:
        """That all processes have the same settings; names the first that differs."""
        found = [json.loads(message) for message in self._carrier.gather(json.dumps(mine).encode())]
        for rank, theirs in enumerate(found):
            for name in [*found[0], *theirs]:
                first, other = found[0].get(name, "missing"), theirs.get(name, "missing")
                if first != other:
                    raise ValueError(f"the workers differ in {name}: worker 0 has {first}, worker {rank} has {other}; all must give the same")


@torch.no_grad()
def _checksum(parameters: torch.Tensor) -> torch.Tensor:
    """A number that vectors with other bits do not have, as good as never. It stays on their device."""
    bits = parameters.view(torch.int32)
    return bits.sum(dtype=torch.int64) * 1_000_003 + bits[1::2].sum(dtype=torch.int64)
