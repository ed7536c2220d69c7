"""Rounds over torch.distributed give what grawa's own transport gives, for every method that shares parameters."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from group import PATIENT, SAME_BATCHES, TESTS, command, environment

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
if not dist.is_available() or not dist.is_gloo_available():
    pytest.skip("this PyTorch has no Gloo", allow_module_level=True)

METHODS = [
    "mean:period=4,pull=1",
    "mean:period=4!",
    "easgd:period=4",
    "easgd:period=4,toward=old!",
    "lsgd:period=4",
    "grawa:period=4",
    "mgrawa:period=4",
    "lgrawa:period=4",
    "local-mgrawa:period=4",
    "local-lgrawa:period=4!",
    "diloco:period=4,prox=0",
    "diloco:period=4,prox=0,rate=1,momentum=0.3!",
    "slowmo:period=4,prox=0",
    "slowmo:period=4,prox=0!",
    "dppf:period=4",
    "dppf:period=4!",
    # At the rate 0.1 the period grows to 16 steps.
    "qsr:period=4,qsr=0.4",
    "mean:period=4,pull=0.5,evaluate=best",
    "mean:period=4,pull=0.5,evaluate=centre!",
    "mean:period=4,pull=0.5,evaluate=each",
]
WORKERS = 3
PROGRAM = TESTS / "methods_program.py"


def ranks(folder: Path, *words: str, workers: int = WORKERS, program: Path = PROGRAM) -> list[subprocess.CompletedProcess[str]]:
    """Runs a program in processes that meet at a file."""
    started = [
        subprocess.Popen(
            [sys.executable, str(program), *words, "torch", str(folder / "meet"), str(rank), str(workers)],
            cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(workers)
    ]  # fmt: skip
    results = []
    for process in started:
        output, errors = process.communicate(timeout=300)
        results.append(subprocess.CompletedProcess(process.args, process.returncode, output, errors))
    return results


@pytest.fixture(scope="module")
def over_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch")
    for result in ranks(folder, str(folder), ";".join(METHODS)):
        assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize("number", range(len(METHODS)), ids=METHODS)
def test_equals_grawas_transport(number: int, over_torch: Path, tmp_path: Path) -> None:
    launched = subprocess.run(
        [command(), "launch", "--workers", str(WORKERS), "--page", "none", *PATIENT, "--out", str(tmp_path / "run"), "--",
         sys.executable, str(PROGRAM), str(tmp_path), METHODS[number], "grawa"],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert launched.returncode == 0, launched.stdout + launched.stderr
    models = []
    for worker in range(WORKERS):
        theirs = numpy.load(over_torch / f"torch-{number}-{worker}.npy")
        ours = numpy.load(tmp_path / f"grawa-0-{worker}.npy")
        assert numpy.isfinite(ours).all()
        numpy.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-6)
        models.append(theirs[1:])
    # The model that is evaluated is the same everywhere, unless it is each worker's own.
    is_same = all((model == models[0]).all() for model in models)
    assert is_same != METHODS[number].endswith("evaluate=each")


def test_without_a_process_group_it_says_what_to_do() -> None:
    import grawa

    model = torch.nn.Linear(2, 1)
    with grawa.join(model, torch.optim.SGD(model.parameters(), lr=0.1), comm="torch", budget="4step", batch=1, examples=8) as run:
        with pytest.raises(RuntimeError, match="init_process_group"):
            run.start()


JOINED = '''
import sys, torch, torch.distributed as dist, torch.nn.functional as F, grawa
case, _, file, rank, size = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(size))
torch.manual_seed(int(rank))
width = 5 if case == "differs" and rank == "1" else 4
model = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU(), torch.nn.Linear(width, 2))
inputs = torch.randn(96, 8, generator=torch.Generator().manual_seed(1))
data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long(), torch.arange(96))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
read, rounds = [], []
buffers = "keep" if case == "keeps" and rank == "1" else "recalibrate"
try:
    with grawa.join(model, optimizer, "local-lgrawa:period=4", comm="torch", buffers=buffers) as run:
        run.on_round(rounds.append)
        for epoch in run.epochs(2):
            for x, y, numbers in run.loader(data, batch_size=8):
                if case == "dies" and rank == "1" and run.progress.steps == 6:
                    import os
                    os._exit(3)
                read += numbers.tolist()
                F.cross_entropy(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        with run.averaged():
            total = sum(p.double().sum() for p in model.parameters()).item()
    print("RESULT", total, len(read), len(set(read[:48])), len(rounds), sum(rounds[-1]["weights"].values()))
except (ValueError, RuntimeError) as error:
    print("ERROR", type(error).__name__, error)
'''


def test_a_model_over_torch(tmp_path: Path) -> None:
    program = tmp_path / "joined.py"
    program.write_text(JOINED)
    found = []
    for result in ranks(tmp_path, "trains", workers=2, program=program):
        assert "RESULT" in result.stdout, result.stdout + result.stderr
        found.append(result.stdout.split("RESULT")[1].split())
    assert found[0] == found[1]
    _, examples, distinct, rounds, weights = (float(x) for x in found[0])
    # Two epochs of 96 examples by two workers: none is read twice in an epoch.
    assert (examples, distinct, rounds) == (96, 48, 3)
    assert abs(weights - 1) < 1e-6


def test_models_that_differ(tmp_path: Path) -> None:
    program = tmp_path / "joined.py"
    program.write_text(JOINED)
    for result in ranks(tmp_path, "differs", workers=2, program=program):
        assert "ERROR ValueError the workers differ in tensor 0.weight" in result.stdout, result.stdout + result.stderr


def test_buffers_that_differ(tmp_path: Path) -> None:
    program = tmp_path / "joined.py"
    program.write_text(JOINED)
    for result in ranks(tmp_path, "keeps", workers=2, program=program):
        expected = 'buffers is "keep" on worker 1 and "recalibrate" on worker 0'
        assert "ERROR ValueError" in result.stdout and expected in result.stdout, result.stdout + result.stderr


def test_a_process_that_dies_ends_the_job(tmp_path: Path) -> None:
    program = tmp_path / "joined.py"
    program.write_text(JOINED)
    survivor, dead = ranks(tmp_path, "dies", workers=2, program=program)
    assert dead.returncode == 3
    assert "ERROR" in survivor.stdout and "GrawaError" not in survivor.stdout, survivor.stdout + survivor.stderr


SEVERAL = '''
import json, sys, warnings, torch, torch.distributed as dist, grawa
_, file, rank, size = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(rank), world_size=int(size))
warnings.simplefilter("always")
seeds = {"alike": 0, "two of three": min(int(rank), 1), "differ": int(rank), "no rate": 0, "frozen": 0, "late": 0}
for case, seed in seeds.items():
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0 if case == "no rate" else 0.1)
    draw = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings(record=True) as found:
        with grawa.join(model, optimizer, "mean:period=2,pull=0.5", comm="torch", budget="40step", batch=1, examples=8) as run:
            run.start()
            while not run.is_over:
                # Alike only in the last of 20 rounds: nobody compares any more.
                inputs = torch.randn(5, 4, generator=draw) + (int(rank) if case == "late" and run.progress.steps < 36 else 0)
                model(inputs).square().sum().backward()
                if case == "frozen":
                    # Each trains one part, and the gradient of the other is zero.
                    model.weight.grad.zero_() if rank == "0" else model.bias.grad.zero_()
                optimizer.step(); optimizer.zero_grad()
    print("FOUND", json.dumps([case, [str(one.message) for one in found]]))

# Batch norm: the model is evaluated with the statistics of all, or with this worker's own.
for buffers in ("average", "keep"):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    draw = torch.Generator().manual_seed(int(rank))
    with grawa.join(model, optimizer, "mean:period=4,pull=1", comm="torch", buffers=buffers, budget="8step", evaluate="8step", batch=1, examples=8) as run:
        run.start()
        if rank == "0":
            # One process alone: it must not wait for the others.
            try:
                run.session.round(run._shared.gather())
            except grawa.GrawaError as error:
                print("REFUSED", error)
        while not run.is_over:
            (model(torch.randn(8, 4, generator=draw) + int(rank)) - 1).abs().mean().backward()
            optimizer.step(); optimizer.zero_grad()
        own = model[1].running_mean.tolist()
        with run.averaged():
            inside = [model[1].running_mean.tolist(), model[1].running_var.tolist(), model[0].weight.tolist()]
        assert model[1].running_mean.tolist() == own
    print("BUFFERS", json.dumps([buffers, own, *inside]))
dist.destroy_process_group()
'''


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> list[list[list[object]]]:
    folder = tmp_path_factory.mktemp("several")
    program = folder / "several.py"
    program.write_text(SEVERAL)
    results = ranks(folder, program=program)
    assert all(result.returncode == 0 for result in results), [result.stderr for result in results]
    assert [result.stdout.count("REFUSED") for result in results] == [2, 0, 0], results[0].stdout
    return [[json.loads(line.split(" ", 1)[1]) for line in result.stdout.splitlines() if line[:5] in ("FOUND", "BUFFE")] for result in results]


def test_workers_that_are_alike(several: list[list[list[object]]]) -> None:
    for found in several:
        assert found[:6] == [
            ["alike", [SAME_BATCHES]], ["two of three", [SAME_BATCHES.replace("0 and 1", "1 and 2")]], ["differ", []], ["no rate", []],
            ["frozen", [SAME_BATCHES.replace("0 and 1", "1 and 2")]], ["late", []],
        ]  # fmt: skip


def test_statistics_of_batch_norm(several: list[list[list[object]]]) -> None:
    average, keep = ([found[at] for found in several] for at in (6, 7))
    assert average[0][0] == "average" and keep[0][0] == "keep"
    for rows in (average, keep):
        # Each worker's own differ, the parameters do not.
        assert rows[0][1] != rows[1][1] != rows[2][1] and rows[0][4] == rows[1][4] == rows[2][4]
    for _, own, mean, _, _ in keep:
        assert mean == own
    expected = numpy.mean([row[1] for row in average], axis=0)
    for _, _, mean, variance, _ in average:
        numpy.testing.assert_allclose(mean, expected, atol=1e-6)
        assert variance == average[0][3]
