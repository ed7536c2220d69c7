"""Networks of torchvision, exported by `grawa.export` and run by grawa's engine, against PyTorch.

usage: import_nets.py GRAWA [NET ...]          GRAWA: the command, e.g. target/release/grawa
       import_nets.py --fixtures FOLDER        writes the two small networks of crates/grawa-nn/tests/imported.rs
needs: pip install torch torchvision numpy

Weights are random. Logits, loss, gradients of all parameters and batch-norm statistics are those of one batch in training mode, dropout off,
compared with PyTorch in f64; PyTorch's own f32 errors stand beside grawa's. Batch-norm shifts are plus or minus five scales, so that no ReLU behind a
batch norm is near its kink: there f32 and f64 differ by more than rounding, in any engine (see values.py).
"""
import importlib.util, json, pathlib, re, subprocess, sys, tempfile, torch, torch.nn as nn, torch.nn.functional as F

ROOT = pathlib.Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("export", ROOT / "crates/grawa-py/python/grawa/export.py")
export = importlib.util.module_from_spec(spec)
spec.loader.exec_module(export)

# The images: AlexNet and VGG pool to a fixed size, which images of 224 pixels have already.
SIDES = {"alexnet": 224, "vgg11": 224, "vgg11_bn": 224}
NETS = ["resnet18", "resnet34", "resnet50", "wide_resnet50_2", "densenet121", "googlenet", "squeezenet1_0", "squeezenet1_1", "alexnet", "vgg11_bn"]
BATCH = 4


class Residual(nn.Module):
    """Batch norm with another epsilon, a shortcut without weights, a concatenation, pools that overlap the edge, dropout."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(6, eps=1e-3)
        self.conv2 = nn.Conv2d(6, 10, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(10)
        self.branch = nn.Sequential(nn.Conv2d(10, 4, 1), nn.ReLU(inplace=True))
        self.norm = nn.GroupNorm(2, 14)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.drop = nn.Dropout(0.2)
        self.fc = nn.Linear(14 * 4, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        short = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 2, 2))
        y = self.bn2(self.conv2(x))
        y += short
        y = torch.cat([y, self.branch(y)], 1)
        y = self.pool(self.norm(y))
        return self.fc(self.drop(y.view(y.size(0), -1)))


class Plain(nn.Module):
    """Biased convolutions without batch norm, lists that begin alike, and a head of convolution and mean."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 5, stride=1, padding="same")
        self.grow = nn.ModuleList([nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(12, 4, 3, padding=1)])
        self.head = nn.Conv2d(16, 10, 1)

    def forward(self, x):
        parts = [F.avg_pool2d(torch.relu(self.first(x)), 2)]
        for conv in self.grow:
            parts.append(conv(torch.cat(parts, 1)).relu())
        return self.head(torch.cat(parts, 1)).mean((2, 3))


def smooth(net, nodes):
    """Shifts of five scales; those that a ReLU follows directly are off in every fourth channel."""
    users = {}
    for node in nodes:
        for name in node["inputs"]: users.setdefault(name, []).append(node["op"])
    for name, m in net.named_modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            m.running_mean.uniform_(-0.2, 0.2); m.running_var.uniform_(0.5, 1.5)
            m.bias.data = 5 * m.weight.data.clone()
            if users.get(name) == ["relu"]: m.bias.data[::4] *= -1


def one_pass(net, x, y):
    """Logits, loss, gradients and statistics of a training step without dropout."""
    logits = net(x)
    loss = F.cross_entropy(logits, y, reduction="sum")
    grads = torch.autograd.grad(loss, list(net.parameters()))
    out = {"logits": logits.detach(), "loss_sum": loss.detach().reshape(1)}
    out |= {f"grad.{n}": g for (n, _), g in zip(net.named_parameters(), grads)}
    return out | {f"buffer_after.{n}": b.clone() for n, b in net.named_buffers() if b.is_floating_point()}


def values(net, x, y, path):
    """Writes what goes in and PyTorch's results in f64; returns PyTorch's own errors in f32, by kind."""
    for m in net.modules():
        if isinstance(m, nn.Dropout): m.p = 0.0
    net.train()
    given = {f"param.{n}": p.detach().clone() for n, p in net.named_parameters()}
    given |= {f"buffer.{n}": b.clone() for n, b in net.named_buffers() if b.is_floating_point()}
    rough = one_pass(net, x, y)
    net.load_state_dict({n.split(".", 1)[1]: t for n, t in given.items()}, strict=False)
    exact = one_pass(net.double(), x.double(), y)
    path.write_bytes(export._safetensors(given | exact | {"image": x, "label": y}))
    gap = lambda n: (rough[n].double() - exact[n]).norm().item()
    size = lambda n: exact[n].norm().item()
    whole = lambda part: sum(part(n) ** 2 for n in exact if n.startswith("grad.")) ** 0.5
    kinds = {"logits": ["logits"], "loss_sum": ["loss_sum"], "buffer_after": [n for n in exact if n.startswith("buffer_after.")],
             "grad": [n for n in exact if n.startswith("grad.") and size(n) > 1e-4 * whole(size)]}
    own = {kind: max(gap(n) / size(n) for n in names) for kind, names in kinds.items() if names}
    return own | {"grad (whole)": whole(gap) / whole(size)}


def write(net, side, channels, folder, name):
    torch.manual_seed(1)
    export.export(net, torch.zeros(2, channels, side, side), folder / f"{name}.json", name=name, weights=False)
    smooth(net, json.loads((folder / f"{name}.json").read_text())["nodes"])
    x, y = torch.randn(BATCH, channels, side, side), torch.arange(BATCH) * 7 % 10
    return values(net, x, y, folder / f"{name}.safetensors")


if sys.argv[1] == "--fixtures":
    for name, net in [("residual", Residual), ("plain", Plain)]:
        torch.manual_seed(2)
        print(name, write(net(), 8, 1, pathlib.Path(sys.argv[2]), f"imported-{name}"))
    sys.exit()

import torchvision

print(f"{'network':18}{'kind':14}{'grawa f32':>12}{'PyTorch f32':>14}")
for name in sys.argv[2:] or NETS:
    torch.manual_seed(2)
    more = {"aux_logits": False, "init_weights": False} if name == "googlenet" else {}
    net = torchvision.models.get_model(name, weights=None, num_classes=10, **more)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        own = write(net, SIDES.get(name, 64), 3, folder, name)
        files = ["--model", folder / f"{name}.json", "--values", folder / f"{name}.safetensors", "--out", folder / "results.safetensors"]
        table = subprocess.run([sys.argv[1], "probe", *files], check=True, capture_output=True, text=True).stdout
        for kind, error in own.items():
            found = re.search(rf"^\W*{re.escape(kind)} \s*\W?\s*([0-9.e+-]+)", table, re.M)
            print(f"{name:18}{kind:14}{float(found[1]):12.1e}{error:14.1e}", flush=True)
