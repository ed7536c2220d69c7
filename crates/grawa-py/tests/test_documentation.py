"""Every Python block of docs/own-model runs, by a worker alone. What the pages leave to the reader is defined here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from group import TESTS, environment

DOCS = TESTS.parents[2] / "docs/own-model"

TORCH = """
import os, torch, torch.nn.functional as F, grawa
from torch.utils.data import DataLoader, TensorDataset
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
def MyDataset():
    x = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long())
def test(model):
    x, y = MyDataset().tensors
    return float((model.eval()(x).argmax(1) != y).float().mean())
"""
LIGHTNING = """
import lightning.pytorch as pl
train_data = test_data = MyDataset()
class Module(pl.LightningModule):
    def __init__(self): super().__init__(); self.net = Net()
    def forward(self, x): return self.net(x)
    def training_step(self, batch, _): return F.cross_entropy(self(batch[0]), batch[1])
    def validation_step(self, batch, _): self.log("error", (self(batch[0]).argmax(1) != batch[1]).float().mean())
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu")
"""
HUGGING_FACE = """
import transformers
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0))
train = test = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 64
quiet = dict(report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True)
"""
NUMPY = "def loss_and_gradient(x): return float(x @ x) / 2, x"

# What each page needs, and the code before each of its blocks.
PAGES = {
    "README.md": (["torch"], TORCH),
    "pytorch.md": (["torch"], TORCH),
    "lightning.md": (["torch", "lightning"], TORCH + LIGHTNING),
    "hugging-face.md": (["torch", "transformers", "accelerate"], TORCH + HUGGING_FACE),
    "numpy.md": (["numpy"], NUMPY),
}
# Packages of single blocks, which are skipped without them.
OPTIONAL = ("tensorboard", "wandb", "mlflow")

RUNNER = """
import importlib.util, sys
before, *blocks = sys.stdin.read().split("\\n=====\\n")
for number, block in enumerate(blocks, 1):
    lacks = [name for name in sys.argv[1:] if name in block and importlib.util.find_spec(name) is None]
    if lacks:
        print("SKIPPED", number, lacks[0])
        continue
    exec(compile(before, "before", "exec"), names := {"__name__": "block"})
    exec(compile(block, f"block {number}", "exec"), names)
    print("RAN", number)
"""


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)


def test_every_page_is_here() -> None:
    assert {page.name for page in DOCS.glob("*.md") if blocks(page.name)} == set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page: str, tmp_path: Path) -> None:
    needs, before = PAGES[page]
    for name in needs:
        pytest.importorskip(name)
    found = blocks(page)
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, *OPTIONAL],
        input="\n=====\n".join([before, *found]), cwd=tmp_path, env={**environment(), "HF_HUB_OFFLINE": "1", "WANDB_SILENT": "true"},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    skipped = re.findall(r"SKIPPED (\d+) (\w+)", done.stdout)
    assert done.stdout.count("RAN") == len(found) - len(skipped)
    for number, name in skipped:
        warnings.warn(f"{page}: block {number} was not run, {name} is not installed")
    if page == "pytorch.md" and os.path.isdir(tmp_path / "logs"):
        assert any((tmp_path / "logs").rglob("events.out.tfevents*"))
