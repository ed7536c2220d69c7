"""Buffers of the evaluated model: the statistics of batch norm belong to a worker's own parameters, not to the mean."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

CHOICES = ("recalibrate", "average", "keep")


def batch_norms(model: torch.nn.Module) -> list[Any]:
    """The modules with running statistics."""
    return [m for m in model.modules() if getattr(m, "running_mean", None) is not None and hasattr(m, "momentum")]


class RunningStatistics:
    """Batch norm's means and variances as one flat vector, to be averaged over the workers."""

    def __init__(self, model: torch.nn.Module) -> None:
        ends = ("running_mean", "running_var")
        named = [(name.replace("_orig_mod.", ""), b) for name, b in model.named_buffers() if name.endswith(ends)]
        self.tensors = [(name, list(buffer.shape)) for name, buffer in named]
        self._buffers = [buffer for _, buffer in named]
        self._sizes = [buffer.numel() for buffer in self._buffers]

    @torch.no_grad()
    def gather(self) -> torch.Tensor:
        """The worker's own."""
        return torch.cat([buffer.detach().reshape(-1).float().cpu() for buffer in self._buffers])

    @torch.no_grad()
    def scatter(self, flat: torch.Tensor) -> None:
        """Writes them to the model."""
        for buffer, part in zip(self._buffers, flat.split(self._sizes)):
            buffer.copy_(part.view(buffer.shape))


@torch.no_grad()
def recalibrate(model: torch.nn.Module, batches: Iterable[Any]) -> int:
    """Counts the running statistics anew on training batches. Returns on how many."""
    norms = batch_norms(model)
    modes = {module: module.training for module in model.modules()}
    momenta = [norm.momentum for norm in norms]
    count = 0
    try:
        # Dropout stays as at evaluation; batch norm counts, every batch alike.
        model.eval()
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
            norm.train()
        for batch in batches:
            _forward(model, batch)
            count += 1
    finally:
        for norm, momentum in zip(norms, momenta):
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    if norms and count == 0:
        raise ValueError("batch norm cannot be recalibrated on no batches")
    return count


def _forward(model: torch.nn.Module, batch: Any) -> None:
    device = next(model.parameters()).device
    if isinstance(batch, Mapping):
        model(**{k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in batch.items()})
        return
    inputs = batch[0] if isinstance(batch, (tuple, list)) else batch
    model(inputs.to(device))
