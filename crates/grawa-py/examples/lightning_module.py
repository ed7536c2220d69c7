"""A Lightning module.

    grawa launch --workers 4 -- python lightning_module.py
"""

import argparse
import os

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from grawa.lightning import Callback


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch, _):
        x, y = batch
        self.log("error", (self(x).argmax(1) != y).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


def clouds(count: int, seed: int) -> TensorDataset:
    """Points around four centres."""
    centres = torch.randn(4, 20, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (count,), generator=generator)
    return TensorDataset(centres[labels] + torch.randn(count, 20, generator=generator), labels)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--method", default="local-lgrawa:period=16")
    args = parser.parse_args()

    pl.seed_everything(0)
    module = Classifier()
    grawa = Callback(method=args.method)
    trainer = pl.Trainer(
        max_steps=args.steps, val_check_interval=args.steps // 4, devices=1, callbacks=[grawa], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, accelerator="auto" if torch.cuda.is_available() else "cpu",
        default_root_dir=os.path.join("lightning-out", os.environ.get("GRAWA_LOCAL_RANK", "0")),
    )  # fmt: skip
    trainer.fit(module, grawa.loader(clouds(4096, 1), batch_size=32), DataLoader(clouds(1024, 2), 256))
    if grawa.run.is_first:
        print(f"averaged model: validation error {100 * float(trainer.callback_metrics['error']):.1f} %", flush=True)


if __name__ == "__main__":
    main()
