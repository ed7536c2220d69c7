"""What happens around each step of the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class StepHooks:
    """Calls ``before`` when the gradients of a step are there, with the factor that they are scaled by and the closure's loss if there
    is one; and ``after`` when the optimizer has taken the step."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        before: Callable[[float | torch.Tensor, Any], None],
        after: Callable[[], None],
    ) -> None:
        self._before, self._after = before, after
        self._is_skipped = False
        self._handles = [
            optimizer.register_step_pre_hook(self._pre),
            optimizer.register_step_post_hook(self._post),
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _pre(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        # A fused optimizer under a GradScaler divides by the scale, and skips steps that overflow, inside `step`.
        scale = getattr(optimizer, "grad_scale", None)
        found_inf = getattr(optimizer, "found_inf", None)
        self._is_skipped = found_inf is not None and bool(found_inf.item())
        scale = 1.0 if scale is None else scale
        # Optimizer.step is wrapped: its arguments begin with the optimizer itself.
        at = next((i for i, arg in enumerate(args) if callable(arg) and arg is not optimizer), None)
        closure = args[at] if at is not None else kwargs.get("closure")
        if closure is None:
            self._before(scale, None)
            return None
        seen = []

        def wrapped() -> Any:
            loss = closure()
            # Some optimizers call it several times: the first is at the parameters of this step.
            if not seen:
                seen.append(True)
                self._before(scale, loss)
            return loss

        if at is not None:
            args = (*args[:at], wrapped, *args[at + 1 :])
        else:
            kwargs = {**kwargs, "closure": wrapped}
        return args, kwargs

    def _post(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._is_skipped:
            self._after()
