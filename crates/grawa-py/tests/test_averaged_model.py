"""What `run.averaged()` gives: the model of the last round, the same on all workers, also inside an epoch and to one worker alone; and
batch norm's statistics from the same batches everywhere."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from group import PATIENT, launch, said

torch = pytest.importorskip("torch")

import grawa  # noqa: E402

MODEL_OF_THE_LAST_ROUND = """
import hashlib, json, os, sys
import torch, torch.nn.functional as F, grawa
torch.set_num_threads(1); torch.manual_seed(int(os.environ["GRAWA_LOCAL_RANK"]))
method, evaluate, loop = sys.argv[1:]
inputs = torch.randn(160, 20, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
model = torch.nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mark = lambda: hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()[:12]
after_round, found, ends = {}, [], []
def train(x, y):
    F.cross_entropy(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
def look():
    own, last = mark(), (run.last_round or {"round": 0})["round"]
    with run.averaged():
        found.append((last, mark()))
    assert mark() == own
with grawa.join(model, optimizer, method, evaluate=evaluate if evaluate != "none" else None) as run:
    run.on_round(lambda r: after_round.update({r["round"]: mark()}))
    if loop == "epochs":
        for epoch in run.epochs(3):
            for x, y in run.loader(data, batch_size=8):
                train(x, y)
                # One worker looks more often than the other: nobody waits for anybody.
                if not run.is_over and (run.worker == 0 or run.progress.steps % 3 == 0):
                    look()
            with run.averaged():
                ends.append(mark())
    else:
        run.start(budget="30step", batch=8, examples=160)
        draw = torch.Generator().manual_seed(run.worker)
        while not run.is_over:
            chosen = torch.randint(160, (8,), generator=draw)
            train(inputs[chosen], data.tensors[1][chosen])
            if not run.is_over and (run.worker == 0 or run.progress.steps % 3 == 0):
                look()
    last = mark()
with run.averaged():
    left = mark()
print("found", json.dumps([after_round, found, ends, left]), flush=True)
"""


@pytest.mark.parametrize(
    ("method", "evaluate", "loop"),
    [
        ("mean:period=4,pull=1,prox=0", "1epoch", "epochs"),
        ("mean:period=4,pull=1,prox=0", "none", "own"),
        ("mean:period=4,pull=0.5,prox=0", "1epoch", "epochs"),
        ("diloco:period=4,prox=0", "6step", "own"),
        ("easgd:period=4,prox=0", "1epoch", "epochs"),
    ],
)
def test_the_model_of_the_last_round(tmp_path: Path, method: str, evaluate: str, loop: str) -> None:
    output = launch(tmp_path, MODEL_OF_THE_LAST_ROUND, method, evaluate, loop, workers=2, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    workers = [json.loads(text) for text in said(output, "found")]
    assert len(workers) == 2
    by_round: dict[int, set[str]] = {}
    for _, found, _, _ in workers:
        for last, mark in found:
            by_round.setdefault(last, set()).add(mark)
    # Of one round there is one model, on both workers and at all times, but where all have evaluated after it; and it is no older one.
    assert len(by_round) >= 6, by_round
    for last, marks in by_round.items():
        assert len(marks) == 1, (last, marks)
    assert len(set.union(*by_round.values())) == len(by_round), by_round
    # With pull 1 it is what a worker has right after the round.
    if "pull=1" in method:
        for after_round, found, _, _ in workers:
            assert all(mark == after_round[str(last)] for last, mark in found if last > 0), (after_round, found)
    # At the end of an epoch, and of the run, all have the same.
    assert workers[0][2] == workers[1][2] and workers[0][3] == workers[1][3]


class Noisy(torch.utils.data.Dataset):
    """Augments by all three sources of chance."""

    read = 0

    def __len__(self) -> int:
        return 96

    def __getitem__(self, number: int) -> Any:
        Noisy.read += 1
        noise = torch.randn(4) + random.gauss(0, 1) + torch.from_numpy(np.random.randn(4).astype(np.float32))
        return torch.full((4,), number / 96) + noise, number % 2


def states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), [list(map(str, part)) if hasattr(part, "__len__") else part for part in np.random.get_state()]]


def test_recalibration_draws_by_the_runs_seed() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for seed, options in ((1, {}), (1, {}), (1, {"num_workers": 1}), (2, {})):
        with grawa.join(model, optimizer, "mean", seed=seed, budget="10step") as run:
            torch.manual_seed(len(found)), random.seed(len(found)), np.random.seed(len(found))
            loader = run.loader(Noisy(), batch_size=8, **options)
            Noisy.read, before = 0, states()
            run._calibrate(None, 50)
            assert states() == before
            # One pass at most.
            assert Noisy.read == (0 if options else 96)
            assert loader._loader.num_workers == options.get("num_workers", 0)
            first = torch.cat([model[1].running_mean, model[1].running_var])
            run._calibrate(None, 50)
            assert torch.equal(first, torch.cat([model[1].running_mean, model[1].running_var]))
            found.append(first)
    # The same whoever draws it, and with whatever processes.
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert not torch.equal(found[0], found[3])


def test_batches_of_ones_own_leave_the_random_state_alone() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with grawa.join(model, torch.optim.SGD(model.parameters(), lr=0.1), "mean", budget="10step") as run:
        own = torch.utils.data.DataLoader(Noisy(), batch_size=8, shuffle=True)
        before, statistics = states(), model[1].running_mean.clone()
        run._calibrate(own, 50)
        assert states() == before and not torch.equal(statistics, model[1].running_mean)


def open_file(_: int) -> None:
    found = torch.utils.data.get_worker_info().dataset
    found.opened = found.scale * 2


class Opened(Noisy):
    scale, opened = 3, None

    def __getitem__(self, number: int) -> Any:
        assert self.opened == 6
        return super().__getitem__(number)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_recalibration_with_a_worker_init_fn(start: str) -> None:
    """It reads and sets attributes of the data set, as in training."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with grawa.join(model, torch.optim.SGD(model.parameters(), lr=0.1), "mean", budget="10step") as run:
        loader = run.loader(Opened(), batch_size=8, num_workers=1, worker_init_fn=open_file, multiprocessing_context=start)
        assert len(list(loader.some(3))) == 3


def test_few_batches_are_as_many_as_asked_for() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    with grawa.join(model, torch.optim.SGD(model.parameters(), lr=0.1), "mean", budget="10step") as run:
        for size, batches, expected in ((8, 5, 5), (8, 50, 12), (96, 50, 1), (200, 50, 1), (90, 50, 1)):
            run._loader = None
            run.loader(Noisy(), batch_size=size)
            assert len(list(run._loader.some(batches))) == expected


BATCH_NORM = """
import json, os, random, sys
import numpy as np, torch, torch.nn.functional as F, grawa
sys.path.insert(0, os.environ["TESTS"])
from test_averaged_model import Noisy
rank = int(os.environ["GRAWA_LOCAL_RANK"])
torch.set_num_threads(1); torch.manual_seed(rank); random.seed(rank); np.random.seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
found = []
with grawa.join(model, optimizer, "mean:period=3,pull=1,prox=0") as run:
    for epoch in run.epochs(3):
        for x, y in run.loader(Noisy(), batch_size=8):
            F.cross_entropy(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        for _ in range(1 + rank):
            with run.averaged():
                found.append((epoch, torch.cat([p.detach().reshape(-1) for p in model.state_dict().values()]).tolist()))
print("found", json.dumps(found), flush=True)
"""


AVERAGED = """
import json, os, warnings
import torch, torch.nn.functional as F, grawa
rank = int(os.environ["GRAWA_LOCAL_RANK"])
torch.set_num_threads(1); torch.manual_seed(rank)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
found = []
def look():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with run.averaged():
            state = torch.cat([p.detach().reshape(-1) for name, p in model.state_dict().items() if "num" not in name]).tolist()
    found.append((run.last_round["round"] if run.last_round else 0, run.is_over, [str(one.message) for one in seen], state))
with grawa.join(model, optimizer, "mean:period=3,pull=1,prox=0", buffers="average", evaluate="12step", budget="1000step", batch=8, examples=96) as run:
    run.start()
    while not run.is_over:
        F.cross_entropy(model(torch.randn(8, 4) + rank), torch.randint(2, (8,))).backward(); optimizer.step(); optimizer.zero_grad()
        if run.progress.steps == 29 and rank == 0:
            run.stop()
        elif not run.is_over:
            look()
    look()
print("found", json.dumps(found), flush=True)
"""


def test_averaged_statistics_stay_until_the_next_average(tmp_path: Path) -> None:
    output = launch(tmp_path, AVERAGED, workers=2, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    first, second = (json.loads(text) for text in said(output, "found"))
    # The second worker may hear of the stop before it looks at the last round.
    looks = [[(at, is_over, state) for at, is_over, _, state in found if at >= 4 and (at < 9 or is_over)] for found in (first, second)]
    by_round = [{(at, is_over): state for at, is_over, state in found} for found in looks]
    assert by_round[0].keys() == by_round[1].keys() and len(by_round[0]) >= 5
    assert by_round[0] == by_round[1]
    # Rounds change the parameters, and the statistics stay those of step 12, then 24.
    assert len({str(state) for state in by_round[0].values()}) >= 5
    assert len({str(state[21:27]) for state in by_round[0].values()}) == 2
    # Before the first average this worker's own are used, which is said once.
    for found in (first, second):
        assert [len(seen) for *_, seen, _ in found] == [1] + [0] * (len(found) - 1)
        assert "were not averaged yet" in found[0][2][0]


def test_a_pass_ends_with_a_round() -> None:
    """After it the model of a round is evaluated, and no older one. Here an epoch has 12 steps, and a round comes every 5."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ends = []
    with grawa.join(model, optimizer, "mean:period=5") as run:
        for _ in run.epochs(4):
            for x, y in run.loader(Noisy(), batch_size=8):
                torch.nn.functional.cross_entropy(model(x), y).backward(), optimizer.step(), optimizer.zero_grad()
            ends.append(run.progress.steps)
    # The budget ends with the last epoch.
    assert ends == [15, 25, 40, 48]


def test_a_test_in_eval_mode_does_not_end_training() -> None:
    """A frozen part stays in eval mode, and the rest trains on with dropout and batch norm."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(), torch.nn.BatchNorm1d(3))
    model[3].eval()
    with grawa.join(model, torch.optim.SGD(model.parameters(), lr=0.1), "mean", budget="10step") as run:
        run.loader(Noisy(), batch_size=8)
        with run.averaged() as evaluated:
            evaluated.eval()
        assert [module.training for module in model.modules()] == [True, True, True, True, False]
        with pytest.raises(ZeroDivisionError), run.averaged() as evaluated:
            evaluated.eval()
            1 / 0  # noqa: B018
        assert [module.training for module in model.modules()] == [True, True, True, True, False]


def test_all_workers_evaluate_the_same_buffers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESTS", str(Path(__file__).parent))
    output = launch(tmp_path, BATCH_NORM, workers=2, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    by_epoch: dict[int, list[Any]] = {}
    for text in said(output, "found"):
        for epoch, state in json.loads(text):
            by_epoch.setdefault(epoch, []).append(state)
    assert len(by_epoch) >= 2
    for epoch, models in by_epoch.items():
        # num_batches_tracked is this worker's own count of the recalibration: equal, too.
        assert len(models) == 3 and models[0] == models[1] == models[2], epoch
