"""Writes the small reference values that the tests of grawa-nn compare with, from PyTorch in f64.

usage: fixtures.py OUT-FOLDER        needs: pip install torch safetensors numpy

Parameters, images and labels are not stored: both sides compute them from a formula (see `filling.py`). Stored are logits, loss_sum and the
batch-norm statistics after the pass in full, and of every gradient tensor its norm, its product with a second filled vector, and its first 32 numbers.
"""
import sys, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file
from filling import fill, filled
from nets import *

# name -> (module, image channels, image side, classes); the names are those of the test in crates/grawa-nn/tests/pytorch.rs
SISTERS = {
    "resnet": (lambda: ResNetCifar(2, 5, 8), 3, 13, 5),
    "vgg": (lambda: VGG16(5, 0.0, (8, 8, 0, 12, 0), 16), 3, 4, 5),
    "pyramidnet": (lambda: PyramidNet(14, 21, 5), 3, 9, 5),
    "densenet": (lambda: DenseNet((2, 3, 1), 4, 5), 3, 8, 5),
    "wide": (lambda: WideResNet(10, 1, 5), 3, 9, 5),
    "resnet18": (lambda: ResNet18Narrow(1, 5), 3, 12, 5),
    "resnet50": (lambda: ResNet50(5, (1, 2, 1, 1), 8), 3, 45, 5),
    "digits": (lambda: Digits(10, 6), 1, 8, 10),
}
BATCH = 6


for name, (make, channels, side, classes) in SISTERS.items():
    net = make().double(); fill(net); net.train()
    x = (2.0 * filled(BATCH * channels * side * side, 1000)).float().double().reshape(BATCH, channels, side, side)
    y = torch.arange(BATCH) * 7 % classes
    logits = net(x)
    loss = F.cross_entropy(logits, y, reduction="sum")
    params = list(net.named_parameters())
    out = {"logits": logits.detach(), "loss_sum": loss.detach().reshape(1)}
    for k, ((n, p), g) in enumerate(zip(params, torch.autograd.grad(loss, [p for _, p in params]))):
        out[f"norm.{n}"], out[f"head.{n}"] = g.norm().reshape(1), g.flatten()[:32]
        out[f"product.{n}"] = (g.flatten() * filled(g.numel(), 2000 + k)).sum().reshape(1)
    out |= {f"buffer_after.{n}": b for n, b in net.named_buffers() if b.is_floating_point()}
    net.eval()
    out["logits_eval"] = net(x).detach()
    save_file({k: t.float().contiguous() for k, t in out.items()}, f"{sys.argv[1]}/{name}.safetensors")
    print(name, sum(p.numel() for _, p in params), loss.item())
