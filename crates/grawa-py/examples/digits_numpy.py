"""Handwritten digits with NumPy alone: a network of one hidden layer, its gradient by hand.

    grawa launch --workers 4 -- python digits_numpy.py
"""

import argparse
import zlib
from functools import lru_cache
from pathlib import Path

import numpy as np

import grawa

SHAPES = {"hidden.weight": (64, 32), "hidden.bias": (32,), "out.weight": (32, 10), "out.bias": (10,)}
PACK = Path(__file__).parents[2] / "grawa-data/assets/digits.bin"


def digits():
    """Pixels from 0 to 1 and labels: scikit-learn's copy, or the repository's, which are the same images."""
    try:
        from sklearn.datasets import load_digits

        pixels, labels = load_digits(return_X_y=True)
    except ModuleNotFoundError:
        plain = np.frombuffer(zlib.decompress(PACK.read_bytes()), dtype=np.uint8)
        # A label for each image, then 64 pixels for each.
        count = len(plain) // 65
        labels, pixels = plain[:count].astype(int), plain[count:].reshape(count, 64).astype(float)
    return (pixels / pixels.max()).astype(np.float32), labels


def tensors(flat):
    """Views of one flat vector, by name."""
    ends = np.cumsum([np.prod(shape) for shape in SHAPES.values()])[:-1]
    return {name: part.reshape(shape) for (name, shape), part in zip(SHAPES.items(), np.split(flat, ends))}


def forward(flat, images):
    p = tensors(flat)
    hidden = np.maximum(images @ p["hidden.weight"] + p["hidden.bias"], 0)
    return hidden, hidden @ p["out.weight"] + p["out.bias"]


def loss_and_gradient(flat, images, labels):
    hidden, logits = forward(flat, images)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(np.maximum(shares[rows, labels], 1e-12)).mean()
    shares[rows, labels] -= 1
    shares /= len(labels)
    back = (shares @ tensors(flat)["out.weight"].T) * (hidden > 0)
    gradient = np.empty_like(flat)
    g = tensors(gradient)
    g["hidden.weight"][:], g["hidden.bias"][:] = images.T @ back, back.sum(axis=0)
    g["out.weight"][:], g["out.bias"][:] = hidden.T @ shares, shares.sum(axis=0)
    return float(loss), gradient


@lru_cache(maxsize=2)
def order(epoch, count):
    return np.random.default_rng(epoch).permutation(count)


def examples(shard, of, step, batch, count):
    """A worker's batch: every ``of``-th example of an order that all workers know, so that none is read twice in an epoch."""
    places = (step * batch + np.arange(batch)) * of + shard
    return [order(place // count, count)[place % count] for place in places.tolist()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--method", default="local-lgrawa:period=8")
    args = parser.parse_args()

    images, labels = digits()
    is_test = np.arange(len(labels)) % 5 == 4
    train, train_labels = images[~is_test], labels[~is_test]
    x = np.concatenate([np.random.default_rng(0).normal(0, 0.2, np.prod(shape)) for shape in SHAPES.values()]).astype(np.float32)
    velocity = np.zeros_like(x)
    batch = 16
    session = grawa.Session(
        x, method=args.method, budget=f"{args.epochs}epoch", tensors=SHAPES, batch=batch, examples=len(train), evaluate="5epoch", name="digits",
    )  # fmt: skip

    while (due := session.due) != "end":
        if due == "step":
            chosen = examples(*session.shard, batch, len(train))
            loss, gradient = loss_and_gradient(x, train[chosen], train_labels[chosen])
            velocity = 0.9 * velocity + gradient
            x -= 0.05 * velocity
            norms = [float(np.linalg.norm(part)) for part in tensors(gradient).values()]
            session.step(loss, norms if session.wants_norms else (), 0.05)
        elif due == "round":
            session.round(x)
            if session.was_replaced:
                velocity[:] = 0
        else:
            model = session.evaluated_model(x)
            # None if this worker lost its connection meanwhile.
            if model is not None:
                wrong = forward(model, images[is_test])[1].argmax(axis=1) != labels[is_test]
                if session.is_first:
                    print(f"epoch {session.progress.epochs:.0f}: test error {100 * wrong.mean():.1f} %", flush=True)
    session.finish()


if __name__ == "__main__":
    main()
