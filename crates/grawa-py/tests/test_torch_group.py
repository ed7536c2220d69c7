"""PyTorch models in groups of processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from group import PATIENT, launch, said

pytest.importorskip("torch")

# Two classes of points; every example carries its number, so that what is dealt can be counted.
PROGRAM = """
import os, sys, time
import torch, torch.nn.functional as F, grawa
torch.manual_seed(int(os.environ.get("GRAWA_LOCAL_RANK", "0")))
torch.set_num_threads(1)

class Points(torch.utils.data.Dataset):
    def __len__(self): return 512
    def __getitem__(self, n):
        draw = torch.Generator().manual_seed(n)
        label = n % 2
        return torch.randn(8, generator=draw) + (1.5 if label else -1.5), label, n

model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = Points()
method, epochs = sys.argv[1], int(sys.argv[2])
options = eval(sys.argv[3]) if len(sys.argv) > 3 else {}
pause = options.pop("pause", 0)
dies = options.pop("dies", None)
mark = os.path.join(os.environ.get("GRAWA_OUT", "."), "killed")

def score(draw):
    x, y = zip(*[data[n][:2] for n in torch.randint(len(data), (32,), generator=draw).tolist()])
    return F.cross_entropy(model(torch.stack(x)), torch.tensor(y), reduction="sum")

dealt, errors, rounds = [], [], []
with grawa.join(model, opt, method, score=score) as run:
    run.on_round(lambda r: rounds.append(r["workers"]))
    for epoch in run.epochs(epochs):
        for x, y, n in run.loader(data, batch_size=8, **options):
            dealt.append((int(run.progress.epochs * 512 + 1e-6), n.tolist()))
            time.sleep(pause)
            if dies is not None and os.path.exists(mark) and len(run.workers) < 3:
                time.sleep(0.3)  # until the new one has loaded PyTorch
            if dies == run.worker and run.progress.epochs > 1 and not os.path.exists(mark):
                open(mark, "w").close()
                os.kill(os.getpid(), 9)
            loss = F.cross_entropy(model(x), y)
            run.loss(loss)
            loss.backward(); opt.step(); opt.zero_grad()
        with run.averaged():
            model.eval()
            x, y = zip(*[data[n][:2] for n in range(128)])
            errors.append(float((model(torch.stack(x)).argmax(1) != torch.tensor(y)).float().mean()))
            weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        model.train()
    if run.is_first:
        run.save(os.path.join(os.environ["GRAWA_OUT"], "model.pt"))
import json
print("found", json.dumps({"worker": run.worker, "errors": errors, "dealt": dealt, "steps": run.progress.steps,
      "rounds": len(rounds), "sum": weights.double().sum().item()}), flush=True)
