"""Wrong use of a session that must end in an error and never in memory that is not the caller's: arrays that do not fit, that move, or are
copies; forks; other threads. Needs NumPy only, and also runs under AddressSanitizer."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from group import PATIENT, environment, launch, said

import grawa

STATISTICS = [("bn.running_mean", [8]), ("bn.running_var", [8])]


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, dtype=np.float32)


def unaligned(length: int) -> np.ndarray:
    """Contiguous, and its first number at an odd address."""
    memory = np.zeros(4 * length + 8, dtype=np.uint8)
    first = 1 if memory.ctypes.data % 4 == 0 else 0
    return memory[first : first + 4 * length].view(np.float32)


def session_at(due: str, x: Any, **options: Any) -> grawa.Session:
    """A session alone, up to where this is due."""
    session = grawa.Session(x, method="mean:period=2,pull=1,prox=0", budget="20step", evaluate="2step", **options)
    while session.due != due:
        session.step(1.0) if session.due == "step" else session.round(x)
    return session


class Copies:
    """An exporter whose DLPack is a copy, new each time."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.copy().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Shares(Copies):
    """An exporter that lends its memory."""

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


class Claims:
    """Whatever it says of its memory."""

    def __init__(self, array: np.ndarray, **changes: Any) -> None:
        self._array, self.__array_interface__ = array, {**array.__array_interface__, **changes}


@pytest.mark.parametrize(
    "statistics", [None, floats(15), floats(17), floats(0), floats(4, 8)[:, ::2], np.zeros(16), unaligned(16)],
    ids=["none", "short", "long", "empty", "strided", "wide", "unaligned"],
)  # fmt: skip
def test_statistics_that_do_not_fit(statistics: Any) -> None:
    x = floats(1000)
    session = session_at("evaluate", x, statistics=STATISTICS)
    with pytest.raises((ValueError, TypeError)):
        session.evaluated_model(x, statistics=statistics)
    # The native part by itself, too.
    with pytest.raises((ValueError, TypeError)):
        session._native.evaluated_model(x, floats(1000), statistics)
    assert session.evaluated_model(x, statistics=floats(16)) is not None


def test_statistics_of_a_session_that_has_none() -> None:
    x = floats(10)
    session = session_at("evaluate", x)
    with pytest.raises(ValueError, match="given no statistics|16 numbers, where 0"):
        session.evaluated_model(x, statistics=floats(16))
    with pytest.raises(ValueError, match="given no statistics"):
        session._native.evaluated_model(x, floats(10), floats(16))


@pytest.mark.parametrize("make", [lambda: unaligned(1000), lambda: floats(999), lambda: floats(1001), lambda: np.zeros(1000),
    lambda: floats(2000)[::2], lambda: Copies(floats(1000)), lambda: [0.0] * 1000, lambda: None, lambda: 17],
    ids=["unaligned", "short", "long", "wide", "strided", "copies", "list", "none", "number"])  # fmt: skip
def test_arrays_that_do_not_fit(make: Callable[[], Any]) -> None:
    x, wrong = floats(1000), make()
    with pytest.raises((ValueError, TypeError)):
        grawa.Session(wrong, method="mean", budget="8step", tensors=[("x", [1000])])
    at_round = session_at("round", x)
    calls: list[Callable[[], Any]] = [lambda: at_round.round(wrong), lambda: at_round._native.round([], [(wrong, 1000)])]
    at_evaluation = session_at("evaluate", x)
    calls += [lambda: at_evaluation.evaluated_model(wrong), lambda: at_evaluation._native.evaluated_model(wrong, x)]
    calls += [lambda: at_evaluation._native.evaluated_model(x, wrong), lambda: at_evaluation._native.centre(wrong)]
    if wrong is not None:
        calls += [lambda: at_evaluation.evaluated_model(x, wrong), lambda: at_evaluation.centre(wrong)]
    for number, call in enumerate(calls):
        if isinstance(wrong, Copies) and number in (1, 3, 4, 5):
            # It has no address, so the native part refuses it in its own way.
            with pytest.raises(AttributeError):
                call()
            continue
        with pytest.raises((ValueError, TypeError, AttributeError)):
            call()
    assert at_round.round(x) is not None


