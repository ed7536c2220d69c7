#!/usr/bin/env python3
"""What a killed worker costs with grawa, accelerate's LocalSGD and torchft's LocalSGD.

    oracle/kill_beside.py grawa --grawa target/release/grawa
    oracle/kill_beside.py accelerate
    oracle/kill_beside.py torchft

Four processes train a small network in PyTorch on the CPU, one thread each, and average every eight steps. After twenty steps of all,
one is killed (SIGKILL) and started again at once, by hand or by torchrun. Prints how long no survivor made a step, how long until four
train again, and whether the run went on from where it was. Needs accelerate, or torchft with its OpenTelemetry packages.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

WORKERS, PERIOD, STEP = 4, 8, 0.05


def worker(kind, place):
    """Trains until killed; a line for each step: when, and its number in this run."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(256, 64), torch.randint(10, (256,))
    data = torch.utils.data.TensorDataset(x, y)
    log = open(place / f"steps-{os.getpid()}", "w", buffering=1)
    state = {"steps": 0}

    def step():
        F.cross_entropy(model(x), y).backward()
        time.sleep(STEP)
        optimizer.step()
        optimizer.zero_grad()
        state["steps"] += 1

    if kind == "grawa":
        import grawa

        with grawa.join(model, optimizer, f"mean:period={PERIOD}", budget="1000000step", batch=32, examples=len(data),
                        evaluate=None) as run:
            run.start()
            while True:
                step()
                print(time.time(), run.progress.steps, file=log)
    elif kind == "accelerate":
        from accelerate import Accelerator
        from accelerate.local_sgd import LocalSGD

        accelerator = Accelerator(cpu=True)
        model, optimizer = accelerator.prepare(model, optimizer)
        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=PERIOD, enabled=True) as local:
            while True:
                with accelerator.no_sync(model):
                    step()
                local.step()
                print(time.time(), state["steps"], file=log)
    else:
        from torchft import Manager, ProcessGroupGloo
        from torchft.local_sgd import LocalSGD

        store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(store.port), RANK="0", WORLD_SIZE="1")
        group = ProcessGroupGloo(timeout=timedelta(seconds=10))
        load = lambda saved: (model.load_state_dict(saved["model"]), optimizer.load_state_dict(saved["optimizer"]))
        save = lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        manager = Manager(pg=group, min_replica_size=2, load_state_dict=load, state_dict=save, use_async_quorum=False,
                          timeout=timedelta(seconds=10), replica_id=f"worker-{os.getpid()}")
        with LocalSGD(manager, model, optimizer, sync_every=PERIOD):
            while True:
                step()
                print(time.time(), manager.current_step() * PERIOD, file=log)


def steps(place):
    """Of each process: when it made which step of the run."""
    found = {}
    for file in place.glob("steps-*"):
        lines = [line.split() for line in file.read_text().splitlines()]
        found[int(file.name.split("-")[1])] = [(float(line[0]), int(line[1])) for line in lines if len(line) == 2]
    return found


def until(what, is_so, seconds):
    end = time.time() + seconds
    while not is_so():
        if time.time() > end:
            sys.exit(f"not within {seconds} s: {what}\n{(Path(os.environ['KILL_PLACE']) / 'log').read_text()[-1500:]}")
        time.sleep(0.05)


def main():
    if len(sys.argv) > 2 and sys.argv[2] == "worker":
        return worker(sys.argv[1], Path(os.environ["KILL_PLACE"]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["grawa", "accelerate", "torchft"])
    parser.add_argument("--grawa", default="grawa")
    parser.add_argument("--seconds", type=float, default=60, help="how long to wait for the run to go on")
    args = parser.parse_args()
    place = Path(tempfile.mkdtemp())
    os.environ.update(KILL_PLACE=str(place), OMP_NUM_THREADS="1", TORCHFT_LIGHTHOUSE="http://127.0.0.1:29510")
    us, children = [sys.executable, os.path.abspath(__file__), args.kind, "worker"], []

    def begin(*command):
        log = open(place / "log", "a")
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        children.append(child)
        return child

    try:
        if args.kind == "accelerate":
            begin(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORKERS}", "--max-restarts=3", *us[1:])
        elif args.kind == "grawa":
            coordinator = subprocess.Popen(
                [args.grawa, "coordinate", "--quiet", "--wire", "plain", "--listen", "127.0.0.1:0", "--page", "none", "--workers",
                 str(WORKERS), "--out", str(place / "run")], stdout=subprocess.PIPE, text=True)  # fmt: skip
            children.append(coordinator)
            us = [args.grawa, "join", coordinator.stdout.readline().split(" ")[2], "--wire", "plain", "--", *us]
        else:
            begin(str(Path(sys.executable).parent / "torchft_lighthouse"), "--min_replicas", "2", "--quorum_tick_ms", "100",
                  "--join_timeout_ms", "1000", "--bind", "[::]:29510")  # fmt: skip
            time.sleep(1)
        if args.kind != "accelerate":
            for _ in range(WORKERS):
                begin(*us)
        until("all have made twenty steps", lambda: sum(len(own) >= 20 for own in steps(place).values()) >= WORKERS, 120)
        before = steps(place)
        reached = max(own[-1][1] for own in before.values())
        victim = max(before)
        killed = time.time()
        os.kill(victim, signal.SIGKILL)
        if args.kind != "accelerate":
            begin(*us)
        after = lambda: {pid: [entry for entry in own if entry[0] > killed + 0.01] for pid, own in steps(place).items() if pid != victim}
        try:
            until("four train again", lambda: sum(len(own) >= 2 * PERIOD for own in after().values()) >= WORKERS, args.seconds)
        except SystemExit as error:
            print(error)
        time.sleep(2)
        now = after()
        survivors = [own for pid, own in now.items() if pid in before]
        longest = 0.0
        for pid, own in now.items():
            if pid in before:
                times = [killed, *(when for when, _ in own), time.time()]
                longest = max(longest, max(b - a for a, b in zip(times, times[1:])))
        firsts = sorted(own[0][0] - killed for own in now.values() if own)
        print(f"{args.kind}: killed at step {reached}; survivors that made a step since: {sum(map(bool, survivors))} of {WORKERS - 1}, "
              f"longest time without one {longest:.1f} s")
        if len(firsts) >= WORKERS:
            # Of the survivors if there are any: one that starts again may count from 0 until it has the state of the others.
            lowest = min(own[0][1] for own in (survivors if any(survivors) else now.values()) if own)
            print(f"  four train again after {firsts[WORKERS - 1]:.1f} s; the run continues at step {lowest}")
    finally:
        for child in children:
            if child.poll() is None:
                os.killpg(os.getpgid(child.pid), signal.SIGKILL) if os.getpgid(child.pid) == child.pid else child.kill()
            child.wait()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
