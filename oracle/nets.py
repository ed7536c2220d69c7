"""The paper's networks in plain PyTorch, written from their descriptions: the oracle that numerics and speed are compared with.
Widths and depths are parameters, so that tests use small sisters."""
import torch, torch.nn as nn, torch.nn.functional as F


def conv3(i, o, stride=1, bias=False): return nn.Conv2d(i, o, 3, stride, 1, bias=bias)


class BasicA(nn.Module):
    """CIFAR ResNet block, option-A shortcut: take every other pixel, pad channels with zeros on both sides."""
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = conv3(i, o, stride), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = conv3(o, o), nn.BatchNorm2d(o)
        self.pad, self.stride = (o - i) // 2, stride

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride != 1: x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x)


class ResNetCifar(nn.Module):
    def __init__(self, n, classes=10, w=16):
        super().__init__()
        self.conv1, self.bn1 = conv3(3, w), nn.BatchNorm2d(w)
        def stage(i, o, stride): return nn.Sequential(*[BasicA(i if k == 0 else o, o, stride if k == 0 else 1) for k in range(n)])
        self.layer1, self.layer2, self.layer3 = stage(w, w, 1), stage(w, 2 * w, 2), stage(2 * w, 4 * w, 2)
        self.linear = nn.Linear(4 * w, classes)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


class VGG16(nn.Module):
    def __init__(self, classes=10, dropout=0.5, plan=(64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0), hidden=512):
        super().__init__()
        layers, i = [], 3
        for v in plan:
            if v == 0: layers.append(nn.MaxPool2d(2))
            else: layers += [conv3(i, v, bias=True), nn.BatchNorm2d(v), nn.ReLU()]; i = v
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(i, hidden), nn.ReLU(), nn.Dropout(dropout),
                                        nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x): return self.classifier(self.features(x).flatten(1))


class PyramidBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(i), conv3(i, o, stride)
        self.bn2, self.conv2, self.bn3 = nn.BatchNorm2d(o), conv3(o, o), nn.BatchNorm2d(o)
        self.grow, self.stride = o - i, stride

    def forward(self, x):
        y = self.bn3(self.conv2(F.relu(self.bn2(self.conv1(self.bn1(x))))))
        if self.stride != 1: x = F.avg_pool2d(x, 2, 2, ceil_mode=True)
        return y + F.pad(x, (0, 0, 0, 0, 0, self.grow))


class PyramidNet(nn.Module):
    def __init__(self, depth=110, alpha=270, classes=10):
        super().__init__()
        n = (depth - 2) // 6; rate = alpha / (3 * n)
        self.conv1, self.bn1 = conv3(3, 16), nn.BatchNorm2d(16)
        blocks, wide, i = [], 16.0, 16
        for s in range(3):
            for k in range(n):
                wide += rate; o = int(round(wide))
                blocks.append(PyramidBlock(i, o, 2 if s > 0 and k == 0 else 1)); i = o
        self.blocks = nn.Sequential(*blocks)
        self.bn_final, self.fc = nn.BatchNorm2d(i), nn.Linear(i, classes)

    def forward(self, x):
        x = F.relu(self.bn_final(self.blocks(self.bn1(self.conv1(x)))))
        return self.fc(x.mean((2, 3)))


class Bottle(nn.Module):
    def __init__(self, i, growth):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(i), nn.Conv2d(i, 4 * growth, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(4 * growth), conv3(4 * growth, growth)

    def forward(self, x):
        return torch.cat([self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x)))))), x], 1)


