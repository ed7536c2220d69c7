"""How a run ends: one model on all, one first worker, the code after the loop everywhere, and exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from group import command, environment, launch, said

NUMPY = """
import hashlib, json, os, sys, time
import numpy, grawa
stall_at, seconds = int(sys.argv[1]), float(sys.argv[2])
process = int(os.environ["GRAWA_LOCAL_RANK"])
x = numpy.zeros(50, dtype=numpy.float32)
session = grawa.Session(x, method="mean:period=8,pull=0.5", budget="80step")
steps, model = 0, None
while (due := session.due) != "end":
    if due == "step":
        x -= 0.1 * (x - process)
        steps += 1
        time.sleep(0.004)
        if process == 2 and steps == stall_at:
            time.sleep(seconds)
        session.step(1.0)
    elif due == "round":
        session.round(x)
    else:
        model = session.evaluated_model(x)
first, members = session.is_first, session.members
session.finish()
time.sleep(0.5 * process)
print("found", json.dumps({"process": process, "worker": session.worker, "first": first, "still": session.is_first,
      "members": members, "model": hashlib.sha256(model.tobytes()).hexdigest()}), flush=True)
"""

TORCH = """
import hashlib, json, os, sys, time
import torch, torch.nn.functional as F, grawa
torch.set_num_threads(1)
stall_at, seconds = int(sys.argv[1]), float(sys.argv[2])
process = int(os.environ["GRAWA_LOCAL_RANK"])
torch.manual_seed(process)
data = torch.utils.data.TensorDataset(torch.randn(2400, 20), torch.randint(2, (2400,)))
model = torch.nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
with grawa.join(model, optimizer, "mean:period=10,pull=1,prox=0", budget="80step", evaluate="40step") as run:
    while not run.is_over:
        for x, y in run.loader(data, batch_size=10):
            F.cross_entropy(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
            steps += 1
            time.sleep(0.004)
            if process == 2 and steps == stall_at:
                time.sleep(seconds)
    with run.averaged():
        sha = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    print("found", json.dumps({"process": process, "worker": run.worker, "first": run.is_first, "members": run.workers,
          "still": run.is_first, "model": sha}), flush=True)
"""


def check_end(output: object, workers: int = 3) -> None:
    assert output.returncode == 0, output.stdout + output.stderr
    found = [json.loads(text) for text in said(output, "found")]
    assert len(found) == workers, output.stdout + output.stderr
    assert len({one["model"] for one in found}) == 1, found
    assert sum(one["first"] for one in found) == 1 and all(one["first"] == one["still"] for one in found), found
    assert all(one["members"] == list(range(workers)) for one in found), found
    # Output, logs and messages have one number for a worker.
    assert all(one["process"] == one["worker"] for one in found), found


@pytest.mark.parametrize("stall_at", [62, 73, 79])
def test_a_straggler_has_the_model_of_all(tmp_path: Path, stall_at: int) -> None:
    pytest.importorskip("numpy")
    check_end(launch(tmp_path, NUMPY, str(stall_at), "4", workers=3))


@pytest.mark.parametrize("stall_at", [65, 75])
def test_a_straggler_with_pytorch_has_the_model_of_all(tmp_path: Path, stall_at: int) -> None:
    pytest.importorskip("torch")
    check_end(launch(tmp_path, TORCH, str(stall_at), "4", workers=3))


ENDS = """
import os, sys, time
import numpy, grawa
process = int(os.environ["GRAWA_LOCAL_RANK"])
x = numpy.zeros(50, dtype=numpy.float32)
session = grawa.Session(x, method="mean:period=8,pull=0.5", budget=sys.argv[2])
while (due := session.due) != "end":
    if due == "step":
        session.step(1.0)
        if sys.argv[1] == "stop" and process == 1 and session.progress.steps >= 40:
            session.stop(together=True)
            session.stop(together=True)
            if len(sys.argv) > 3:
                break
    elif due == "round":
        session.round(x)
    else:
        session.evaluated_model(x)
if due == "end":
    session.finish()
session.leave()
if sys.argv[1] == "late":
    time.sleep(float(sys.argv[3]))
print("found", session.progress.steps, flush=True)
if sys.argv[1] == "fails" and process == 1:
    sys.exit(3)
"""


@pytest.mark.parametrize(
    "seconds", [8, pytest.param(70, marks=pytest.mark.skipif(not os.environ.get("GRAWA_SLOW"), reason="takes 70 s; GRAWA_SLOW=1 runs it"))]
)
def test_what_follows_the_last_round_has_no_limit(tmp_path: Path, seconds: int) -> None:
    """Longer than the coordinator waits for workers to leave; and longer than 60 s, the limit that there was for all that follows."""
    pytest.importorskip("numpy")
    output = launch(tmp_path, ENDS, "late", "40step", str(seconds), workers=2)
    assert output.returncode == 0 and len(said(output, "found")) == 2, output.stdout + output.stderr


@pytest.mark.parametrize("leaves", [[], ["at once"]])
def test_a_program_that_stops_the_run_ends_it_for_all(tmp_path: Path, leaves: list[str]) -> None:
    pytest.importorskip("numpy")
    output = launch(tmp_path, ENDS, "stop", "1000000step", *leaves, workers=3, timeout=60)
    assert output.returncode == 0 and len(said(output, "found")) == 3, output.stdout + output.stderr
    assert "a worker's program has stopped the run after step" in output.stdout


def test_a_program_that_fails_fails_the_launch(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    output = launch(tmp_path, ENDS, "fails", "40step", workers=3)
    assert output.returncode == 1, output.stdout + output.stderr
    assert "the run is over after step 40, but worker 1 failed (exit status: 3)" in output.stderr


STOPS = """
import hashlib, json, os, sys, time
import torch, torch.nn.functional as F, grawa
torch.set_num_threads(1)
who, leaves, late, seconds = sys.argv[1], sys.argv[2] == "leaves", int(sys.argv[3]), float(sys.argv[4])
process = int(os.environ["GRAWA_LOCAL_RANK"])
torch.manual_seed(process)
data = torch.utils.data.TensorDataset(torch.randn(2400, 20), torch.randint(2, (2400,)))
model = torch.nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
run = grawa.join(model, optimizer, "mean:period=10,pull=0.5", budget="1000000step", evaluate="40step", wait=0.5)
steps, ends = 0, False
if who == "before":
    run.stop()
while not (run.is_over or ends):
    for x, y in run.loader(data, batch_size=10):
        F.cross_entropy(model(x), y).backward(); optimizer.step(); optimizer.zero_grad()
        steps += 1
        time.sleep(0.004)
        if process == late and steps == 55:
            time.sleep(seconds)
        if steps == 55 and who in ("all", str(process)):
            run.stop()
            if leaves:
                ends = True
                break
first = run.is_first
with run.averaged():
    sha = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
if first:
    run.save("model.pt")
print("found", json.dumps({"process": process, "worker": run.worker, "first": first, "members": run.workers, "over": run.is_over,
      "still": run.is_first, "model": sha}), flush=True)
"""


@pytest.mark.parametrize(
    ("who", "leaves", "late", "workers"),
    [("1", "stays", 2, 3), ("0", "leaves", -1, 3), ("0", "leaves", 1, 3), ("all", "leaves", -1, 3), ("all", "leaves", -1, 1), ("before", "", -1, 2)],
)
def test_a_stop_is_an_orderly_end(tmp_path: Path, who: str, leaves: str, late: int, workers: int) -> None:
    """Whoever asks for it, stays in its loop or leaves it, and whoever is late."""
    pytest.importorskip("torch")
    output = launch(tmp_path, STOPS, who, leaves, str(late), "3", workers=workers)
    check_end(output, workers)
    assert all(json.loads(text)["over"] for text in said(output, "found"))
    assert "a worker's program has stopped the run after step" in output.stdout, output.stdout
    assert "Warning" not in output.stdout and (tmp_path / "model.pt").exists(), output.stdout


def test_programs_that_all_stop_and_end_at_once(tmp_path: Path) -> None:
    """Nobody says how the run ended; that they have asked for the stop is enough."""
    pytest.importorskip("numpy")
    output = launch(tmp_path, ENDS.replace("process == 1 and", "").replace("session.leave()", "os._exit(0)"), "stop", "1000000step", "", workers=2)
    assert output.returncode == 0, output.stdout + output.stderr
    assert "a worker's program has stopped the run after step" in output.stdout


SLEEPS = """
import os, sys, time, signal, subprocess
import numpy, grawa
process, how, folder = int(os.environ["GRAWA_LOCAL_RANK"]), sys.argv[1], os.environ["GRAWA_OUT"]
x = numpy.zeros(50, dtype=numpy.float32)
session = grawa.Session(x, method="mean:period=8,pull=0.5", budget="80step" if how != "ctrl-c" else "1000000step", evaluate="80step", wait=1)
steps = 0
while (due := session.due) != "end":
    if due == "step":
        x -= 0.1 * (x - process)
        steps += 1
        time.sleep(0.004)
        if how == "ctrl-c" and process == 0 and steps == 100:
            time.sleep(5)
        if how == "ctrl-c" and process == 1 and steps == 160:
            os.kill(os.getppid(), signal.SIGINT)
        if how == "frozen" and process == 1 and steps == 75:
            subprocess.Popen(["sh", "-c", f"sleep 8; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        session.step(1.0)
    elif due == "round":
        session.round(x)
    else:
        session.evaluated_model(x)
        if how == "dies" and process == 0:
            os._exit(1)
session.finish()
print("found", process, session.is_first, session.members, session.progress.steps, flush=True)
if how == "frozen" and process == 0:
    time.sleep(12)
"""


def test_a_worker_that_sleeps_at_ctrl_c_does_not_replace_the_state(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    output = launch(tmp_path, SLEEPS, "ctrl-c", workers=3)
    found = [text.split(maxsplit=1) for text in said(output, "found")]
    assert output.returncode == 1 and len(found) == 3, output.stdout + output.stderr
    assert sum("True" in rest for _, rest in found) == 1 and all("[0, 1, 2]" in rest for _, rest in found), found
    from grawa.checkpoint_file import kept_checkpoint

    state = kept_checkpoint(str(tmp_path / "run"))
    at = state.split(b'"steps":', 1)[1].split(b",", 1)[0]
    assert int(at) == min(int(rest.rsplit(" ", 1)[1]) for _, rest in found) // 8 * 8 >= 152, (at, found)
    assert not list((tmp_path / "run").glob("*.new*"))


def test_a_frozen_worker_learns_that_the_run_is_over(tmp_path: Path) -> None:
    """It is no failure: a warning, and it is not the first."""
    pytest.importorskip("numpy")
    output = launch(tmp_path, SLEEPS, "frozen", workers=3)
    found = dict(text.split(maxsplit=1) for text in said(output, "found"))
    assert output.returncode == 0 and len(found) == 3, output.stdout + output.stderr
    assert found["0"].startswith("True [0, 2]") and found["1"].startswith("False"), found
    assert "the others ended the run while this worker was away" in output.stdout


AFTER = """
import os, sys, time, signal
import numpy, grawa
x = numpy.zeros(50, dtype=numpy.float32)
session = grawa.Session(x, method="mean:period=8", budget="16step")
while (due := session.due) != "end":
    if due == "step":
        session.step(1.0)
    elif due == "round":
        session.round(x)
    else:
        session.evaluated_model(x)
session.finish()
session.leave()
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
open(f"ready-{os.getpid()}", "w").close()
try:
    time.sleep(100)
except KeyboardInterrupt:
    print("found", "asked", flush=True)
"""


@pytest.mark.parametrize("kind", ["hears", "deaf"])
def test_ctrl_c_after_the_last_round(tmp_path: Path, kind: str) -> None:
    """The first one asks the programs, the second one ends them."""
    pytest.importorskip("numpy")
    (tmp_path / "program.py").write_text(AFTER)
    words = [command(), "launch", "--workers", "2", "--page", "none", "--out", "run", "--", sys.executable, "program.py", kind]
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as launched:
        while len(ready := list(tmp_path.glob("ready-*"))) < 2:
            time.sleep(0.1)
        # The coordinator waits for the workers to leave.
        time.sleep(3)
        launched.send_signal(signal.SIGINT)
        if kind == "deaf":
            time.sleep(2)
            assert launched.poll() is None
            launched.send_signal(signal.SIGINT)
        printed, _ = launched.communicate(timeout=30)
    assert printed.count("found asked") == (2 if kind == "hears" else 0), printed
    time.sleep(1)
    for one in ready:
        status = Path(f"/proc/{one.name.split('-')[1]}/stat")
        assert not status.exists() or status.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_the_first_dies_after_the_last_round(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    output = launch(tmp_path, SLEEPS, "dies", workers=3)
    assert sorted(said(output, "found")) == ["1 True [1, 2] 80", "2 False [1, 2] 80"], output.stdout + output.stderr


def test_a_step_after_the_end_is_an_error() -> None:
    torch = pytest.importorskip("torch")
    import grawa

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randint(2, (64,)))
    run = grawa.join(model, optimizer, "mean:period=4", budget="8step")
    batches = iter(run.loader(data, batch_size=8))
    assert not run.is_over
    with pytest.raises(StopIteration, match="the run is over: look at run.is_over"):
        while True:
            try:
                x, y = next(batches)
            except StopIteration:
                # As many public scripts do; the new pass is empty when the run is over.
                batches = iter(run.loader(data, batch_size=8))
                x, y = next(batches)
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert run.is_over and list(run.loader(data, batch_size=8)) == []
    with pytest.raises(RuntimeError, match="the run is over, at step 8"):
        optimizer.step()
    run.stop()
    run.stop()
    run.leave()
    run.stop()
    # It trains on by itself.
    optimizer.step()
