"""The parameters that workers share: gathered into one flat vector for a round, and written back in place."""

from __future__ import annotations

from typing import Any

import torch

# A compiled model has the names of the one inside it.
_COMPILED = "_orig_mod."


class SharedParameters:
    """The parameters of a model with ``requires_grad`` when it joined. They are never replaced, nor views of one vector: a round copies
    them, and the result back. The native part copies 32-bit floats in main memory; others are copied to ``flat``, in main memory or on
    their device, and ``flat`` back. Numbers travel as 32-bit floats, whatever the parameters are."""

    def __init__(self, model: torch.nn.Module, stays_on_device: bool = False) -> None:
        self._model = model
        self.names: list[str] = []
        self.parameters: list[torch.nn.Parameter] = []
        # Tied weights come once.
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            _check(name, parameter)
            self.names.append(name.replace(_COMPILED, ""))
            self.parameters.append(parameter)
        if not self.parameters:
            raise ValueError("the model has no parameter with requires_grad, so there is nothing to share")
        self.sizes = [parameter.numel() for parameter in self.parameters]
        self.length = sum(self.sizes)
        devices = {parameter.device for parameter in self.parameters}
        self.device = devices.pop() if len(devices) == 1 else None
        if stays_on_device:
            if self.device is None:
                raise ValueError("the parameters are on several devices; comm='torch' needs them on one")
            self.flat = torch.empty(self.length, dtype=torch.float32, device=self.device)
        else:
            pinned = self.device is not None and self.device.type == "cuda"
            self.flat = torch.empty(self.length, dtype=torch.float32, pin_memory=pinned)
        # Made once where the parameters are: making views takes longer than copying a small model.
        self._views = self.parts(self.flat) if self.device in (None, self.flat.device) else None

    @property
    def tensors(self) -> list[tuple[str, list[int]]]:
        """Names and shapes."""
        return [(name, list(p.shape)) for name, p in zip(self.names, self.parameters)]

    def check(self) -> None:
        """That the model still has these parameters and no others."""
        found = [p for p in self._model.parameters() if p.requires_grad]
        if list(map(id, found)) == list(map(id, self.parameters)) and [p.numel() for p in found] == self.sizes:
            return
        # Not by order, and a parameter that was frozen stays shared.
        now = {id(p): name for name, p in self._model.named_parameters() if p.requires_grad}
        known = {id(p) for p in self.parameters}
        new = [name for key, name in now.items() if key not in known]
        if new:
            raise RuntimeError(
                f"the parameter {new[0]} was added, replaced or unfrozen after grawa.join, and the others do not have it: "
                "build the whole model before joining"
            )
        gone = {id(p) for p in self._model.parameters()}
        for name, parameter, size in zip(self.names, self.parameters, self.sizes):
            if id(parameter) not in gone or parameter.numel() != size:
                raise RuntimeError(f"the parameter {name} was removed or resized after grawa.join, and the others still have it")

    def near(self) -> list[tuple[Any, int]] | None:
        """Each with its length; None unless all are contiguous 32-bit floats in main memory, as long as they were."""
        for p, size in zip(self.parameters, self.sizes):
            is_plain = type(p) is torch.nn.Parameter and p.dtype is torch.float32 and p.is_cpu and p.is_contiguous()
            if not is_plain or p.numel() != size:
                return None
        return list(zip(self.parameters, self.sizes))

    def note_written(self) -> None:
        """Notes that all were written to at their addresses, which autograd does not see."""
        # One by one: PyTorch 2.1 takes no list.
        for parameter in self.parameters:
            torch.autograd.graph.increment_version(parameter)

    @torch.no_grad()
    def gather(self) -> torch.Tensor:
        """The parameters in ``flat``."""
        if self._views is not None:
            torch._foreach_copy_(self._views, self.parameters)
        else:
            # One copy from the device, not one for each parameter.
            near = torch.empty(self.length, dtype=torch.float32, device=self.device)
            torch._foreach_copy_(self.parts(near), self.parameters)
            self.flat.copy_(near)
        return self.flat

    @torch.no_grad()
    def differ(self) -> bool:
        """Whether they are not what ``flat`` has."""
        pairs = zip(self.flat.split(self.sizes), self.parameters)
        return any(not torch.equal(part.to(parameter), parameter.reshape(-1)) for part, parameter in pairs)

    @torch.no_grad()
    def scatter(self, flat: torch.Tensor | None = None) -> None:
        """Writes ``flat`` to the parameters, in place."""
        if flat is None and self._views is not None:
            self.put_back(self._views)
        else:
            self.put_back(self.parts(self.flat if flat is None else flat))

    def parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """The parts of a vector, each with the shape of its parameter, on its device if all parameters share one."""
        flat = flat if self.device is None else flat.to(self.device)
        return [part.view(parameter.shape) for parameter, part in zip(self.parameters, flat.split(self.sizes))]

    @torch.no_grad()
    def copies(self) -> list[torch.Tensor]:
        """A copy of each, as it is."""
        return [parameter.detach().clone() for parameter in self.parameters]

    @torch.no_grad()
    def put_back(self, copies: list[torch.Tensor]) -> None:
        """Writes copies back."""
        torch._foreach_copy_(self.parameters, copies)

    @torch.no_grad()
    def norms(self, gradients: list[torch.Tensor | None]) -> torch.Tensor:
        """The norm of each gradient, in the order of the parameters; 0 where there is none. It stays on the device."""
        there = [g for g in gradients if g is not None]
        if len(there) == len(gradients) and self.device is not None:
            return torch.stack(torch._foreach_norm(there)).to(torch.float32)
        zero = torch.zeros((), dtype=torch.float32)
        return torch.stack([zero if g is None else g.norm().float().cpu() for g in gradients])


def _check(name: str, parameter: torch.nn.Parameter) -> None:
    kind: Any = type(parameter.data).__name__
    is_flat = type(parameter).__name__ == "FlatParameter" or getattr(parameter, "_fsdp_flattened", False)
    if "DTensor" in kind or "Sharded" in kind or is_flat:
        kind = "FlatParameter" if is_flat else kind
        raise TypeError(
            f"the parameter {name} is a {kind}, of which this process has a part only; FSDP and tensor parallelism are not supported"
        )
    if not parameter.is_floating_point() or parameter.is_sparse:
        raise TypeError(f"the parameter {name} is of type {parameter.dtype}; parameters that are shared must be dense floats")
    if parameter.device.type == "meta":
        raise TypeError(f"the parameter {name} is on the meta device and has no numbers yet: load the model before joining")
