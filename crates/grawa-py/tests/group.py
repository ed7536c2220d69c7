"""Runs of several processes, for the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

TESTS = Path(__file__).parent

# A slow machine is no late worker: rounds wait for all. Not in tests of workers that are late.
PATIENT = ("--wait", "60")

# What workers are told that train on the same batches, over either transport.
SAME_BATCHES = (
    "workers 0 and 1 have the same parameters after their steps, bit for bit: they train on the same batches, so one of them is of no use; draw "
    "batches with another seed in each worker (seed + worker), or take those of the run's loader"
)


def command() -> str:
    """The `grawa` command: GRAWA_COMMAND, or the one in PATH or in the target folder."""
    found = os.environ.get("GRAWA_COMMAND") or shutil.which("grawa")
    if found:
        return found
    for kind in ("debug", "release"):
        built = TESTS.parents[2] / "target" / kind / "grawa"
        if built.exists():
            return str(built)
    raise RuntimeError("no grawa command: build it with `cargo build`, or set GRAWA_COMMAND")


def launch(
    folder: Path, program: str, *words: str, workers: int = 4, options: tuple[str, ...] = (), timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Launches a program, given as text, and waits for its end. Workers print to its output."""
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    return subprocess.run(
        [command(), "launch", "--workers", str(workers), "--page", "none", *options, "--out", str(folder / "run"), "--",
         sys.executable, str(script), *words],
        cwd=folder, env=environment(), capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(TESTS), *sys.path])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def said(output: subprocess.CompletedProcess[str], word: str) -> list[str]:
    """What workers printed after this word."""
    lines = [line.split("] ", 1)[-1] for line in output.stdout.splitlines() if line.startswith(("[worker", "[process"))]
    return [line[len(word) :].strip() for line in lines if line.startswith(word)]
