"""Models whose parameters are shared by others already, or of which a process has a part only: a run would average them wrongly."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch

from . import buffers as buffer_policy


def refuse(model: torch.nn.Module, buffers: str) -> None:
    """An error if the model cannot be joined as it is."""
    for name, module in model.named_modules():
        kind = _kind(module)
        if kind is not None:
            raise TypeError(f"{f'the submodule {name}' if name else 'the model'} is {kind}")
    needs_forward = buffers == "recalibrate" and buffer_policy.batch_norms(model)
    if needs_forward and getattr(type(model), "forward", None) is torch.nn.Module.forward and "forward" not in vars(model):
        raise TypeError(
            f"a {type(model).__name__} has no forward, which batch norm's recalibration calls: give buffers='average' or buffers='keep'"
        )


def refuse_wrapped(parameters: Iterable[torch.nn.Parameter]) -> None:
    """An error if some other module trains these parameters over torch.distributed: the plain model was joined, and its wrapper trains."""
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return
    own = {id(parameter) for parameter in parameters}
    if _wrapper(own) is None:
        return
    # It may be gone already.
    gc.collect()
    kind = _wrapper(own)
    if kind is not None:
        raise RuntimeError(f"the model that was joined is inside a wrapper, which trains it too: it is {kind}")


def _wrapper(own: set[int]) -> str | None:
    for found in gc.get_objects():
        if issubclass(type(found), torch.nn.Module) and (kind := _kind(found)) is not None:
            if any(id(parameter) in own for parameter in found.parameters()):
                return kind
    return None


def _kind(module: Any) -> str | None:
    """What is wrong with a wrapper."""
    for base in type(module).__mro__:
        if base.__name__ == "FullyShardedDataParallel":
            return (
                "wrapped in FSDP, so that each process has a part of the parameters, and parts of different parameters would be averaged: "
                "sharded models are not supported; train the plain model"
            )
        if base.__name__ == "DistributedDataParallel" or base.__module__ == "torch.distributed._composable.replicate":
            return (
                "wrapped in DistributedDataParallel, which averages gradients at every step, so that the workers would be averaged twice: "
                "train the plain model (model.module), and grawa.join(..., comm='torch')"
            )
    return None
