"""Writes what PyTorch's BatchNorm (momentum=None: equal weights) counts on the batches that grawa recalibrates on.

usage: recalibrate.py OUT.safetensors        needs: pip install torch safetensors numpy

Order and augmentation are computed here anew from their description in crates/grawa-data (order.rs, augment.rs): the first batches of
epoch 0, each mirrored and cropped by the Philox draws of purpose 3, worker 2^32 - 1 and step = number of the batch. Parameters come
from `filling.py`. The test is crates/grawa-train/tests/recalibrate.rs.
"""
import pathlib, sys, zlib
import numpy as np, torch, torch.nn as nn
from safetensors.torch import save_file
from filling import fill
from nets import Digits

SEED, BATCH, BATCHES, PAD = 11, 32, 10, 2
# As crates/grawa-data/src/kind.rs normalises the digits.
LEVELS, MEAN, STD = np.float32(16), np.float32(0.3058), np.float32(0.3764)
SHUFFLE, AUGMENT, RECALIBRATION = 2, 3, 2**32 - 1
MASK = 2**32 - 1


def philox(counter, key):
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & MASK, a >> 32 ^ c[3] ^ k[1], a & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return c


def block(index, purpose, worker, step):
    return philox([index, step & MASK, step >> 32 | purpose << 24, worker], [SEED & MASK, SEED >> 32])


def permutation(n):
    """Fisher-Yates from the end; each draw takes two words, lowest first."""
    order = list(range(n))
    words = (word for index in range(n) for word in block(index, SHUFFLE, 0, 0))
    for last in range(n - 1, 0, -1):
        low, high = next(words), next(words)
        other = (low | high << 32) * (last + 1) >> 64
        order[last], order[other] = order[other], order[last]
    return order


def digits():
    """The training images: all but every fifth, 0 to 16."""
    pack = (pathlib.Path(__file__).parent.parent / "crates/grawa-data/assets/digits.bin").read_bytes()
    count = int.from_bytes(pack[8:12], "little")
    images = np.frombuffer(zlib.decompress(pack[12:]), np.uint8)[count:].reshape(count, 8, 8)
    return np.stack([image for index, image in enumerate(images) if index % 5 != 4])


def shown(image, at, step):
    """Padded with zero bytes, cropped to its size; a mirrored one reads its columns from the other end."""
    flip, row, column, _ = block(at, AUGMENT, RECALIBRATION, step)
    choices = 2 * PAD + 1
    row, column = row * choices >> 32, column * choices >> 32
    wide = np.pad(image[:, ::-1] if flip >> 31 else image, PAD)
    return wide[row:row + 8, column:column + 8]


images = digits()
order = permutation(len(images))
net = Digits(10, 4).double()
fill(net)
for module in net.modules():
    if isinstance(module, nn.BatchNorm2d):
        module.momentum = None
        module.reset_running_stats()
net.train()
with torch.no_grad():
    for number in range(BATCHES):
        chosen = order[number * BATCH:(number + 1) * BATCH]
        batch = np.stack([shown(images[index], at, number) for at, index in enumerate(chosen)])
        batch = (batch.astype(np.float32) / LEVELS - MEAN) / STD
        net(torch.from_numpy(batch).double().unsqueeze(1))
save_file({n: b.float() for n, b in net.named_buffers() if b.is_floating_point()}, sys.argv[1])
