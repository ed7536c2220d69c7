"""Loads a state that grawa saved into its PyTorch twin, every name strictly, and tests it on CIFAR-10.

usage: check_state.py NET STATE.safetensors [CIFAR-10-FOLDER]      needs: pip install torch safetensors numpy
"""
import sys, numpy, torch
from safetensors.torch import load_file
from nets import build

state = load_file(sys.argv[2])
net, side, classes = build(sys.argv[1])
net.load_state_dict(state, strict=True)
print(f"{sys.argv[1]}: {len(state)} tensors loaded strictly, {sum(p.numel() for p in net.parameters()):,} parameters")
if len(sys.argv) > 3:
    raw = numpy.fromfile(f"{sys.argv[3]}/test_batch.bin", dtype=numpy.uint8).reshape(-1, 3073)
    x = torch.tensor(raw[:, 1:].reshape(-1, 3, 32, 32)).float() / 255
    x = (x - torch.tensor([.4914, .4822, .4465]).view(3, 1, 1)) / torch.tensor([.2023, .1994, .2010]).view(3, 1, 1)
    edge = (32 - side) // 2
    x = x[:, :, edge:edge + side, edge:edge + side]
    net.eval()
    with torch.no_grad(): right = sum((net(x[i:i + 500]).argmax(1).numpy() == raw[i:i + 500, 0]).sum() for i in range(0, len(x), 500))
    print(f"{right} of {len(x)} test images right, {100 * right / len(x):.2f} %")
