"""Rounds over torch.distributed give what grawa's own transport gives, for every method that shares parameters."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from group import TESTS, command, environment

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
    "qsr:period=4",
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
        [command(), "launch", "--workers", str(WORKERS), "--page", "none", "--out", str(tmp_path / "run"), "--",
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
    # The model that is evaluated is the same everywhere, and no worker's own.
    assert all((model == models[0]).all() for model in models)


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
try:
    with grawa.join(model, optimizer, "local-lgrawa:period=4", comm="torch") as run:
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


def test_a_process_that_dies_ends_the_job(tmp_path: Path) -> None:
    program = tmp_path / "joined.py"
    program.write_text(JOINED)
    survivor, dead = ranks(tmp_path, "dies", workers=2, program=program)
    assert dead.returncode == 3
    assert "ERROR" in survivor.stdout and "GrawaError" not in survivor.stdout, survivor.stdout + survivor.stderr
