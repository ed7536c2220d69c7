"""Folders of JPEGs as training batches of 224 x 224: grawa's loader beside PyTorch's DataLoader, interleaved.

usage: oracle/pictures.py [--cores N] [--rounds N] [--seconds S]      needs torch, torchvision, pillow, and cargo

Makes 400 JPEGs of 500 x 375 in a temporary folder. Both sides decode, take a RandomResizedCrop of 224 with antialiasing, mirror and
normalise, in batches of 64. PyTorch has one worker process for each core, grawa one thread for each core.
"""

import argparse
import io
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy
import torch
from PIL import Image
from torchvision import datasets, transforms

HERE = Path(__file__).resolve().parent.parent


def make(folder):
    """Smooth shapes with some noise: about 60 KB each at quality 90, as photographs of this size."""
    draws = numpy.random.default_rng(7)
    for number in range(400):
        small = Image.fromarray(draws.integers(0, 256, (24, 32, 3), dtype=numpy.uint8))
        picture = numpy.asarray(small.resize((500, 375), Image.BICUBIC), dtype=numpy.float32)
        picture = numpy.clip(picture + draws.normal(0, 6, picture.shape), 0, 255).astype(numpy.uint8)
        path = Path(folder) / f"class{number % 4}" / f"{number:03}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(picture).save(path, quality=90)
    sizes = [path.stat().st_size for path in Path(folder).glob("*/*.jpg")]
    print(f"400 JPEGs of 500 x 375, {sum(sizes) / len(sizes) / 1e3:.0f} KB each")


def torch_rate(folder, cores, seconds):
    torch.set_num_threads(1)
    show = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
        transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ])
    data = torch.utils.data.ConcatDataset([datasets.ImageFolder(folder, show)] * 1000)
    batches = iter(torch.utils.data.DataLoader(data, 64, shuffle=True, num_workers=cores))
    for _ in range(3 * cores):
        next(batches)
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        count += len(next(batches)[1])
    return count / (time.perf_counter() - start)


def decode_rate(folder, seconds):
    """Pillow's decoder (libjpeg-turbo) alone, on one core."""
    files = [path.read_bytes() for path in Path(folder).glob("*/*.jpg")]
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        Image.open(io.BytesIO(files[count % len(files)])).convert("RGB").load()
        count += 1
    return count / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cores", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make(folder)
        for _ in range(given.rounds):
            run = ["cargo", "bench", "--locked", "--quiet", "-p", "grawa-data", "--bench", "pictures", "--", folder, str(given.seconds)]
            environment = {**os.environ, "RAYON_NUM_THREADS": str(given.cores)}
            ours = subprocess.run(run, cwd=HERE, env=environment, check=True, capture_output=True, text=True).stdout.split()
            theirs = torch_rate(folder, given.cores, given.seconds)
            print(f"{given.cores} cores, images/s: grawa {float(ours[1]):.0f}, DataLoader {theirs:.0f}; decoder alone: "
                  f"grawa {float(ours[3]):.0f}, Pillow on one core {decode_rate(folder, given.seconds):.0f}", flush=True)


main()
