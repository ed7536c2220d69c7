"""A Lightning module in a run.

    callback = Callback(method="mean:period=32,pull=1,prox=0")
    trainer = Trainer(max_steps=3200, val_check_interval=320, devices=1, callbacks=[callback])
    trainer.fit(module, callback.loader(dataset, batch_size=128, num_workers=4), DataLoader(test, 256))
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

try:
    import lightning.pytorch as pl
except ModuleNotFoundError as error:
    if error.name is None or not error.name.startswith("lightning"):
        raise
    # The same classes under the package's other name.
    import pytorch_lightning as pl  # type: ignore[no-redef]

from .step_loader import StepLoader
from .torch_run import Run, join


class Callback(pl.Callback):
    """Joins the run when training starts, with the module and its first optimizer. Validation sees the averaged model. The arguments are
    those of ``grawa.join``, without those that the trainer knows: model, optimizer, budget, evaluate, batch and examples.

    Lightning counts this worker's steps: the budget is ``Trainer(max_steps=...)``, and the averaged model is made every
    ``val_check_interval`` batches, which should be a multiple of the method's period. To Lightning the whole run is one epoch."""

    def __init__(self, method: str = "mean", **options: Any) -> None:
        for name in ("model", "optimizer", "budget", "evaluate", "batch", "examples"):
            if name in options:
                raise TypeError(
                    f"{name} is not an option here: it follows from the module, Trainer(max_steps, val_check_interval) and callback.loader"
                )
        self._method, self._options = method, options
        self._loader: StepLoader | None = None
        self._state: dict[str, Any] | None = None
        self._inside = ExitStack()
        self._run: Run | None = None

    @property
    def run(self) -> Run:
        """The run, from the start of training on."""
        if self._run is None:
            raise RuntimeError("the run is joined when training starts")
        return self._run

    def loader(self, dataset: Any, batch_size: int = 1, **options: Any) -> StepLoader:
        """The training batches, for ``trainer.fit``. Options are those of a ``DataLoader``."""
        self._loader = StepLoader(dataset, batch_size, **options)
        return self._loader

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        if trainer.world_size > 1:
            raise RuntimeError(
                f"the trainer has {trainer.world_size} processes or devices, and a process is one worker: Trainer(devices=1), started by "
                "grawa launch"
            )
        if trainer.max_steps < 1:
            raise RuntimeError(
                "how long to train is counted in steps of each worker: Trainer(max_steps=N), which are N * workers * batch size / examples "
                "epochs"
            )
        if self._loader is None:
            raise RuntimeError("every worker would read the same examples: give trainer.fit a callback.loader(dataset, batch_size)")
        self._loader.expect(trainer.max_steps, trainer.accumulate_grad_batches)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.train_dataloader is not self._loader:
            raise RuntimeError("every worker would read the same examples: give trainer.fit a callback.loader(dataset, batch_size)")
        if len(trainer.optimizers) != 1:
            raise RuntimeError(f"the module has {len(trainer.optimizers)} optimizers; a run has one, whose steps count")
        interval, evaluate = trainer.val_check_interval, None
        if isinstance(interval, int) and interval < len(self._loader):
            evaluate = f"{max(1, interval // trainer.accumulate_grad_batches)}step"
        self._run = join(
            pl_module,
            trainer.optimizers[0],
            self._method,
            budget=f"{trainer.max_steps}step",
            evaluate=evaluate,
            **self._options,
        )
        if self._state is not None:
            self._run.load_state_dict(self._state)
        self._loader.bind(self._run)
        self._run.start()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        # A worker that joined late has taken fewer steps than Lightning expects.
        if self.run.is_over:
            trainer.should_stop = True

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._run is not None and not trainer.sanity_checking:
            self._inside.enter_context(self._run.averaged())

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._inside.close()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.run.leave()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._inside.close()
        if self._run is not None:
            self._run.__exit__(type(exception), exception, None)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._run is None else self._run.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict or None
