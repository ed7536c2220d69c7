"""A multi-layer perceptron in NumPy: its gradients are a function of worker, step and parameters."""

from __future__ import annotations

import numpy as np

TENSORS = [("hidden.weight", [4, 6]), ("hidden.bias", [6]), ("out.weight", [6, 3]), ("out.bias", [3])]
LENGTH = 4 * 6 + 6 + 6 * 3 + 3
RATE = np.float32(0.05)


def start() -> np.ndarray:
    return (np.random.default_rng(1).standard_normal(LENGTH) * 0.3).astype(np.float32)


def parts(x: np.ndarray) -> list[np.ndarray]:
    found, at = [], 0
    for _, shape in TENSORS:
        size = int(np.prod(shape))
        found.append(x[at : at + size].reshape(shape))
        at += size
    return found


def gradient_at(x: np.ndarray, draw: np.random.Generator) -> tuple[float, list[float], np.ndarray]:
    """Loss, norms and gradient on a batch."""
    inputs = draw.standard_normal((8, 4)).astype(np.float32)
    labels = draw.integers(3, size=8)
    weight, bias, out, out_bias = parts(x)
    hidden = np.tanh(inputs @ weight + bias)
    logits = hidden @ out + out_bias
    share = np.exp(logits - logits.max(1, keepdims=True))
    share /= share.sum(1, keepdims=True)
    loss = float(-np.log(share[np.arange(8), labels]).mean())
    share[np.arange(8), labels] -= 1
    share /= np.float32(8)
    back = (share @ out.T) * (1 - hidden * hidden)
    gradients = [inputs.T @ back, back.sum(0), hidden.T @ share, share.sum(0)]
    norms = [float(np.linalg.norm(g)) for g in gradients]
    return loss, norms, np.concatenate([g.ravel() for g in gradients]).astype(np.float32)


def gradient_of(worker: int, step: int, x: bytes) -> tuple[float, list[float], bytes]:
    loss, norms, gradient = gradient_at(np.frombuffer(x, np.float32), np.random.default_rng([worker, step]))
    return loss, norms, gradient.tobytes()


def descend(x: bytes, gradient: bytes, centre: bytes | None, strength: float) -> bytes:
    y = np.frombuffer(x, np.float32) - RATE * np.frombuffer(gradient, np.float32)
    if centre is not None:
        y += np.float32(strength) * (np.frombuffer(centre, np.float32) - y)
    return y.tobytes()


def score(seed: int, x: bytes) -> list[float]:
    return gradient_at(np.frombuffer(x, np.float32), np.random.default_rng(seed))[1]
