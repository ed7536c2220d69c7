"""Writes the small reference values that the tests of grawa-flat compare with: dense Hessians of small networks, from PyTorch in f64.

usage: flatness.py OUT-FOLDER        needs: pip install torch safetensors numpy

Parameters, images and labels are those of filling.py's formula. For batch norm in training and in evaluation mode: eigenvalues of the Hessian of the mean loss
over four batches of six examples (all, ascending), its product with a filled vector, trace, Frobenius norm, loss, norm of the gradient, and sum of its tensors' norms.
"""
import sys, torch, torch.nn.functional as F
from filling import fill, filled
from nets import Digits, ResNetCifar
from safetensors.torch import save_file

NETS = {"digits": (lambda: Digits(10, 2), 1, 8, 10), "resnet": (lambda: ResNetCifar(1, 5, 2), 3, 8, 5)}
BATCH, BATCHES, folder = 6, 4, sys.argv[1]

for name, (make, channels, side, classes) in NETS.items():
    net = make().double(); fill(net)
    n = BATCH * BATCHES
    x = (2.0 * filled(n * channels * side * side, 1000)).float().double().reshape(n, channels, side, side)
    y = torch.arange(n) * 7 % classes
    params = list(net.parameters()); out = {}
    def mean_loss():
        return sum(F.cross_entropy(net(a), b) for a, b in zip(x.split(BATCH), y.split(BATCH))) / BATCHES
    for mode in ("train", "eval"):
        kept = {k: b.clone() for k, b in net.named_buffers()}
        net.train(mode == "train")
        loss = mean_loss()
        grads = torch.autograd.grad(loss, params, create_graph=True)
        for k, b in net.named_buffers(): b.data = kept[k]
        g = torch.cat([t.flatten() for t in grads])
        def times(v): return torch.cat([t.flatten() for t in torch.autograd.grad(g, params, v, retain_graph=True)])
        h = torch.stack([times(e) for e in torch.eye(len(g), dtype=torch.float64)])
        print(f"{name} {mode}: {len(g)} parameters, asymmetry {(h - h.T).norm() / h.norm():.1e}")
        values = torch.linalg.eigvalsh((h + h.T) / 2)
        v = filled(len(g), 77); v = (v / v.norm()).float().double()
        out |= {f"{mode}.eigenvalues": values, f"{mode}.product": h @ v, f"{mode}.trace": h.trace(), f"{mode}.frobenius": h.norm(), f"{mode}.loss": loss.detach(),
                f"{mode}.gradient": g.detach().norm(), f"{mode}.layers": sum(t.detach().norm() for t in grads)}
    save_file({k: t.float().reshape(-1).contiguous() for k, t in out.items()}, f"{folder}/{name}.safetensors")
