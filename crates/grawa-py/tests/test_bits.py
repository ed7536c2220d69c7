"""Four Python processes in a group against `grawa_core::Sequential`, for every method that shares parameters.

Both compute gradients and steps by the same NumPy functions (`mlp.py`); scores, weights, the mix, the pull and the evaluated model are
grawa's. Compared are all bits of every worker's parameters at the end, and those of the evaluated model."""

from __future__ import annotations

from pathlib import Path

import mlp
import pytest
from group import PATIENT, launch, said

from grawa import _native

WORKER = """
import sys
import numpy as np, grawa, mlp
x = mlp.start() + np.float32(0)
session = grawa.Session(x, method=sys.argv[1], budget="24step", tensors=mlp.TENSORS, seed=5)
model = None
while session.due != "end":
    if session.due == "step":
        worker, _, step = session.shard
        assert worker == session.worker
        loss, norms, gradient = mlp.gradient_of(worker, step, x.tobytes())
        centre = session.centre().tobytes() if session.prox > 0 else None
        x[:] = np.frombuffer(mlp.descend(x.tobytes(), gradient, centre, session.prox), np.float32)
        session.step(loss, norms if session.wants_norms else (), 0.05)
    elif session.due == "round":
        seed = session.score_seed
        session.round(x, () if seed is None else mlp.score(seed, x.tobytes()))
    else:
        model = session.evaluated_model(x)
session.finish()
print("bits", session.worker, x.tobytes().hex(), model.tobytes().hex(), flush=True)
"""


@pytest.mark.parametrize("method", _native._methods())
def test_bits(tmp_path: Path, method: str) -> None:
    text = f"{method}:period=4"
    expected, model = _native._sequential(
        text, mlp.TENSORS, mlp.start().tobytes(), 4, 24, 5, mlp.gradient_of, mlp.descend, mlp.score
    )
    output = launch(tmp_path, WORKER, text, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    found = dict(line.split(maxsplit=1) for line in said(output, "bits"))
    for worker in range(4):
        x, evaluated = found[str(worker)].split()
        assert bytes.fromhex(x) == bytes(expected[worker]), f"worker {worker}"
        assert bytes.fromhex(evaluated) == bytes(model), f"the model of worker {worker}"
