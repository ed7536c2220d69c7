#!/usr/bin/env python3
"""Kills and replaces a process every minute, beside a group that is left alone.

Two groups of processes run the same recipe side by side on the same cores. In one a process is killed (SIGKILL) every minute and
replaced at once; the other is left alone. Other load on the machine slows both. At the end it prints what the deaths cost: rounds,
time, steps per living worker and second, bits. Needs only Python and the program.

    oracle/attrition.py --grawa target/release/grawa --minutes 20 -- --data digits --method mgrawa:period=8
    oracle/attrition.py --grawa target/release/grawa --minutes 3 --every 20 --workers 8 --per-process 4 -- --data digits
    oracle/attrition.py --grawa target/release/grawa --minutes 3 --every 20 --program "python oracle/torch_worker.py"

The number of steps for that time is measured first. Options after `--` go to `grawa coordinate`. A program gets the number of steps as
its last word. It may print `begins TIME` when it is about to join: its worker lives from then on, not while Python imports its modules.
"""

import argparse
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path


class Group:
    """A coordinator and its processes, each with some workers."""

    def __init__(self, grawa, place, args, options, steps):
        self.grawa, self.place, self.each = grawa, place, args.per_process
        self.join_options = ["--threads", str(args.threads), "--workers", str(self.each)]
        if args.dir:
            self.join_options += ["--dir", args.dir]
        if args.program:
            self.join_options = ["--", *shlex.split(args.program), str(steps)]
        else:
            options = [*options, "--budget", f"{steps}step"]
        place.parent.mkdir(parents=True, exist_ok=True)
        command = [grawa, "coordinate", "--quiet", "--wire", "plain", "--listen", "127.0.0.1:0", "--page", "none"]
        self.coordinator = subprocess.Popen(
            [*command, "--workers", str(args.workers), "--out", place, *options], stdout=subprocess.PIPE, text=True)
        self.address = self.coordinator.stdout.readline().split(" ")[2]
        self.living, self.lives, self.logs = {}, [], {}
        for _ in range(args.workers // self.each):
            self.join()

    def join(self):
        path = self.place.parent / f"{self.place.name}-worker-{len(self.logs)}.log"
        log = open(path, "w")
        command = [self.grawa, "join", self.address, "--wire", "plain", *self.join_options]
        # `grawa join` and its program end together.
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.living[child], self.logs[child] = time.time(), path

    def kill(self, child):
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self.lives.append(time.time() - self.birth(child))
        del self.living[child]

    def birth(self, child):
        """When a process began to live: when it said so, else when it was started."""
        said = [line.split()[1] for line in open(self.logs[child]) if line.startswith("begins ")]
        return float(said[0]) if said else self.living[child]

    def stop(self):
        for child in [*self.living, self.coordinator]:
            if child.poll() is None and child is not self.coordinator:
                os.killpg(child.pid, signal.SIGKILL)
            elif child.poll() is None:
                child.kill()
            child.wait()

    def rounds(self):
        """Every round: its number, who took part, their steps, and when."""
        found, walls = [], {}
        for line in open(self.place / "journal.jsonl"):
            entry = json.loads(line)
            if "event" not in entry:
                walls[entry["line"]] = entry["wall"]
        for number, line in enumerate(open(self.place / "events.jsonl"), 1):
            event = json.loads(line)
            if event["event"] == "round":
                steps = {share["worker"]: share["steps"] for share in event["workers"]}
                found.append((event["at"]["rounds"], steps, walls.get(number)))
        return found

    def count(self):
        return sum(b'"event":"round"' in line for line in open(self.place / "events.jsonl", "rb"))

    def events(self, kind):
        lines = (json.loads(line) for line in open(self.place / "events.jsonl"))
        return [event for event in lines if event["event"] == kind]

    def is_over(self):
        return self.coordinator.poll() is not None


def rate(group):
    """Recent steps per worker and second."""
    # The time of the last round may not be written yet.
    rounds = [entry for entry in group.rounds() if entry[2] is not None]
    if len(rounds) < 10:
        return None
    rounds = rounds[len(rounds) // 3:]
    steps = sum(max(steps.values()) for _, steps, _ in rounds[1:])
    return steps / (rounds[-1][2] - rounds[0][2])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grawa", required=True)
    parser.add_argument("--out", default="out/attrition", type=Path)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--every", type=float, default=60, help="seconds from one death to the next")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--per-process", type=int, default=1, help="workers of a process")
    parser.add_argument("--threads", type=int, default=1, help="threads of a process")
    parser.add_argument("--program", help="a worker's command, in the place of `grawa join`'s own networks")
    parser.add_argument("--dir", help="the folder of the data set")
    parser.add_argument("--seed", type=int, default=1, help="chooses the processes that are killed")
    parser.add_argument("options", nargs="*", help="options of `grawa coordinate`")
    args = parser.parse_args()
    grawa, chance = os.path.abspath(args.grawa), random.Random(args.seed)

    def pair(name, steps):
        return [Group(grawa, args.out / f"{name}-{kind}", args, args.options, steps)
                for kind in ("left-alone", "dying")]

    print("measuring the speed", flush=True)
    trial = pair("trial", 100_000_000)
    # Long enough for a program that imports much.
    time.sleep(45)
    rates = [rate(group) for group in trial]
    for group in trial:
        group.stop()
    assert None not in rates, "fewer than ten rounds in a trial of 45 s: smaller batches or a shorter period"
    steps = int(min(rates) * 60 * args.minutes / 40 + 1) * 40
    print(f"{rates[0]:.1f} and {rates[1]:.1f} steps per worker and second: {steps} steps each", flush=True)

    began = time.time()
    calm, dying = pair("run", steps)
    deaths, next_death = [], began + args.every
    try:
        while not (calm.is_over() and dying.is_over()):
            time.sleep(0.05)
            if time.time() >= next_death and not dying.is_over():
                next_death += args.every
                living = [child for child in dying.living if child.poll() is None]
                # At the end the processes leave before the coordinator does.
                if living:
                    deaths.append(time.time())
                    dying.kill(chance.choice(living))
                    dying.join()
            if (time.time() - began) % 60 < 0.05:
                now = [group.count() for group in (calm, dying)]
                print(f"{(time.time() - began) / 60:.0f} min: {now[0]} and {now[1]} rounds, {len(deaths)} deaths", flush=True)
    finally:
        calm.stop(), dying.stop()
    report(args, calm, dying, deaths, steps)


def report(args, calm, dying, deaths, steps):
    figures = {}
    for name, group in (("left alone", calm), ("dying", dying)):
        rounds = group.rounds()
        walls = [wall for _, _, wall in rounds]
        gaps = [b - a for a, b in zip(walls, walls[1:])]
        # The last steps, too few for a round, are recorded as one.
        places = [event["at"] for event in group.events("round")]
        assert places[-1]["steps"] == steps, f"{name}: it ended at {places[-1]} of {steps} steps"
        numbers = [at["rounds"] for at in places if at["steps"] % places[0]["steps"] == 0]
        assert numbers == list(range(1, len(numbers) + 1)), f"{name}: rounds are missing or there twice"
        # A program evaluates by itself.
        end = [event["models"][0] for event in group.events("evaluated")][-1:]
        faults = [fault["what"] for fault in group.events("fault")]
        # Seconds that workers were alive.
        alive = group.each * (sum(group.lives) + sum(walls[-1] - group.birth(child) for child in group.living))
        figures[name] = {
            "minutes": (walls[-1] - walls[0]) / 60,
            "rounds": len(rounds),
            "steps of all": sum(sum(steps.values()) for _, steps, _ in rounds),
            "alive": alive,
            "gaps": gaps,
            "walls": walls,
            "end": f", {end[0]['wrong']} of {end[0]['examples']} classified wrong" if end else "",
            "faults": faults,
            "exit": group.coordinator.returncode,
        }
    calm, dying = figures["left alone"], figures["dying"]
    gap = statistics.median(dying["gaps"])
    cost = []
    for death in deaths:
        around = [b - a for a, b in zip(dying["walls"], dying["walls"][1:]) if a <= death <= b]
        cost.extend(around)
    by = lambda figure: figure["steps of all"] / figure["alive"]
    count = lambda text: sum(text in fault for fault in dying["faults"])
    print()
    for name, figure in figures.items():
        print(f"{name}: {figure['minutes']:.1f} min, {figure['rounds']} rounds, {figure['steps of all']} steps, "
              f"exit code {figure['exit']}, {by(figure):.1f} steps per living worker and second, "
              f"median round {1000 * statistics.median(figure['gaps']):.0f} ms, longest {max(figure['gaps']):.2f} s{figure['end']}")
    print(f"deaths: {len(deaths)}; lost: {count('lost its connection: the others')}, late: {count('began without')}, "
          f"silent: {count('was silent for')}, state fetched: {count('fetches the state')}")
    print(f"the round a death fell in: median {statistics.median(cost):.2f} s, longest {max(cost):.2f} s (else {gap:.3f} s)")
    print(f"steps per living worker and second: {100 * by(dying) / by(calm):.1f} % of that of the group left alone")
    print(f"other bits than the others: {count('other bits')}")
    with open(args.out / "figures.json", "w") as file:
        json.dump({"deaths": deaths, **figures}, file)


if __name__ == "__main__":
    sys.exit(main())
