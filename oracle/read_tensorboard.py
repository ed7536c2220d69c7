"""Reads a run's curves with PyPI's tensorboard and compares them with its metrics.csv."""

import csv
import math
import pathlib
import sys

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = pathlib.Path(sys.argv[1])
curves = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
curves.Reload()
tags = curves.Tags()["scalars"]
found = {(tag, event.step): event.value for tag in tags for event in curves.Scalars(tag)}

expected = {}
for row in csv.DictReader(open(run / "metrics.csv")):
    step = int(row["step"])
    if row["event"] == "round":
        expected["train/rate", step] = float(row["rate"])
        if row["train_loss"]:
            expected["train/loss", step] = float(row["train_loss"])
    else:
        expected[f"test/error of {row['model']}", step] = float(row["test_error"])
        if row["test_loss"]:
            expected[f"test/loss of {row['model']}", step] = float(row["test_loss"])

wrong = [key for key, value in expected.items() if not math.isclose(found.get(key, math.nan), value, rel_tol=1e-6, abs_tol=1e-9)]
rounds = sorted({step for tag, step in found if tag == "train/rate"})
weights = [sum(value for (tag, at), value in found.items() if tag.startswith("weight/") and at == step) for step in rounds]
if wrong or not expected or not rounds or any(abs(total - 1) > 1e-5 for total in weights):
    sys.exit(f"tensorboard reads {found}, metrics.csv says {expected}; different: {wrong}; sums of weights: {weights}")
print(f"tensorboard reads {len(found)} numbers of {len(tags)} curves; all {len(expected)} of metrics.csv are among them")
