"""PyTorch's own f32 error on a file of values.py: what an engine's error is to be measured by.

usage: own_error.py NET VALUES.safetensors
"""
import sys, torch, torch.nn as nn, torch.nn.functional as F
from safetensors.torch import load_file
from nets import build

v = load_file(sys.argv[2])
classes = v["logits"].shape[1]
net, _, _ = build(sys.argv[1], classes)
for m in net.modules():
    if isinstance(m, nn.Dropout): m.p = 0.0
net.load_state_dict({n.split(".", 1)[1]: t for n, t in v.items() if n.startswith(("param.", "buffer."))}, strict=False)
net.train()
logits = net(v["image"]); loss = F.cross_entropy(logits, v["label"], reduction="sum"); loss.backward()
gap = lambda a, b: ((a.double() - b.double()).norm() / b.double().norm()).item()
grads = {n: (p.grad, v[f"grad.{n}"]) for n, p in net.named_parameters()}
whole = sum(b.double().norm() ** 2 for _, b in grads.values()).sqrt()
missed = sum((a.double() - b.double()).norm() ** 2 for a, b in grads.values()).sqrt()
print(f"PyTorch f32: logits {gap(logits.detach(), v['logits']):.3e}, grad (whole) {(missed / whole).item():.3e}, "
      f"grad {max(gap(a, b) for a, b in grads.values() if b.double().norm() > 1e-4 * whole):.3e}, "
      f"buffer_after {max(gap(b, v[f'buffer_after.{n}']) for n, b in net.named_buffers() if b.is_floating_point()):.3e}")
print("classes", classes)
