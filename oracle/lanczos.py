"""Lanczos on the Hessian of a network in PyTorch, by double backward, as the authors' code does it: what `grawa flatness` is compared with.

usage: lanczos.py NET STATE CIFAR-10 EXAMPLES.csv [--batch 32] [--steps 100] [--draws 1] [--threads 2] [--device cpu|cuda] [--keep]
STATE is a state that grawa saved, EXAMPLES.csv what `grawa flatness` wrote: the same parameters on the same images. Training-mode batch norm, dropout off, mean loss, f32 without TF32. Prints the largest
Ritz values and the seconds of the Lanczos run alone. --keep keeps the graph of the gradients of all batches instead of making it anew for each product: faster, and more memory.
"""
import argparse, time
import numpy as np, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import load_file
from nets import build

a = argparse.ArgumentParser()
a.add_argument("net"); a.add_argument("state"); a.add_argument("cifar"); a.add_argument("examples"); a.add_argument("--batch", type=int, default=32)
a.add_argument("--steps", type=int, default=100); a.add_argument("--draws", type=int, default=1); a.add_argument("--threads", type=int, default=2); a.add_argument("--device", default="cpu"); a.add_argument("--keep", action="store_true")
a = a.parse_args()
torch.set_num_threads(a.threads); torch.manual_seed(1); torch.set_default_device(a.device)
torch.backends.cuda.matmul.allow_tf32 = False; torch.backends.cudnn.allow_tf32 = False; torch.backends.cudnn.benchmark = True
wait = torch.cuda.synchronize if a.device == "cuda" else lambda: None
net, side, _ = build(a.net, 10)
net.load_state_dict(load_file(a.state), strict=True); net.to(a.device).train()
for m in net.modules():
    if isinstance(m, nn.Dropout): m.p = 0.0
    if isinstance(m, nn.BatchNorm2d): m.track_running_stats = False
raw = np.concatenate([np.fromfile(f"{a.cifar}/data_batch_{i}.bin", np.uint8).reshape(-1, 3073) for i in range(1, 6)])
raw = raw[[int(line) for line in open(a.examples).read().split()[1:]]]
images = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32).copy()).to(a.device).float() / 255
images = (images - torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)) / torch.tensor([0.2023, 0.1994, 0.2010]).view(3, 1, 1)
cut = (32 - side) // 2
images, labels = images[:, :, cut:cut + side, cut:cut + side], torch.from_numpy(raw[:, 0].astype(np.int64)).to(a.device)
batches = list(zip(images.split(a.batch), labels.split(a.batch)))
params = list(net.parameters()); size = sum(p.numel() for p in params)
flat = lambda tensors: torch.cat([t.reshape(-1) for t in tensors])
gradient = lambda x, y: flat(torch.autograd.grad(F.cross_entropy(net(x), y), params, create_graph=True))


def product(v, kept):
    total = torch.zeros(size)
    for number, (x, y) in enumerate(batches):
        g = kept[number] if kept else gradient(x, y)
        total += flat(torch.autograd.grad(g, params, v, retain_graph=bool(kept)))
    return total / len(batches)


product(torch.ones(size), []); wait()  # warm
for draw in range(a.draws):
    start = time.perf_counter()
    kept = [gradient(x, y) for x, y in batches] if a.keep else []
    basis = torch.zeros(a.steps, size, dtype=torch.float64); v = torch.rand(size, dtype=torch.float64) * 2 - 1
    basis[0] = v / v.norm(); diagonal, beside = [], []
    for k in range(a.steps):
        w = product(basis[k].float(), kept).double()
        diagonal.append((w @ basis[k]).item())
        w -= basis[:k + 1].T @ (basis[:k + 1] @ w); w -= basis[:k + 1].T @ (basis[:k + 1] @ w)
        if k + 1 < a.steps: beside.append(w.norm().item()); basis[k + 1] = w / w.norm()
    t = torch.diag(torch.tensor(diagonal)) + torch.diag(torch.tensor(beside), 1) + torch.diag(torch.tensor(beside), -1)
    values = torch.linalg.eigvalsh(t.double())
    wait(); seconds = time.perf_counter() - start
    print(f"torch {torch.__version__} {a.device} {a.net} {a.steps} steps{' kept' if a.keep else ''}: {seconds:.2f} s; top {' '.join(f'{x:.5f}' for x in values.flip(0)[:5])}; sum {values.sum():.4f}", flush=True)
