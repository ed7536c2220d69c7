"""The most memory that training steps of a network take in PyTorch on the CPU, beside what the process had before them.

usage: memory.py [NET] [--batch 128]      needs: pip install torch; Linux
`grawa bench step --model NET --batch N --seconds 2` prints grawa's ("MB at peak": everything, the program itself included).
"""
import argparse, torch, torch.nn.functional as F
from nets import build


def status(field):
    with open("/proc/self/status") as lines: return next(int(l.split()[1]) * 1024 / 1e6 for l in lines if l.startswith(field))


a = argparse.ArgumentParser()
a.add_argument("net", nargs="?", default="resnet20"); a.add_argument("--batch", type=int, default=128)
a = a.parse_args()
torch.manual_seed(1)
net, side, classes = build(a.net)
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)
x, y = torch.randn(a.batch, 3, side, side), torch.randint(0, classes, (a.batch,))
before = status("VmRSS")
for _ in range(5): opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()
peak = status("VmHWM")
print(f"torch {torch.__version__} {a.net} batch {a.batch}: {peak - before:.1f} MB for steps, {peak:.1f} MB at peak, {before:.1f} MB before them")
