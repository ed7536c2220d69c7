"""ResNet-20 on CIFAR-10, in PyTorch.

    grawa launch --workers 4 -- python cifar10_resnet.py --data FOLDER

FOLDER holds CIFAR-10 as torchvision keeps it; --download fetches it there. --tiny needs no data: random pictures, for a try.
"""

import argparse
import math
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import grawa


class Block(nn.Module):
    def __init__(self, before: int, width: int, stride: int):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.stride, self.more = stride, width - before

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more // 2)))


class ResNet(nn.Module):
    """The ResNet for CIFAR of He et al., 6n + 2 layers."""

    def __init__(self, n: int = 3, widths=(16, 32, 64)):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), nn.BatchNorm2d(widths[0])
        befores = [widths[0], *widths[:-1]]
        self.blocks = nn.Sequential(*(
            Block(before if i == 0 else width, width, 2 if i == 0 and width > before else 1)
            for before, width in zip(befores, widths) for i in range(n)
        ))  # fmt: skip
        self.out = nn.Linear(widths[-1], 10)

    def forward(self, x):
        return self.out(self.blocks(F.relu(self.norm(self.conv(x)))).mean((2, 3)))


def random_pictures(count: int, seed: int) -> TensorDataset:
    """Ten patterns with noise."""
    patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=generator)
    return TensorDataset(patterns[labels] + torch.randn(count, 3, 32, 32, generator=generator), labels)


def cifar10(folder: str, download: bool):
    from torchvision import datasets, transforms as T

    plain = [T.ToTensor(), T.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))]
    augmented = T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), *plain])
    return (
        datasets.CIFAR10(folder, train=True, transform=augmented, download=download),
        datasets.CIFAR10(folder, train=False, transform=T.Compose(plain), download=download),
    )


@torch.no_grad()
def test_error(model: nn.Module, loader: DataLoader, device: torch.device) -> float:
    model.eval()
    wrong = sum(int((model(x.to(device)).argmax(1) != y.to(device)).sum()) for x, y in loader)
    model.train()
    return 100 * wrong / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of CIFAR-10")
    parser.add_argument("--download", action="store_true")
    parser.add_argument("--tiny", action="store_true", help="random pictures and a small network")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--method", default="local-lgrawa:period=32")
    parser.add_argument("--save", help="a file for the averaged model")
    args = parser.parse_args()
    if not args.tiny and args.data is None:
        parser.error("give the folder of CIFAR-10 with --data, or --tiny")

    torch.manual_seed(0)
    # One GPU for each worker of this machine, in turn.
    gpus, place = torch.cuda.device_count(), int(os.environ.get("GRAWA_LOCAL_RANK", 0))
    device = torch.device(f"cuda:{place % gpus}" if gpus else "cpu")
    train, test = (random_pictures(512, 1), random_pictures(256, 2)) if args.tiny else cifar10(args.data, args.download)
    model = (ResNet(1, (8, 16)) if args.tiny else ResNet()).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)

    with grawa.join(model, optimizer, args.method) as run:
        for epoch in run.epochs(args.epochs):
            for x, y in run.loader(train, args.batch, num_workers=0 if args.tiny else 2):
                # By the clock of the run, which is the same for a worker that joined late.
                for group in optimizer.param_groups:
                    group["lr"] = 0.05 * (1 + math.cos(math.pi * run.progress.share))
                loss = F.cross_entropy(model(x.to(device)), y.to(device))
                loss.backward()
                run.loss(loss)
                optimizer.step()
                optimizer.zero_grad()
            # All evaluate: one that did it alone would come late to the next round, and the others continue without it.
            with run.averaged():
                error = test_error(model, DataLoader(test, 256), device)
            if run.is_first:
                print(f"epoch {epoch + 1}: test error {error:.2f} %", flush=True)
        if args.save and run.is_first:
            run.save(args.save)


if __name__ == "__main__":
    main()
