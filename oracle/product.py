"""Products with the Hessian in PyTorch, by double backward, on random images: what `grawa bench product` is compared with.

usage: product.py [--device cpu|cuda] [--nets resnet20,vgg16] [--examples 320] [--batch 32] [--seconds 10] [--channels-last]
f32 without TF32, training-mode batch norm, mean loss. Two lines a network: the graph of the gradients made anew for each product, as the authors' code does, and kept.
"""
import argparse, time
import torch, torch.nn as nn, torch.nn.functional as F
from nets import build

a = argparse.ArgumentParser()
a.add_argument("--device", default="cpu"); a.add_argument("--nets", default="resnet20"); a.add_argument("--examples", type=int, default=320)
a.add_argument("--batch", type=int, default=32); a.add_argument("--seconds", type=float, default=10.0); a.add_argument("--channels-last", action="store_true")
a = a.parse_args()
torch.backends.cuda.matmul.allow_tf32 = False; torch.backends.cudnn.allow_tf32 = False; torch.backends.cudnn.benchmark = True
wait = torch.cuda.synchronize if a.device == "cuda" else lambda: None
for name in a.nets.split(","):
    torch.manual_seed(1)
    net, side, classes = build(name); net.to(a.device).train()
    for m in net.modules():
        if isinstance(m, nn.Dropout): m.p = 0.0
        if isinstance(m, nn.BatchNorm2d): m.track_running_stats = False
    images = torch.randn(a.examples, 3, side, side, device=a.device); labels = torch.randint(0, classes, (a.examples,), device=a.device)
    if a.channels_last:
        net.to(memory_format=torch.channels_last); images = images.to(memory_format=torch.channels_last)
    batches = list(zip(images.split(a.batch), labels.split(a.batch)))
    params = list(net.parameters()); v = [torch.randn_like(p) for p in params]
    gradient = lambda x, y: torch.autograd.grad(F.cross_entropy(net(x), y), params, create_graph=True)

    def product(kept):
        total = [torch.zeros_like(p) for p in params]
        for number, (x, y) in enumerate(batches):
            g = kept[number] if kept else gradient(x, y)
            torch._foreach_add_(total, torch.autograd.grad(g, params, v, retain_graph=bool(kept)))
        return total

    for way in ["made anew", "kept"]:
        try:
            kept = [gradient(x, y) for x, y in batches] if way == "kept" else []
            for _ in range(3): product(kept)
            wait(); start = time.perf_counter(); count = 0
            while time.perf_counter() - start < a.seconds: product(kept); wait(); count += 1
            print(f"torch {torch.__version__} {a.device} {name}, {a.examples} examples in batches of {a.batch}{', channels-last' if a.channels_last else ''}, graphs {way}: {(time.perf_counter() - start) / count * 1e3:.2f} ms a product", flush=True)
        except torch.OutOfMemoryError as error: print(f"{name}, graphs {way}: {str(error).splitlines()[0]}", flush=True)
        kept = []
