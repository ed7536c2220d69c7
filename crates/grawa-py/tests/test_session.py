"""Sessions on NumPy arrays: alone, in groups, with workers that die, and with wrong input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from group import PATIENT, command, environment, launch, said

import grawa
from grawa.checkpoint_file import _HEAD

# A worker that minimises |x - worker|²: all agree on the mean.
WORKER = """
import sys, time
import numpy as np, grawa
x = np.full(6, 9.0, dtype=np.float32)
tensors = {"weight": (2, 2), "bias": (2,)}
session = grawa.Session(x, method=sys.argv[1], budget=sys.argv[2], tensors=tensors, evaluate=None)
model = np.zeros(0)
pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
print("joined", session.worker, session.progress.steps, flush=True)
while session.due != "end":
    if session.due == "step":
        time.sleep(pause)
        gradient = x - np.float32(session.worker)
        norms = [float(np.linalg.norm(part)) for part in (gradient[:4], gradient[4:])]
        x -= np.float32(0.1) * gradient
        if session.prox > 0:
            x += np.float32(session.prox) * (session.centre() - x)
        session.step(0.5, norms if session.wants_norms else ())
    elif session.due == "round":
        scores = norms if session.score_seed is not None else ()
        session.round(x, scores)
    else:
        model = session.evaluated_model(x)
print("model", model.tolist(), flush=True)
print("finished", session.finish().steps, flush=True)
"""


def test_alone(capfd: pytest.CaptureFixture[str]) -> None:
    x = np.ones(3, dtype=np.float32)
    session = grawa.Session(x, method="mean:period=4,pull=1", budget="8step")
    rounds = 0
    while session.due != "end":
        if session.due == "step":
            session.step(1.0)
        elif session.due == "round":
            rounds += session.round(x) is not None
        else:
            assert session.evaluated_model(x).tolist() == [1, 1, 1]
    assert session.finish().steps == 8 and rounds == 2
    with pytest.raises(grawa.GrawaError, match="session is over"):
        session.step(1.0)


@pytest.mark.parametrize("method", ["slowmo:period=4", "qsr", "lgrawa:qsr=0.2"])
def test_a_method_that_goes_by_the_rate_needs_one(method: str) -> None:
    """At every step: without a rate SlowMo would undo all training."""
    session = grawa.Session(np.ones(3, dtype=np.float32), method=method, budget="8step")
    for _ in range(2):
        with pytest.raises(ValueError, match="goes by the learning rate"):
            session.step(1.0)
        with pytest.raises(ValueError, match="goes by the learning rate"):
            session.step_unmeasured()
    with pytest.raises(ValueError, match="the learning rate of a step is -0.1"):
        session.step(1.0, rate=-0.1)
    assert session.progress.steps == 0
    session.step(1.0, rate=0.1)
    assert session.progress.steps == 1


WINDOW = """
import sys
import numpy as np, grawa
# Means 7 and 2: worker 1 leads, though worker 0 has the smallest last loss.
losses = {0: [9.0, 9.0, 9.0, 1.0], 1: [2.0, 2.0, 2.0, 2.0]}
x = np.zeros(4, dtype=np.float32)
session = grawa.Session(x, method="lsgd:period=4,score_window=4", budget="4step", evaluate=None)
steps = 0
while (due := session.due) != "end":
    if due == "step":
        session.step(losses[session.worker][steps])
        steps += 1
    elif due == "round":
        print("weights", session.round(x)["weights"], flush=True)
    else:
        session.evaluated_model(x)
