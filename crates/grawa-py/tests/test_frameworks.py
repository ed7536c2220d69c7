"""Lightning and Hugging Face's Trainer: who reads what, what is evaluated, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from group import PATIENT, launch, said

torch = pytest.importorskip("torch")

# What the trainer knows is no option.
REFUSED = ("model", "optimizer", "budget", "evaluate", "batch", "examples")

DATA = """
import json, torch, torch.nn.functional as F
class Data(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, i): return READ
read = []
"""

LIGHTNING = DATA.replace("READ", "(torch.full((4,), i / 64), i)") + """
import lightning.pytorch as pl
from grawa.lightning import Callback
class Module(pl.LightningModule):
    def __init__(self):
        super().__init__(); self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    def forward(self, x): return self.net(x)
    def training_step(self, batch, _):
        read.extend(batch[1].tolist())
        return F.cross_entropy(self(batch[0]), batch[1] % 2)
    def on_validation_epoch_end(self):
        seen.append(float(sum(p.double().sum() for p in self.parameters())))
    def validation_step(self, batch, _): pass
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
seen = []
grawa = Callback(method="mean:period=4,pull=0.5,prox=0")
trainer = pl.Trainer(max_steps=8, val_check_interval=4 * ACCUMULATE, accumulate_grad_batches=ACCUMULATE, devices=1, callbacks=[grawa], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", num_sanity_val_steps=1)
module = Module()
val = torch.utils.data.DataLoader(Data(), 32)
trainer.fit(module, grawa.loader(Data(), batch_size=4), val)
own = float(sum(p.double().sum() for p in module.parameters()))
print("READ", json.dumps(read)); print("SEEN", json.dumps(seen[1:])); print("OWN", own); print("STATE", grawa.state_dict()["method"])
"""

HUGGING_FACE = DATA.replace("READ", '{"x": torch.full((4,), i / 64), "labels": i % 2, "number": i}') + """
import os
from transformers import TrainingArguments
from grawa.hugging_face import Trainer
class Net(torch.nn.Module):
    def __init__(self): super().__init__(); self.net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    def forward(self, x, labels=None, number=None):
        if self.training: read.extend(number.tolist())
        logits = self.net(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}
torch.manual_seed(0)
trainer = Trainer(model=Net(), train_dataset=Data(), eval_dataset=Data(), grawa={"method": "mean:period=4,pull=0.5,prox=0"}, args=TrainingArguments(
    "out" + os.environ.get("GRAWA_LOCAL_RANK", ""), max_steps=8, per_device_train_batch_size=4, gradient_accumulation_steps=ACCUMULATE,
    eval_strategy="steps", eval_steps=4, report_to="none", save_strategy="no", disable_tqdm=True, use_cpu=True, learning_rate=0.1))
seen = []
evaluate = trainer.evaluation_loop
def watched(*a, **k):
    seen.append(float(sum(p.double().sum() for p in trainer.model.parameters())))
    return evaluate(*a, **k)
trainer.evaluation_loop = watched
trainer.train()
own = float(sum(p.double().sum() for p in trainer.model.parameters()))
print("READ", json.dumps(read)); print("SEEN", json.dumps(seen)); print("OWN", own); print("STATE", trainer.run.method)
"""


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_workers_share(framework: str, accumulate: int, tmp_path: Path) -> None:
    pytest.importorskip(framework)
    program = {"lightning": LIGHTNING, "transformers": HUGGING_FACE}[framework].replace("ACCUMULATE", str(accumulate))
    done = launch(tmp_path, program, workers=2, options=PATIENT, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (json.loads(read) for read in said(done, "READ"))
    # Eight steps of two workers read all 64 examples, once if a step has one batch of four, twice if it has two.
    assert len(first) == len(second) == 32 * accumulate
    for epoch in range(accumulate):
        part = slice(32 * epoch, 32 * (epoch + 1))
        assert sorted(first[part] + second[part]) == list(range(64))
    seen = [json.loads(line) for line in said(done, "SEEN")]
    # Both evaluate the same model, twice; it is no worker's own.
    assert seen[0] == seen[1] and len(seen[0]) == 2
    own = [float(line) for line in said(done, "OWN")]
    assert own[0] != own[1] and seen[0][-1] not in own
    assert said(done, "STATE") == ["mean:period=4,pull=0.5,prox=0"] * 2


def test_lightning_refuses(tmp_path: Path) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from grawa.lightning import Callback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(2, 1)

        def training_step(self, batch, _):
            return self.net(batch[0]).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    data = torch.utils.data.TensorDataset(torch.ones(8, 2))
    quiet = dict(logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", devices=1)

    def fit(callback: Callback, loader: object, **options: object) -> None:
        pl.Trainer(**quiet, callbacks=[callback], default_root_dir=tmp_path, **options).fit(Module(), loader)

    callback = Callback()
    with pytest.raises(RuntimeError, match="max_steps"):
        fit(callback, callback.loader(data, 2), max_epochs=1)
    with pytest.raises(RuntimeError, match="callback.loader"):
        fit(Callback(), torch.utils.data.DataLoader(data), max_steps=4)
    callback = Callback()
    callback.loader(data, 2)
    with pytest.raises(RuntimeError, match="callback.loader"):
        fit(callback, torch.utils.data.DataLoader(data), max_steps=4)
    for option in REFUSED:
        with pytest.raises(TypeError, match=f"{option} is not an option here: it follows from"):
            Callback(**{option: None})


def test_hugging_face_refuses(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from grawa.hugging_face import Callback, Trainer
    from grawa.step_loader import StepLoader

    def train(**options: object) -> None:
        args = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True, **options)
        Trainer(model=torch.nn.Linear(2, 1), args=args, train_dataset=[{"x": 1}] * 4).train()

    with pytest.raises(RuntimeError, match="max_steps"):
        train(num_train_epochs=1)
    for option in REFUSED:
        for refused in (lambda given: Trainer(model=torch.nn.Linear(2, 1), grawa=given), lambda given: Callback(StepLoader([], 1), **given)):
            with pytest.raises(TypeError, match=f"{option} is not an option here: it follows from"):
                refused({option: None})
