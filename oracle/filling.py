"""Numbers that the scripts here and the tests of grawa compute alike, so that they need not be stored."""
import math, torch


def filled(count, stream):
    """Numbers in [-1, 1) that any language computes exactly: a multiplicative hash of the index."""
    index = torch.arange(count, dtype=torch.int64) + 1
    return ((index * 2654435761 + stream * 40503 * 65537) % 4294967296).double() / 2147483648.0 - 1.0


def fill(net):
    stream = 0
    for name, p in net.named_parameters():
        stream += 1
        values = filled(p.numel(), stream).reshape(p.shape)
        if p.dim() > 1: values = values * math.sqrt(3.0 / (p.numel() // p.shape[0]))
        elif name.endswith("weight"): values = 1.0 + 0.5 * values
        else: values = 0.3 * values
        p.data = values.float().double()
    for name, b in net.named_buffers():
        if b.is_floating_point():
            stream += 1
            values = filled(b.numel(), stream)
            b.data = (1.0 + 0.5 * values if name.endswith("var") else 0.2 * values).float().double()