session.finish()
"""


def test_the_mean_loss_of_a_window_is_of_all_its_steps(tmp_path: Path) -> None:
    output = launch(tmp_path, WINDOW, workers=2, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    assert said(output, "weights") == ["{0: 0.0, 1: 1.0}"] * 2, output.stdout


def test_arrays_that_do_not_fit() -> None:
    settings = {"method": "mean", "budget": "8step"}
    with pytest.raises(TypeError, match="32-bit floats"):
        grawa.Session(np.ones(3), **settings)
    with pytest.raises(TypeError, match="contiguous"):
        grawa.Session(np.ones((4, 4), dtype=np.float32)[:, ::2], **settings)
    frozen = np.ones(3, dtype=np.float32)
    frozen.flags.writeable = False
    with pytest.raises(TypeError, match="cannot be written"):
        grawa.Session(frozen, **settings)
    with pytest.raises(ValueError, match="the tensors have 4 numbers in all, and the array of parameters 3"):
        grawa.Session(np.ones(3, dtype=np.float32), tensors={"w": (2, 2)}, **settings)
    with pytest.raises(ValueError, match="no method 'maen'"):
        grawa.Session(np.ones(3, dtype=np.float32), method="maen", budget="8step")
    with pytest.raises(ValueError, match="use a method that shares parameters"):
        grawa.Session(np.ones(3, dtype=np.float32), method="dp-sgd", budget="8step")


def test_calls_at_the_wrong_time() -> None:
    x = np.ones(3, dtype=np.float32)
    session = grawa.Session(x, method="mean:period=4", budget="8step")
    with pytest.raises(grawa.GrawaError, match="round was called, but a step is due"):
        session.round(x)
    with pytest.raises(ValueError, match="the array has 2 numbers, where 3"):
        session.round(x[:2])


def test_no_coordinator_answers() -> None:
    x = np.ones(3, dtype=np.float32)
    with pytest.raises(grawa.GrawaError, match="no coordinator answers at 127.0.0.1:9 within 1 s"):
        grawa.Session(x, method="mean", budget="8step", coordinator="127.0.0.1:9", patience=1.0)


def test_a_fork_cannot_use_the_session() -> None:
    x = np.ones(3, dtype=np.float32)
    session = grawa.Session(x, method="mean:period=4", budget="8step")
    child = os.fork()
    if child == 0:
        try:
            session.step(1.0)
        except grawa.GrawaError as error:
            if "forked" not in str(error):
                os._exit(3)
        try:
            session.leave()
        except grawa.GrawaError as error:
            os._exit(0 if "forked" in str(error) else 4)
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    session.step(1.0)


@pytest.mark.parametrize("method", ["mean:period=4,pull=1", "lgrawa:period=4", "local-lgrawa:period=4", "easgd:period=4"])
def test_four_workers(tmp_path: Path, method: str) -> None:
    output = launch(tmp_path, WORKER, method, "40step", options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    assert said(output, "finished") == ["40"] * 4
    # All evaluate the same model.
    models = said(output, "model")
    assert len(models) == 4 and len(set(models)) == 1
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert events.count('"event":"round"') == 10 and '"network":"a model"' in events
    if method.startswith("mean"):
        assert all(1.3 < x < 1.7 for x in eval(models[0])), models


def test_one_is_killed_and_replaced(tmp_path: Path) -> None:
    """The others do not stop; the one that takes the place starts from their state."""
    program = WORKER + """
"""
    program = program.replace(
        'print("joined"',
        """import os
mark = os.path.join(os.environ["GRAWA_OUT"], "killed")
dies = session.worker == 2 and not os.path.exists(mark)
print("joined\"""",
    ).replace(
        "        time.sleep(pause)\n",
        """        time.sleep(pause)
        if dies and session.progress.steps >= 20:
            open(mark, "w").close()
            os.kill(os.getpid(), 9)
""",
    )
    output = launch(tmp_path, program, "mean:period=4,pull=1", "400step", "0.005", options=("--restarts", "1"))
    assert output.returncode == 0, output.stdout + output.stderr
    assert (tmp_path / "run" / "killed").exists()
    joined = [int(line.split()[1]) for line in said(output, "joined")]
    assert len(joined) == 5 and joined.count(0) == 4 and max(joined) >= 20, joined
    assert said(output, "finished") == ["400"] * 4
    assert "it is started again (1 of 1)" in output.stderr
    assert len(set(said(output, "model"))) == 1


def test_another_model_is_refused(tmp_path: Path) -> None:
    program = """
    import os, sys, time
    import numpy as np, grawa
    wide = os.environ["GRAWA_LOCAL_RANK"] == "1"
    if wide:
        time.sleep(2)
    x = np.zeros(7 if wide else 6, dtype=np.float32)
    shapes = {"weight": (2, 2), "bias": (3 if wide else 2,)}
    try:
        grawa.Session(x, method="mean", budget="8step", tensors=shapes)
    except ValueError as error:
        print("refused", error, flush=True)
        sys.exit(1)
    """
    output = launch(tmp_path, program, workers=2, options=PATIENT)
    assert output.returncode == 1
    (why,) = said(output, "refused")
    assert "tensor bias" in why and "[3]" in why and "[2]" in why, why