@pytest.mark.parametrize(
    "changes", [{"shape": (2000,)}, {"shape": (2**40, 2**40)}, {"typestr": "<f8"}, {"typestr": ">f4"}, {"strides": (8,)},
    {"data": (0, False)}, {"data": b"bytes"}, {"shape": (-1,)}],
)  # fmt: skip
def test_the_native_part_believes_no_length(changes: dict[str, Any]) -> None:
    x = floats(1000)
    session = session_at("round", x)
    with pytest.raises((ValueError, TypeError, OverflowError)):
        session._native.round([], [(Claims(x, **changes), 1000)])
    # Lengths that do not add up.
    for arrays in ([(x, 10)], [(x, 1000), (x, 1000)], []):
        with pytest.raises(ValueError, match="numbers"):
            session._native.round([], arrays)


def test_memory_that_another_framework_lends() -> None:
    lender = Shares(np.arange(6, dtype=np.float32))
    session = session_at("round", lender)
    assert session.round(lender)["round"] == 1
    out = Shares(floats(6))
    session.centre(out)
    assert out.array.tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(TypeError, match="gives a copy, so what a round writes would be lost"):
        grawa.Session(Copies(floats(6)), method="mean", budget="8step")


def test_arrays_may_be_dropped_at_once() -> None:
    """Nothing keeps an address: each call has an array of its own, which is gone after it."""
    session = grawa.Session(floats(100_000), method="mean:period=1,pull=1,prox=0", budget="50step", evaluate="1step")
    while session.due != "end":
        if session.due == "step":
            session.step(1.0)
        elif session.due == "round":
            session.round(np.ones(100_000, dtype=np.float32))
        else:
            assert session.evaluated_model(np.ones(100_000, dtype=np.float32)).min() == 1
    session.finish()


@pytest.mark.parametrize("tensors", [[("a", [-1]), ("b", [1001])], [("a", [2**40, 0]), ("b", [999])], [("a", [2**62, 4]), ("b", [1000])]])
def test_shapes_that_make_no_sense(tensors: Any) -> None:
    with pytest.raises((ValueError, OverflowError)):
        grawa.Session(floats(1000), tensors=tensors, method="mean", budget="4step")


@pytest.mark.parametrize("statistics", [[("a", [2**40, 2**40])], [("a", [2**62, 4])], [("a", [1]), ("a", [1])]])
def test_statistics_that_make_no_sense(statistics: Any) -> None:
    with pytest.raises((ValueError, OverflowError)):
        grawa.Session(floats(10), statistics=statistics, method="mean", budget="4step")


# The second worker comes to the round late, so that a thread of the first can do something meanwhile.
MEANWHILE = """
import os, sys, threading, time
import numpy as np, grawa
rank = int(os.environ["GRAWA_LOCAL_RANK"])
x = np.full(LENGTH, float(rank), dtype=np.float32)
session = grawa.Session(x, method="mean:period=1,pull=1,prox=0", budget="BUDGET")
def disturb():
    time.sleep(0.7)
    DISTURB
thread = threading.Thread(target=disturb)
try:
    while session.due != "end":
        if session.due == "step":
            x[:] = session.worker
            session.step(1.0)
        elif session.due == "round":
            if rank == 1:
                time.sleep(1.5)
            elif thread.ident is None:
                thread.start()
            session.round(x)
        else:
            session.evaluated_model(x)
    session.finish()
    print("ended", session.progress.steps, x.shape, x.min(), x.max(), flush=True)
except grawa.GrawaError as error:
    print("raised", error, flush=True)
    session.leave()
thread.ident and thread.join()
"""


def meanwhile(folder: Path, disturb: str, length: int = 100_000, budget: str = "1step") -> subprocess.CompletedProcess[str]:
    program = MEANWHILE.replace("DISTURB", disturb).replace("LENGTH", str(length)).replace("BUDGET", budget)
    return launch(folder, program, workers=2, options=PATIENT)


def test_an_array_that_is_resized_during_a_round(tmp_path: Path) -> None:
    output = meanwhile(tmp_path, "x.resize(10, refcheck=False)")
    (why,) = said(output, "raised")
    assert "moved, resized or replaced while a round was held" in why and "10 numbers, where 100000" in why, why
    assert "signal" not in output.stderr, output.stderr


