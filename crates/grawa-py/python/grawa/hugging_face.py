"""A Hugging Face ``Trainer`` in a run.

    class MyTrainer(InRun, transformers.Trainer): ...
    trainer = MyTrainer(model=model, args=TrainingArguments("out", max_steps=3200, eval_strategy="steps", eval_steps=320),
                        train_dataset=train, eval_dataset=test, grawa={"method": "mean:period=32,pull=1,prox=0"})
    trainer.train()
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from transformers import Trainer as _Trainer
from transformers import TrainerCallback

from .step_loader import StepLoader
from .torch_run import Run, join


def _refuse(options: dict[str, Any]) -> None:
    for name in ("model", "optimizer", "budget", "evaluate", "batch", "examples"):
        if name in options:
            raise TypeError(
                f"{name} is not an option here: it follows from the trainer's model and train_dataset, and from "
                "TrainingArguments(max_steps, eval_steps, per_device_train_batch_size)"
            )


class Callback(TrainerCallback):
    """Joins the run when training begins, and ends training with it. ``InRun`` adds it to its trainer."""

    def __init__(self, loader: StepLoader, method: str = "mean", **options: Any) -> None:
        _refuse(options)
        self._loader, self._method, self._options = loader, method, options
        self.run: Run | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **found: Any) -> None:
        if self.run is not None:
            self.run.leave()
        # accelerate wraps the optimizer; its steps are those of the one inside.
        optimizer = getattr(found["optimizer"], "optimizer", found["optimizer"])
        evaluate = f"{int(state.eval_steps)}step" if args.eval_strategy == "steps" and state.eval_steps else None
        self.run = join(found["model"], optimizer, self._method, budget=f"{args.max_steps}step", evaluate=evaluate, **self._options)
        self._loader.bind(self.run)
        self.run.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        # A worker that joined late has taken fewer steps than the trainer expects.
        if self.run is not None and self.run.is_over:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.run is not None:
            self.run.leave()


class InRun:
    """To be inherited before a ``Trainer``, also one of your own: each worker reads its own shard, evaluation sees the averaged model, and
    ``save_averaged`` writes it. ``grawa`` has the arguments of ``grawa.join``, without those that the trainer knows: model, optimizer,
    budget, evaluate, batch and examples.

    The trainer counts this worker's steps: the budget is ``max_steps``, and the averaged model is made every ``eval_steps``, which should
    be a multiple of the method's period. To the trainer the whole run is one epoch."""

    def __init__(self, *arguments: Any, grawa: dict[str, Any] | None = None, **named: Any) -> None:
        _refuse(grawa or {})
        super().__init__(*arguments, **named)
        self._grawa = dict(grawa or {})
        self._callback: Callback | None = None

    @property
    def run(self) -> Run | None:
        """The run, from the beginning of training on."""
        return None if self._callback is None else self._callback.run

    def get_train_dataloader(self) -> StepLoader:
        args = self.args  # type: ignore[attr-defined]
        if args.world_size > 1 or args.n_gpu > 1:
            raise RuntimeError(
                f"the trainer has {args.world_size} processes and {args.n_gpu} GPUs, and a process is one worker with one GPU at most: "
                "start it with grawa launch, and set CUDA_VISIBLE_DEVICES"
            )
        if args.max_steps < 1:
            raise RuntimeError(
                "how long to train is counted in steps of each worker: TrainingArguments(max_steps=N), which are "
                "N * workers * batch size / examples epochs"
            )
        dataset = self.train_dataset  # type: ignore[attr-defined]
        if dataset is None or isinstance(dataset, torch.utils.data.IterableDataset):
            raise TypeError("a train_dataset with a length is needed: the run deals its examples by number")
        loader = StepLoader(
            dataset,
            args.train_batch_size,
            collate_fn=self._get_collator_with_removed_columns(self.data_collator, "Training"),  # type: ignore[attr-defined]
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory and torch.cuda.is_available(),
        )
        loader.expect(args.max_steps, args.gradient_accumulation_steps)
        if self._callback is not None:
            self.remove_callback(self._callback)  # type: ignore[attr-defined]
        self._callback = Callback(loader, **self._grawa)
        self.add_callback(self._callback)  # type: ignore[attr-defined]
        return loader

    def train(self, resume_from_checkpoint: Any = None, *arguments: Any, **named: Any) -> Any:
        if resume_from_checkpoint:
            raise RuntimeError(
                "a trainer's checkpoint is one worker's, and a run continues from the state of all: continue with `grawa launch --resume DIR`, "
                "which keeps it, and leave resume_from_checkpoint away; or load the checkpoint's weights into the model and begin a new run"
            )
        return super().train(None, *arguments, **named)  # type: ignore[misc]

    def evaluate(self, *arguments: Any, **named: Any) -> Any:
        with nullcontext() if self.run is None else self.run.averaged():
            return super().evaluate(*arguments, **named)  # type: ignore[misc]

    def save_averaged(self, folder: str | None = None) -> None:
        """Writes the averaged model, as ``save_model`` writes this worker's own."""
        with nullcontext() if self.run is None else self.run.averaged():
            self.save_model(folder)  # type: ignore[attr-defined]


class Trainer(InRun, _Trainer):
    """``transformers.Trainer`` in a run."""
