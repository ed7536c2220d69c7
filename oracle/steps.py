"""Training steps of a network in PyTorch, on given batches, for another engine to repeat: `cargo run --release -p grawa-nn --example steps -- FILE`.

usage: steps.py NET OUT.safetensors CIFAR-10-FOLDER [--steps 50] [--batch 128] [--seed 1] [--cases slow,momentum,fast]
Writes param.NAME and buffer.NAME before the first step, images (steps, batch, 3, side, side), labels, and the mean losses of every step,
loss.CASE.WAY, for the cases slow (rate 0.001, plain SGD), momentum (0.001) and fast (0.1), the latter two with Nesterov momentum 0.9, all with weight
decay 1e-4 and no dropout, and for three of PyTorch's own ways: default, channels_last, no_onednn.   needs: pip install torch safetensors numpy
"""
import argparse, numpy, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import save_file
from nets import build

a = argparse.ArgumentParser()
a.add_argument("net"); a.add_argument("out"); a.add_argument("cifar"); a.add_argument("--steps", type=int, default=50)
a.add_argument("--batch", type=int, default=128); a.add_argument("--seed", type=int, default=1)
a.add_argument("--cases", default="slow,momentum,fast")
a = a.parse_args()


def fresh():
    torch.manual_seed(a.seed)
    net, side, classes = build(a.net)
    for m in net.modules():
        if isinstance(m, nn.Dropout): m.p = 0.0
    return net.train(), side, classes


net, side, classes = fresh()
raw = numpy.fromfile(f"{a.cifar}/data_batch_1.bin", dtype=numpy.uint8).reshape(-1, 3073)
raw = raw[numpy.random.default_rng(a.seed).integers(0, len(raw), a.steps * a.batch)]
x = torch.tensor(raw[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
x = (x - torch.tensor([.4914, .4822, .4465]).view(3, 1, 1)) / torch.tensor([.2023, .1994, .2010]).view(3, 1, 1)
edge = (32 - side) // 2
x = x[:, :, edge:edge + side, edge:edge + side].reshape(a.steps, a.batch, 3, side, side).contiguous()
y = torch.tensor(raw[:, 0].astype("int64")).reshape(a.steps, a.batch)
out = {f"param.{n}": p.detach().clone() for n, p in net.named_parameters()}
out |= {f"buffer.{n}": b.clone() for n, b in net.named_buffers() if b.is_floating_point()}
out |= {"images": x, "labels": y}
for case, rate, momentum in (("slow", 0.001, 0.0), ("momentum", 0.001, 0.9), ("fast", 0.1, 0.9)):
    if case not in a.cases.split(","): continue
    for way in ("default", "channels_last", "no_onednn"):
        net, _, _ = fresh()
        if way == "channels_last": net.to(memory_format=torch.channels_last)
        opt = torch.optim.SGD(net.parameters(), lr=rate, momentum=momentum, nesterov=momentum > 0, weight_decay=1e-4)
        losses = []
        with torch.backends.mkldnn.flags(enabled=way != "no_onednn"):
            for images, labels in zip(x, y):
                if way == "channels_last": images = images.to(memory_format=torch.channels_last)
                opt.zero_grad(); loss = F.cross_entropy(net(images), labels); loss.backward(); opt.step(); losses.append(loss.item())
        out[f"loss.{case}.{way}"] = torch.tensor(losses)
        print(f"{a.net} {case} {way}: first {losses[0]:.4f}, last {losses[-1]:.4f}", flush=True)
save_file(out, a.out)
