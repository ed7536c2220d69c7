"""A small GPT that learns to write like a text, character by character, in PyTorch.

    grawa launch --workers 4 -- python char_gpt.py [FILE ...]

Without files the text is the documentation of this repository.
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import grawa


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, symbols: int, length: int, width: int, layers: int, heads: int):
        super().__init__()
        self.token, self.place = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, symbols, bias=False)
        # The two are one tensor, which is shared once.
        self.out.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.place.weight, std=0.02)

    def forward(self, tokens):
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        return self.out(self.norm(self.blocks(x)))


class Windows(torch.utils.data.Dataset):
    """Stretches of a text, and the characters that follow each."""

    def __init__(self, text: torch.Tensor, length: int):
        self.text, self.length = text, length

    def __len__(self):
        return (len(self.text) - 1) // self.length

    def __getitem__(self, index):
        first = index * self.length
        return self.text[first : first + self.length], self.text[first + 1 : first + self.length + 1]


def loss_of(model, x, y):
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def write(model, start: torch.Tensor, count: int, length: int) -> torch.Tensor:
    tokens = start[None]
    for _ in range(count):
        shares = model(tokens[:, -length:])[:, -1].softmax(1)
        tokens = torch.cat([tokens, torch.multinomial(shares, 1)], 1)
    return tokens[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--method", default="mean:period=16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    files = [Path(name) for name in args.files] or sorted(Path(__file__).parents[3].glob("docs/*.md"))
    text = "\n".join(file.read_text() for file in files)
    symbols = sorted(set(text))
    number = {symbol: i for i, symbol in enumerate(symbols)}
    tokens = torch.tensor([number[symbol] for symbol in text], device=args.device)
    cut = len(tokens) * 9 // 10
    train, test = Windows(tokens[:cut], args.length), Windows(tokens[cut:], args.length)

    torch.manual_seed(args.seed)
    model = GPT(len(symbols), args.length, args.width, args.layers, heads=4).to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    with grawa.join(model, optimizer, args.method, seed=args.seed) as run:
        for epoch in run.epochs(args.epochs):
            for x, y in run.loader(train, args.batch):
                for group in optimizer.param_groups:
                    group["lr"] = 1e-3 * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * run.progress.share)))
                loss = loss_of(model, x, y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                run.loss(loss)
                optimizer.step()
                optimizer.zero_grad()
            # All evaluate: one that did it alone would come late to the next round, and the others continue without it.
            with run.averaged(), torch.no_grad():
                losses = [float(loss_of(model, *batch)) for batch in torch.utils.data.DataLoader(test, 64)]
            if run.is_first:
                print(f"epoch {epoch + 1}: test loss {sum(losses) / len(losses):.3f} nats a character", flush=True)
        if run.is_first:
            with run.averaged():
                print("".join(symbols[i] for i in write(model, tokens[cut : cut + 32], 120, args.length)), flush=True)


if __name__ == "__main__":
    main()
