"""All-reduce of a vector between processes by PyTorch's Gloo, the seconds of every round as the slowest process has them.

usage: wire-gloo.py [WORKERS [FLOATS [ROUNDS]]]
"""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank: int, workers: int, floats: int, rounds: int, port: int) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    vector = torch.arange(floats, dtype=torch.float32) % 1000 * 1e-3 + rank
    for round in range(rounds + 1):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(vector)
        vector /= workers
        seconds = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        if rank == 0 and round > 0:
            print(f"{seconds.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    workers, floats, rounds = (int(word) for word in (sys.argv[1:] + ["4", "36536884", "5"][len(sys.argv) - 1 :]))
    mp.spawn(work, args=(workers, floats, rounds, 20000 + os.getpid() % 20000), nprocs=workers)