def test_an_array_that_moves_during_a_round(tmp_path: Path) -> None:
    """Other memory of the same length: the result goes there."""
    output = meanwhile(tmp_path, "x.resize(10, refcheck=False); kept = [np.ones(50) for _ in range(99)]; x.resize(100000, refcheck=False)")
    assert said(output, "ended") == ["1 (100000,) 0.5 0.5"] * 2, output.stdout + output.stderr


def test_stop_during_a_round(tmp_path: Path) -> None:
    output = meanwhile(
        tmp_path, "session.stop(together=True); print('asked', session.progress.steps, flush=True)", budget="50step"
    )
    assert len(said(output, "asked")) == 1, output.stdout + output.stderr
    steps = [int(text.split()[0]) for text in said(output, "ended")]
    assert len(steps) == 2 and max(steps) <= 3, output.stdout + output.stderr


def test_another_call_during_a_round(tmp_path: Path) -> None:
    disturb = """
    try: session.due
    except grawa.GrawaError as error: print("refused", error, flush=True)
    """
    output = meanwhile(tmp_path, disturb)
    assert "another thread holds a round of this session" in said(output, "refused")[0], output.stdout + output.stderr
    assert len(said(output, "ended")) == 2


FORK = """
import gc, os, sys, time
import numpy as np, grawa
x = np.zeros(1000, dtype=np.float32)
faults = []
with grawa.Session(x, method="mean:period=2,pull=1,prox=0", budget="60step") as session:
    while session.due != "end":
        if session.due == "step":
            time.sleep(0.005)
            session.step(1.0)
            if session.progress.steps == 21 and os.environ["GRAWA_LOCAL_RANK"] == "0":
                child = os.fork()
                if child == 0:
                    CHILD
                print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        elif session.due == "round":
            held = session.round(x)
            faults += held["faults"] if held else ["no round"]
        else:
            session.evaluated_model(x)
    print("ended", session.finish().steps, faults, flush=True)
"""
# Every call says why it is refused.
CALLS = """
                    refused = 0
                    for call in (session.step, session.step_unmeasured, lambda: session.round(x), lambda: session.due, session.stop,
                                 session.leave, session.centre, session.checkpoint, session.finish, lambda: session.evaluated_model(x)):
                        try: call()
                        except grawa.GrawaError as error: refused += "forked" in str(error)
                    os._exit(refused)
"""


@pytest.mark.parametrize(
    ("child", "code"), [("sys.exit(7)", 7), ("del session; gc.collect(); os._exit(7)", 7), (CALLS, 10)], ids=["exits", "drops", "calls"]
)
def test_a_forked_child_forgets_the_session(tmp_path: Path, child: str, code: int) -> None:
    output = launch(tmp_path, FORK.replace("CHILD", child.strip()), workers=2, options=PATIENT)
    assert output.returncode == 0, output.stdout + output.stderr
    assert said(output, "child") == [str(code)], output.stdout + output.stderr
    assert said(output, "ended") == ["60 []"] * 2, output.stdout + output.stderr
    assert '"event":"fault"' not in (tmp_path / "run" / "events.jsonl").read_text()


def test_a_forked_child_with_tls(tmp_path: Path) -> None:
    """Parent and child would encrypt different records under one key and number."""
    from group import command

    subprocess.run([command(), "key", "new", "run.key"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "program.py").write_text(FORK.replace("CHILD", "sys.exit(7)").replace("GRAWA_LOCAL_RANK", "RANK"))
    with subprocess.Popen(
        [command(), "coordinate", "--workers", "2", "--key", "run.key", "--listen", "127.0.0.1:0", "--page", "none", "--out", "run"],
        cwd=tmp_path, stdout=subprocess.PIPE, text=True,
    ) as coordinator:  # fmt: skip
        assert coordinator.stdout is not None
        address = coordinator.stdout.readline().split("listening at ")[1].split()[0]
        joined = [
            subprocess.Popen(
                [command(), "join", address, "--key", "run.key", "--", sys.executable, "program.py"],
                cwd=tmp_path, env={**environment(), "RANK": str(rank)}, stdout=subprocess.PIPE, text=True,
            )
            for rank in range(2)
        ]  # fmt: skip
        outputs = [one.communicate(timeout=120)[0] for one in joined]
        coordinator.communicate(timeout=60)
    assert all("ended 60 []" in output for output in outputs), outputs
    assert '"event":"fault"' not in (tmp_path / "run" / "events.jsonl").read_text()
