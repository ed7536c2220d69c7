#!/usr/bin/env python3
"""What grawa adds to a PyTorch loop: to a step between rounds, and a round beside an all-reduce by Gloo.

    grawa launch --workers 4 --page none --out out/overhead -- python oracle/torch_overhead.py [--method mean:period=32] [--device cuda]

ResNet-20 at batch 128, random pictures. Every worker trains two copies of the network in turn: one bare, one in the run. All wait for
each other before a round and before an all-reduce of the same number of floats, so that neither counts the waiting. Worker 0 prints
medians over all periods but the first; the ratio of steps is the median of the ratios of neighbouring blocks, which other load hardly
moves.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

import grawa

sys.path.insert(0, str(Path(__file__).parents[1] / "crates/grawa-py/examples"))
from cifar10_resnet import ResNet  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="mean:period=32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=4, help="as many as were launched")
    parser.add_argument("--periods", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device, period = torch.device(args.device), 32
    is_gpu = device.type == "cuda"
    wait = torch.cuda.synchronize if is_gpu else (lambda: None)
    x, y = torch.randn(128, 3, 32, 32, device=device), torch.randint(10, (128,), device=device)

    def network():
        model = ResNet().to(device)
        return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def gradients(model):
        loss = F.cross_entropy(model(x), y)
        loss.backward()

    def steps(model, optimizer, count):
        """The seconds of these steps, and of their updates."""
        wait()
        began, updates = time.perf_counter(), 0.0
        for _ in range(count):
            gradients(model)
            if not is_gpu:
                from_here = time.perf_counter()
            optimizer.step()
            if not is_gpu:
                updates += time.perf_counter() - from_here
            optimizer.zero_grad()
        wait()
        return time.perf_counter() - began, updates

    bare, (model, optimizer) = network(), network()
    vector = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    run_id, workers = os.environ["GRAWA_COORDINATOR"].replace(":", "-"), args.workers
    store = Path(tempfile.gettempdir()) / f"grawa-overhead-{run_id}"
    periods = []
    options = {"budget": f"{period * args.periods}step", "batch": 128, "examples": 50_000, "evaluate": None, "patience": 600.0}
    with grawa.join(model, optimizer, args.method, buffers="keep", **options) as run:
        run.start()
        rank = run.worker
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=workers)
        for _ in range(args.periods):
            ours, bares, ratios, updates, bare_updates = [], [], [], [], []
            # Blocks of one are too short to time, longer ones see other load: 31 steps in blocks of up to four.
            left = period - 1
            while left:
                count = min(4, left)
                left -= count
                (a, a_update), (b, b_update) = steps(*bare, count), steps(model, optimizer, count)
                bares.append(a / count), ours.append(b / count), ratios.append(b / a)
                bare_updates.append(a_update / count), updates.append(b_update / count)
            gradients(model)
            wait()
            dist.barrier()
            began = time.perf_counter()
            optimizer.step()
            wait()
            round_seconds = time.perf_counter() - began
            optimizer.zero_grad()
            gradients(bare[0])
            wait()
            began = time.perf_counter()
            bare[1].step()
            wait()
            round_seconds -= time.perf_counter() - began
            bare[1].zero_grad()
            staged = vector.to(device)
            wait()
            dist.barrier()
            began = time.perf_counter()
            # As one would do by hand: to the host, reduced, and back.
            host = staged.cpu()
            dist.all_reduce(host)
            host /= workers
            if is_gpu:
                staged.copy_(host)
                wait()
            reduce_seconds = time.perf_counter() - began
            both = torch.tensor([round_seconds, reduce_seconds], dtype=torch.float64)
            dist.all_reduce(both, op=dist.ReduceOp.MAX)
            periods.append((statistics.median(bares), statistics.median(ours), ratios, *both.tolist(),
                            statistics.median(updates) - statistics.median(bare_updates)))
        dist.barrier()
    dist.destroy_process_group()
    if rank != 0:
        return
    store.unlink(missing_ok=True)
    median = lambda at: statistics.median(entry[at] for entry in periods[1:])
    ratio = statistics.median(ratio for entry in periods[1:] for ratio in entry[2])
    print(f"{args.method}, {args.device}: bare step {1e3 * median(0):.3f} ms, in the run {1e3 * median(1):.3f} ms, ratio {ratio:.4f}")
    if not is_gpu:
        print(f"update in the run: {1e6 * median(5):.0f} us more than bare, {100 * median(5) / median(0):.3f} % of a step")
    print(f"round {1e3 * median(3):.2f} ms, all-reduce by Gloo {1e3 * median(4):.2f} ms, ratio {median(3) / median(4):.2f}")


if __name__ == "__main__":
    main()