class Transition(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.bn, self.conv = nn.BatchNorm2d(i), nn.Conv2d(i, o, 1, bias=False)

    def forward(self, x): return F.avg_pool2d(self.conv(self.bn(x)), 2)


class DenseNet(nn.Module):
    def __init__(self, blocks=(6, 12, 24, 16), growth=32, classes=100):
        super().__init__()
        c = 2 * growth
        self.conv1 = conv3(3, c); layers = []
        for b, n in enumerate(blocks):
            for _ in range(n): layers.append(Bottle(c, growth)); c += growth
            if b < len(blocks) - 1: layers.append(Transition(c, c // 2)); c //= 2
        self.body = nn.Sequential(*layers)
        self.bn, self.linear = nn.BatchNorm2d(c), nn.Linear(c, classes)

    def forward(self, x): return self.linear(F.relu(self.bn(self.body(self.conv1(x)))).mean((2, 3)))


class WideBlock(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(i), conv3(i, o, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(o), conv3(o, o)
        self.shortcut = nn.Conv2d(i, o, 1, stride, bias=False) if i != o else None

    def forward(self, x):
        h = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.conv1(h))))
        return y + (x if self.shortcut is None else self.shortcut(h))


class WideResNet(nn.Module):
    def __init__(self, depth=28, k=10, classes=100):
        super().__init__()
        n = (depth - 4) // 6; i = 16; blocks = []
        self.conv1 = conv3(3, 16)
        for s, o in enumerate((16 * k, 32 * k, 64 * k)):
            for b in range(n): blocks.append(WideBlock(i, o, 2 if s > 0 and b == 0 else 1)); i = o
        self.blocks, self.bn, self.fc = nn.Sequential(*blocks), nn.BatchNorm2d(i), nn.Linear(i, classes)

    def forward(self, x): return self.fc(F.relu(self.bn(self.blocks(self.conv1(x)))).mean((2, 3)))


class Projected(nn.Module):
    """ResNet-18 basic block with a 1x1 projection shortcut where the shape changes."""
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1, self.conv2, self.bn2 = conv3(i, o, stride), nn.BatchNorm2d(o), conv3(o, o), nn.BatchNorm2d(o)
        self.shortcut = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)) if stride != 1 or i != o else nn.Sequential()

    def forward(self, x): return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + self.shortcut(x))


class ResNet18Narrow(nn.Module):
    def __init__(self, w=8, classes=10):
        super().__init__()
        self.conv1, self.bn1 = conv3(3, 8 * w), nn.BatchNorm2d(8 * w); i = 8 * w; blocks = []
        for s in range(4):
            for b in range(2): blocks.append(Projected(i, 8 * w << s, 2 if s > 0 and b == 0 else 1)); i = 8 * w << s
        self.blocks, self.linear = nn.Sequential(*blocks), nn.Linear(i, classes)

    def forward(self, x): return self.linear(self.blocks(F.relu(self.bn1(self.conv1(x)))).mean((2, 3)))


class Neck(nn.Module):
    def __init__(self, i, mid, stride, down):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv2, self.bn2 = conv3(mid, mid, stride), nn.BatchNorm2d(mid)
        self.conv3, self.bn3 = nn.Conv2d(mid, 4 * mid, 1, bias=False), nn.BatchNorm2d(4 * mid)
        self.downsample = nn.Sequential(nn.Conv2d(i, 4 * mid, 1, stride, bias=False), nn.BatchNorm2d(4 * mid)) if down else None

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x))); y = F.relu(self.bn2(self.conv2(y))); y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet50(nn.Module):
    """The torchvision layout: stride in the 3x3."""
    def __init__(self, classes=1000, blocks=(3, 4, 6, 3), w=64):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, w, 7, 2, 3, bias=False), nn.BatchNorm2d(w); i = w
        for s, n in enumerate(blocks):
            mid = w << s
            blocks = []
            for b in range(n): blocks.append(Neck(i, mid, 2 if s > 0 and b == 0 else 1, b == 0)); i = 4 * mid
            setattr(self, f"layer{s + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(i, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


# name -> (constructor taking classes, input side, classes in the paper)
NETS = {
    "resnet20": (lambda c: ResNetCifar(3, c), 28, 10),
    "resnet56": (lambda c: ResNetCifar(9, c), 32, 10),
    "vgg16": (lambda c: VGG16(c), 32, 10),
    "pyramidnet110": (lambda c: PyramidNet(110, 270, c), 32, 10),
    "densenet121": (lambda c: DenseNet(classes=c), 32, 100),
    "wrn28-10": (lambda c: WideResNet(28, 10, c), 32, 100),
    "resnet18-w4": (lambda c: ResNet18Narrow(4, c), 32, 10),
    "resnet18-w6": (lambda c: ResNet18Narrow(6, c), 32, 10),
    "resnet18-w8": (lambda c: ResNet18Narrow(8, c), 32, 10),
    "resnet50": (lambda c: ResNet50(c), 224, 1000),
}


def build(name, classes=None):
    make, side, default = NETS[name]
    return make(classes or default), side, classes or default


class Digits(nn.Module):
    def __init__(self, classes=10, w=16, side=8):
        super().__init__()
        self.conv1, self.bn1, self.conv2, self.bn2 = conv3(1, w), nn.BatchNorm2d(w), conv3(w, 2 * w), nn.BatchNorm2d(2 * w)
        self.linear = nn.Linear(2 * w * (side // 2) ** 2, classes)

    def forward(self, x): return self.linear(F.relu(self.bn2(self.conv2(F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)))).flatten(1))
