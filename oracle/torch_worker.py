#!/usr/bin/env python3
"""A worker of `oracle/attrition.py --program "python oracle/torch_worker.py [BATCH]"`: ResNet-20 on random pictures, one thread.

Batches have 32 pictures unless BATCH says otherwise; the number of steps comes last. Prints the digest of the evaluated model at the end."""

import hashlib
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import grawa

sys.path.insert(0, str(Path(__file__).parents[1] / "crates/grawa-py/examples"))
from cifar10_resnet import ResNet, random_pictures  # noqa: E402

torch.set_num_threads(1)
batch = int(sys.argv[1]) if len(sys.argv) > 2 else 32
torch.manual_seed(0)
data, model = random_pictures(2048, 1), ResNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
# What came before is PyTorch's: its imports take seconds, the last ones when an optimizer is built.
print("begins", time.time(), flush=True)
with grawa.join(model, optimizer, "local-lgrawa:period=8", budget=f"{sys.argv[-1]}step", evaluate=None, buffers="keep") as run:
    for _ in run.epochs():
        for x, y in run.loader(data, batch):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            run.loss(loss)
            optimizer.step()
            optimizer.zero_grad()
    with run.averaged() as evaluated:
        centre = torch.nn.utils.parameters_to_vector(evaluated.parameters()).detach().numpy()
print("centre", hashlib.sha256(centre.tobytes()).hexdigest()[:16], "worker", run.worker, flush=True)