"""


@pytest.mark.parametrize("method", ["mean:period=8,pull=1", "local-lgrawa:period=8", "lgrawa:period=8", "lsgd:period=8"])
def test_four_workers_train(tmp_path: Path, method: str) -> None:
    output = launch(tmp_path, PROGRAM, method, "4", options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    found = [json.loads(text) for text in said(output, "found")]
    assert len(found) == 4 and {one["steps"] for one in found} == {64}
    # All evaluate the same model, and it has learned.
    assert len({one["sum"] for one in found}) == 1
    assert all(one["errors"][-1] < 0.05 and len(one["errors"]) == 4 for one in found), found
    assert (tmp_path / "run" / "model.pt").exists()
    # In every epoch every example is dealt once.
    for epoch in range(4):
        numbers = [n for one in found for n in sum((batch for _, batch in one["dealt"][16 * epoch : 16 * (epoch + 1)]), [])]
        assert sorted(numbers) == list(range(512)), epoch


@pytest.mark.parametrize("options", ["{'num_workers': 2}", "{'accumulate': 2}", "{'num_workers': 1, 'accumulate': 2}"])
def test_loaders_that_read_ahead(tmp_path: Path, options: str) -> None:
    output = launch(tmp_path, PROGRAM.replace("batch_size=8", "batch_size=4" if "accumulate" in options else "batch_size=8").replace(
        "loss.backward(); opt.step(); opt.zero_grad()",
        "loss.backward(); n_batches = len(dealt)\n            if n_batches % options.get('accumulate', 1) == 0: opt.step(); opt.zero_grad()",
    ), "mean:period=8,pull=1", "2", options, workers=2, options=PATIENT)  # fmt: skip
    assert output.returncode == 0, output.stdout + output.stderr
    found = [json.loads(text) for text in said(output, "found")]
    for one in found:
        assert one["steps"] == 64
    half = len(found[0]["dealt"]) // 2
    for epoch in range(2):
        numbers = [n for one in found for n in sum((batch for _, batch in one["dealt"][half * epoch : half * (epoch + 1)]), [])]
        assert sorted(numbers) == list(range(512)), epoch


def test_one_is_killed_and_replaced(tmp_path: Path) -> None:
    output = launch(
        tmp_path, PROGRAM, "mean:period=4,pull=1", "12", "{'pause': 0.02, 'dies': 1, 'num_workers': 1}",
        workers=3, options=("--restarts", "1"),
    )  # fmt: skip
    assert output.returncode == 0, output.stdout + output.stderr
    assert (tmp_path / "run" / "killed").exists()
    found = [json.loads(text) for text in said(output, "found")]
    assert len(found) == 3, output.stdout
    assert len({one["sum"] for one in found}) == 1 and all(one["errors"][-1] < 0.05 for one in found)
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"event":"fault"' in events
    # The one that took the place began late.
    assert min(one["rounds"] for one in found) < max(one["rounds"] for one in found)


def test_another_model_is_refused(tmp_path: Path) -> None:
    program = PROGRAM.replace("Linear(16, 2)", "Linear(16, 3 if os.environ['GRAWA_LOCAL_RANK'] == '1' else 2)").replace(
        "dealt, errors", "time.sleep(2 if os.environ['GRAWA_LOCAL_RANK'] == '1' else 0)\ndealt, errors"
    )
    output = launch(tmp_path, program, "mean:period=8", "2", workers=2)
    assert output.returncode == 1
    assert "tensor 3.weight" in output.stdout or "tensor 3.bias" in output.stdout, output.stdout


def test_parameters_that_are_not_finite(tmp_path: Path) -> None:
    """A worker whose parameters overflow takes those of the others, and its momentum is dropped."""
    program = PROGRAM.replace(
        "            time.sleep(pause)\n",
        """            if run.worker == 1 and run.progress.steps == 10:
                with torch.no_grad(): model[0].weight[0, 0] = float("nan")
""",
    ).replace("run.on_round(", "run.on_round(lambda r: r['was_replaced'] and print('replaced', run.worker, len(opt.state), flush=True))\n    run.on_round(")  # fmt: skip
    output = launch(tmp_path, program, "mean:period=4", "4", workers=2, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    assert said(output, "replaced") == ["1 0"], output.stdout
    found = [json.loads(text) for text in said(output, "found")]
    assert all(one["errors"][-1] < 0.05 for one in found)


def test_alone(tmp_path: Path) -> None:
    """The same program without a launcher is one worker, and says so."""
    import subprocess
    import sys

    from group import environment

    (tmp_path / "program.py").write_text(PROGRAM)
    variables = {**environment(), "GRAWA_OUT": str(tmp_path)}
    output = subprocess.run(
        [sys.executable, "program.py", "mean:period=8", "2"], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120
    )
    assert output.returncode == 0, output.stdout + output.stderr
    assert "this worker trains alone" in output.stderr
    found = json.loads(output.stdout.split("found")[1])
    assert found["steps"] == 128 and found["errors"][-1] < 0.05


EPOCHS = """
import json, os, time
import torch, torch.nn.functional as F, grawa
torch.set_num_threads(1)
process = int(os.environ["GRAWA_LOCAL_RANK"])
torch.manual_seed(process)
data = torch.utils.data.TensorDataset(torch.randn(600, 20), torch.randint(2, (600,)))
model = torch.nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
passes, steps = [], 0
with grawa.join(model, optimizer, "mean:period=5") as run:
    for epoch in run.epochs(10):
        stalls = False
        for x, y in run.loader(data, batch_size=10):
            F.cross_entropy(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            steps += 1
            time.sleep(0.02)
            if process == 2 and steps == 13:
                stalls = True
                time.sleep(5)
        passes.append((epoch, run.progress.epochs, steps, stalls))
print("found", json.dumps([process, passes]), flush=True)
"""


def test_epochs_of_a_worker_that_missed_the_end_of_one(tmp_path: Path) -> None:
    """Its pass ends when it is back, and the next one has the number that the others have."""
    output = launch(tmp_path, EPOCHS, workers=3)
    assert output.returncode == 0, output.stdout + output.stderr
    found = dict(json.loads(text) for text in said(output, "found"))
    for passes in found.values():
        assert len(passes) > 1
        for epoch, end, steps, stalls in passes:
            if stalls:
                # It takes the steps of the cycle that it was in, of five.
                assert end > epoch + 1.5 and steps <= 20, found
            else:
                assert epoch <= end < epoch + 1.6, found
