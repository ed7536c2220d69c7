#!/usr/bin/env python3
"""What grawa adds to a PyTorch loop: to a step between rounds, and a round beside an all-reduce by Gloo.

    grawa launch --wire plain --workers 4 --page none --out out/overhead -- python oracle/torch_overhead.py [--method mean] [--device cuda]

ResNet-20 at batch 128, random pictures. Every worker trains two copies of the network in turn: one bare, one in the run. All wait for
each other before a round and before an all-reduce of the same number of floats, so that neither counts the waiting; a step is before
each, so that all find the parameters as far from the processor. Gloo does not encrypt: `--wire plain` compares like with like. `by hand`
is an all-reduce with the copies from the parameters to a vector and back. Worker 0 prints medians over all periods but the first; ratios
are medians of the ratios of neighbours in time, which other load hardly moves. The time of a round or an all-reduce is that of the slowest
process, its processor time that of all threads of worker 0. A round is a step of the optimizer that ends with one, less a step of the
optimizer without. On the CPU that one is in the run, too, because what the run adds to every step is printed by itself; on a GPU, and for
processor times, it is a bare one.

Loopback has no bandwidth of a network. As root, four workers with 1 Gbit/s each (all share one queue of four times that):

    unshare --net sh -c 'ip link set lo mtu 1500 up; tc qdisc add dev lo root tbf rate 4gbit burst 256kb latency 100ms; grawa launch …'
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
import grawa.torch_run
from grawa.shared_parameters import SharedParameters

sys.path.insert(0, str(Path(__file__).parents[1] / "crates/grawa-py/examples"))
from cifar10_resnet import ResNet  # noqa: E402

# What a round is made of: the last calls the native part. To one vector and back only where that does not copy the parameters itself.
PARTS = [
    ("whole round", grawa.torch_run.Run, "_hold_round"),
    ("addresses of the parameters", SharedParameters, "places"),
    ("to one vector", SharedParameters, "gather"),
    ("to the parameters", SharedParameters, "scatter"),
    ("session", grawa.Session, "_round"),
]


def time_parts():
    """From now on, the processor time of each part of every round, in all threads."""
    spent = {what: [] for what, _, _ in PARTS}

    def wrapped(call, times):
        def timed(*args, **kwargs):
            began = time.process_time()
            result = call(*args, **kwargs)
            times.append(time.process_time() - began)
            return result

        return timed

    for what, kind, name in PARTS:
        setattr(kind, name, wrapped(getattr(kind, name), spent[what]))
    return spent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="mean", help="without its period")
    parser.add_argument("--period", type=int, default=32)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=4, help="as many as were launched")
    parser.add_argument("--periods", type=int, default=12)
    parser.add_argument("--parts", action="store_true", help="print the processor time of the parts of a round")
    args = parser.parse_args()
    parts = time_parts() if args.parts else {}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device, period, method = torch.device(args.device), args.period, f"{args.method}:period={args.period}"
    is_gpu = device.type == "cuda"
    wait = torch.cuda.synchronize if is_gpu else (lambda: None)
    x, y = torch.randn(args.batch, 3, 32, 32, device=device), torch.randint(10, (args.batch,), device=device)

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

    def timed(act):
        """The seconds of this, begun by all at once, and its processor time in all threads of this process."""
        wait()
        dist.barrier()
        began, work = time.perf_counter(), time.process_time()
        act()
        wait()
        return time.perf_counter() - began, time.process_time() - work

    def all_reduce(of):
        # As one would do by hand: to the host, reduced, and back.
        host = of.cpu()
        dist.all_reduce(host)
        host /= workers
        if is_gpu:
            of.copy_(host)

    @torch.no_grad()
    def average_by_hand(parameters):
        flat = torch.cat([p.flatten() for p in parameters])
        all_reduce(flat)
        torch._foreach_copy_(parameters, [part.view(p.shape) for p, part in zip(parameters, flat.split([p.numel() for p in parameters]))])

    bare, (model, optimizer) = network(), network()
    vector = torch.cat([p.detach().flatten() for p in model.parameters()]).cpu()
    run_id, workers = os.environ["GRAWA_COORDINATOR"].replace(":", "-"), args.workers
    store = Path(tempfile.gettempdir()) / f"grawa-overhead-{run_id}"
    periods, works = [], []
    options = {"budget": f"{period * args.periods}step", "batch": args.batch, "examples": 50_000, "evaluate": None, "patience": 600.0}
    with grawa.join(model, optimizer, method, buffers="keep", **options) as run:
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
            round_seconds, round_work = timed(optimizer.step)
            optimizer.zero_grad()
            gradients(bare[0])
            update_seconds, update_work = timed(bare[1].step)
            bare[1].zero_grad()
            staged = vector.to(device)
            reduce_seconds, reduce_work = timed(lambda: all_reduce(staged))
            steps(*bare, 1)
            hand_seconds, _ = timed(lambda: average_by_hand(list(bare[0].parameters())))
            if not is_gpu:
                update_seconds = statistics.median(updates)
            slowest = torch.tensor([round_seconds - update_seconds, reduce_seconds, hand_seconds], dtype=torch.float64)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            works.append((round_work - update_work, reduce_work))
            periods.append((statistics.median(bares), statistics.median(ours), ratios, *slowest.tolist(),
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
        print(f"update in the run: {1e6 * median(6):.0f} us more than bare, {100 * median(6) / median(0):.3f} % of a step")
    for at, what in (4, "all-reduce by Gloo"), (5, "by hand"):
        ratio = statistics.median(entry[3] / entry[at] for entry in periods[1:])
        print(f"round {1e3 * median(3):.2f} ms, {what} {1e3 * median(at):.2f} ms, ratio {ratio:.2f}")
    work = [1e3 * statistics.median(pair[at] for pair in works[1:]) for at in (0, 1)]
    print(f"processor time of a round {work[0]:.2f} ms, of an all-reduce {work[1]:.2f} ms, ratio {work[0] / work[1]:.2f}")
    for what, times in parts.items():
        if len(times) < args.periods:
            continue
        print(f"processor time, {what}: lower quartile {1e3 * statistics.quantiles(times)[0]:.2f} ms, median {1e3 * statistics.median(times):.2f} ms")


if __name__ == "__main__":
    main()