def test_a_coordinator_and_programs_that_join(tmp_path: Path) -> None:
    """As on several machines: a coordinator that knows only the number of workers, and `grawa join -- COMMAND`."""
    run = [command()]
    subprocess.run([*run, "key", "new", "run.key"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "program.py").write_text(WORKER)
    coordinator = subprocess.Popen(
        [*run, "coordinate", "--workers", "2", "--key", "run.key", "--listen", "127.0.0.1:0", "--page", "none", "--out", "run"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert coordinator.stdout is not None
    first = coordinator.stdout.readline()
    assert "-- COMMAND" in first, first
    address = first.split("listening at ")[1].split()[0]
    words = ["join", address, "--key", "run.key", "--", sys.executable, "program.py", "mean:period=4", "40step"]
    joined = [
        subprocess.Popen([*run, *words], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [one.communicate(timeout=120)[0] for one in joined]
    assert [one.returncode for one in joined] == [0, 0], outputs
    assert all("finished 40" in output for output in outputs)
    assert coordinator.wait(timeout=60) == 0


@pytest.mark.parametrize("version", ["this", "an earlier one"])
def test_ctrl_c_stops_all_and_the_run_continues(tmp_path: Path, version: str) -> None:
    (tmp_path / "program.py").write_text(WORKER)
    words = ["--", sys.executable, "program.py", "mean:period=4,pull=1", "2000step", "0.005"]
    begin = [command(), "launch", "--workers", "2", "--page", "none", "--out", "run", *words]
    launched = subprocess.Popen(begin, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    events = tmp_path / "run" / "events.jsonl"
    deadline = time.monotonic() + 60
    while not (events.exists() and events.read_text().count('"event":"round"') > 5) and time.monotonic() < deadline:
        time.sleep(0.1)
    launched.send_signal(signal.SIGINT)
    text, _ = launched.communicate(timeout=90)
    assert launched.returncode == 1 and "continue with: grawa launch --resume run -- " in text, text
    rounds = events.read_text().count('"event":"round"')
    if version != "this":
        # It wrote the state alone, and no second copy.
        (tmp_path / "run" / "session.checkpoint.before").unlink(missing_ok=True)
        kept = tmp_path / "run" / "session.checkpoint"
        kept.write_bytes(kept.read_bytes()[len(_HEAD) + 12 :])
    again = [command(), "launch", "--resume", "run", "--page", "none", *words[:-2], "400step", "0.0"]
    output = subprocess.run(again, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert "budget" in output.stdout + output.stderr, "another budget is another run"
    again = [command(), "launch", "--resume", "run", "--page", "none", *words[:-1], "0.0"]
    output = subprocess.run(again, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120)
    assert output.returncode == 0, output.stdout + output.stderr
    joined = [int(line.split()[1]) for line in said(output, "joined")]
    assert joined and min(joined) >= 4 * (rounds - 2), (joined, rounds)
    assert said(output, "finished") == ["2000"] * 2
    assert ("written by an earlier version" in output.stdout + output.stderr) == (version != "this")


def test_ctrl_c_in_a_round(tmp_path: Path) -> None:
    """It is raised when the round is over, and the session is still there."""
    program = """
    import os, signal, threading, time
    import numpy as np, grawa
    x = np.full(4, float(os.environ["GRAWA_LOCAL_RANK"]), dtype=np.float32)
    session = grawa.Session(x, method="mean:period=1,pull=1", budget="4step")
    x[:] = session.worker
    interrupted = False
    while session.due != "end":
        if session.due == "step":
            if session.worker == 1 and session.progress.steps == 1:
                time.sleep(1.5)
            session.step(0.0)
        elif session.due == "round":
            if session.worker == 0 and session.progress.steps == 2 and not interrupted:
                threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            began = time.monotonic()
            try:
                session.round(x)
            except KeyboardInterrupt:
                interrupted = True
                print("interrupted", session.due, x.tolist(), flush=True)
        else:
            session.evaluated_model(x)
    session.finish()
    print("ended", x.tolist(), flush=True)
    """
    output = launch(tmp_path, program, workers=2, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    assert said(output, "interrupted") == ["step [0.5, 0.5, 0.5, 0.5]"], output.stdout
    assert said(output, "ended") == ["[0.5, 0.5, 0.5, 0.5]"] * 2


def test_ctrl_c_twice_in_a_round(tmp_path: Path) -> None:
    """The second one is raised at once, though the other worker does not come; and the session is over."""
    program = """
    import os, signal, threading, time
    import numpy as np, grawa
    x = np.zeros(4, dtype=np.float32)
    session = grawa.Session(x, method="mean:period=1,pull=1", budget="4step")
    if session.worker == 1:
        time.sleep(10)
        os._exit(0)
    session.step(0.0)
    for seconds in (0.3, 0.8):
        threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        session.round(x)
    except KeyboardInterrupt:
        print("interrupted", 0.7 < time.monotonic() - began < 8, flush=True)
    try:
        session.due
    except grawa.GrawaError as error:
        print("then", error, flush=True)
    session.leave()
    """
    output = launch(tmp_path, program, workers=2, options=PATIENT)
    assert said(output, "interrupted") == ["True"], output.stdout + output.stderr
    assert said(output, "then") == ["this session is over: the run has ended, or it was left"]


def test_statistics_are_averaged(tmp_path: Path) -> None:
    """Means are averaged, and variances include the differences between workers."""
    program = """
    import numpy as np, grawa
    x = np.zeros(4, dtype=np.float32)
    named = [("bn.running_mean", (2,)), ("bn.running_var", (2,))]
    session = grawa.Session(x, method="mean:period=2", budget="4step", statistics=named)
    while session.due != "end":
        if session.due == "step":
            session.step(0.0)
        elif session.due == "round":
            session.round(x)
        else:
            statistics = np.array([session.worker, 3, 1, 2], dtype=np.float32)
            session.evaluated_model(x, statistics=statistics)
    session.finish()
    print("statistics", statistics.tolist(), flush=True)
    """
    output = launch(tmp_path, program, workers=2, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    assert said(output, "statistics") == ["[0.5, 3.0, 1.25, 2.0]"] * 2


def test_examples_are_dealt_once() -> None:
    """Whoever reads which shard: an epoch has every example once, and batches go on over its end."""
    order = grawa._native.ExampleOrder(7, 100)
    dealt = [n for step in range(5) for shard in range(4) for n in order.batch(shard, 4, step, 5)]
    assert sorted(dealt) == list(range(100))
    assert order.batch(1, 4, 3, 5) == [n for n in order.batch(0, 1, 3, 20)][1::4]


BYTES = """
import json, sys
import numpy as np, grawa
x = np.zeros(10_000, dtype=np.float32)
session = grawa.Session(x, method="mean:period=2,pull=1,prox=0", budget="8step", evaluate=None, wire=sys.argv[1])
sent = []
while session.due != "end":
    if session.due == "step":
        x += 0.1 * (1 + session.worker); session.step(1.0)
    elif session.due == "round":
        sent.append(session.round(x)["bytes"])
    else:
        session.evaluated_model(x)
session.finish()
print("sent", json.dumps(sent), flush=True)
"""


@pytest.mark.parametrize(("wire", "each"), [("f32", 4), ("bf16", 2)])
def test_bytes_are_those_that_travel(tmp_path: Path, wire: str, each: int) -> None:
    output = launch(tmp_path, BYTES, wire, workers=2, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    for text in said(output, "sent"):
        # What each worker sends of its vector, and its messages. The first round has that of the start, too.
        assert all(2 * each * 10_000 <= bytes < 2 * each * 10_000 + 2_000 for bytes in eval(text)[1:]), text


def test_a_run_that_left_no_state_is_not_resumed(tmp_path: Path) -> None:
    """All are killed after some rounds and before the first evaluation."""
    (tmp_path / "program.py").write_text(WORKER.replace('print("joined"', 'import os\nprint("process", os.getpid(), flush=True)\nprint("joined"'))
    run = [command(), "launch", "--workers", "2", "--page", "none", "--out", "run"]
    words = ["--", sys.executable, "program.py", "mean:period=4,pull=1", "100000step", "0.01"]
    with subprocess.Popen([*run, *words], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, text=True) as launched:
        record = tmp_path / "run" / "events.jsonl"
        while not (record.exists() and record.read_text().count('"event":"round"') > 2):
            time.sleep(0.1)
        found = [line for log in (tmp_path / "run").glob("worker-*.log") for line in log.read_text().splitlines()]
        launched.kill()
        for line in found:
            if line.startswith("process "):
                os.kill(int(line.split()[1]), signal.SIGKILL)
    output = subprocess.run(
        [command(), "launch", "--resume", "run", "--page", "none", *words], cwd=tmp_path, env=environment(), capture_output=True,
        text=True, timeout=120,
    )  # fmt: skip
    assert output.returncode == 1 and "There is nothing to continue from: start anew" in output.stderr, output.stdout + output.stderr
