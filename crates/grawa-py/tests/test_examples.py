"""Every example trains, at a small scale, with two workers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from group import TESTS, command, environment

EXAMPLES = TESTS.parent / "examples"


def trained(folder: Path, name: str, *words: str) -> str:
    """What the workers of an example print."""
    done = subprocess.run(
        [command(), "launch", "--workers", "2", "--page", "none", "--out", str(folder / "run"), "--",
         sys.executable, str(EXAMPLES / name), *words],
        cwd=folder, env={**environment(), "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def numbers(output: str, pattern: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, output)]


def test_digits_with_numpy(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    errors = numbers(trained(tmp_path, "digits_numpy.py", "--epochs", "10"), r"test error ([\d.]+) %")
    assert len(errors) == 2 and errors[-1] < 8


def test_resnet(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    words = ("--tiny", "--epochs", "3", "--batch", "16", "--method", "local-lgrawa:period=4", "--save", "model.pt")
    errors = numbers(trained(tmp_path, "cifar10_resnet.py", *words), r"test error ([\d.]+) %")
    # Guessing is wrong in 90 % of cases.
    assert len(errors) >= 2 and errors[-1] < 70
    assert torch.load(tmp_path / "model.pt")["out.weight"].shape == (10, 16)


def test_character_gpt(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = TESTS.parents[2] / "docs/rounds.md"
    small = ("--epochs", "8", "--batch", "4", "--width", "64", "--layers", "1", "--length", "32")
    words = (str(text), *small, "--method", "mean:period=4,pull=1,prox=0")
    losses = numbers(trained(tmp_path, "char_gpt.py", *words), r"test loss ([\d.]+) nats")
    # The model begins with a guess of 80 symbols, 4.4 nats.
    assert losses[-1] < 3.5


def test_lora(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    pytest.importorskip("transformers")
    output = trained(tmp_path, "lora.py", "--steps", "32")
    [(before, after)] = re.findall(r"loss ([\d.]+) before, ([\d.]+) after", output)
    assert float(after) < float(before) - 0.1
    assert (tmp_path / "lora-out/averaged/adapter_model.safetensors").exists()


def test_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    [error] = numbers(trained(tmp_path, "lightning_module.py", "--steps", "64"), r"validation error ([\d.]+) %")
    assert error < 10
