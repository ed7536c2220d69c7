#!/usr/bin/env python3
"""One worker killed every minute and replaced, beside a group to which nothing happens.

Two groups of processes run the same recipe side by side on the same cores: from one of them a worker is killed (SIGKILL) every so
many seconds and replaced at once, the other is left alone. So what the machine does meanwhile befalls both. At the end it says what the
deaths cost: rounds, time, throughput of the living, bits. Needs nothing but Python and the program.

    oracle/attrition.py --grawa target/release/grawa --minutes 20 -- --data digits --method mgrawa:period=8

How many steps last so long is measured first. What stands after `--` goes to `grawa coordinate`.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path


class Group:
    """A coordinator and its workers."""

    def __init__(self, grawa, place, workers, options, threads, join_options):
        self.grawa, self.place = grawa, place
        self.join_words = ["--threads", str(threads), *join_options]
        place.parent.mkdir(parents=True, exist_ok=True)
        words = [grawa, "coordinate", "--quiet", "--wire", "plain", "--listen", "127.0.0.1:0", "--page", "none"]
        self.coordinator = subprocess.Popen(
            [*words, "--workers", str(workers), "--out", place, *options], stdout=subprocess.PIPE, text=True)
        self.address = self.coordinator.stdout.readline().split(" ")[2]
        self.living, self.lives = {}, []
        for _ in range(workers):
            self.join()

    def join(self):
        log = open(self.place.parent / f"{self.place.name}-workers.log", "a")
        words = [self.grawa, "join", self.address, "--wire", "plain", *self.join_words]
        child = subprocess.Popen(words, stdout=log, stderr=log)
        self.living[child] = time.time()

    def kill(self, child):
        child.kill()
        child.wait()
        self.lives.append(time.time() - self.living.pop(child))

    def stop(self):
        for child in [*self.living, self.coordinator]:
            if child.poll() is None:
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
    """Steps a worker and second of late."""
    rounds = group.rounds()
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
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dir", help="where the data set lies")
    parser.add_argument("--seed", type=int, default=1, help="who dies")
    parser.add_argument("options", nargs="*", help="options of `grawa coordinate`")
    args = parser.parse_args()
    grawa, chance = os.path.abspath(args.grawa), random.Random(args.seed)
    join_options = ["--dir", args.dir] if args.dir else []

    def pair(name, steps):
        options = [*args.options, "--budget", f"{steps}step"]
        return [Group(grawa, args.out / f"{name}-{kind}", args.workers, options, args.threads, join_options)
                for kind in ("left-alone", "dying")]

    print("measuring how quick it is", flush=True)
    trial = pair("trial", 100_000_000)
    time.sleep(min(45, 6 * args.minutes))
    rates = [rate(group) for group in trial]
    for group in trial:
        group.stop()
    steps = int(min(rates) * 60 * args.minutes / 1000 + 1) * 1000
    print(f"{rates[0]:.0f} and {rates[1]:.0f} steps a worker and second: {steps} steps each", flush=True)

    began = time.time()
    calm, dying = pair("run", steps)
    deaths, next_death = [], began + args.every
    try:
        while not (calm.is_over() and dying.is_over()):
            time.sleep(0.05)
            if time.time() >= next_death and not dying.is_over():
                next_death += args.every
                child = chance.choice([child for child in dying.living if child.poll() is None])
                deaths.append(time.time())
                dying.kill(child)
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
        # Steps at the end that are too few for a round are told of as one.
        places = [event["at"] for event in group.events("round")]
        assert places[-1]["steps"] == steps, f"{name}: it ended at {places[-1]} of {steps} steps"
        numbers = [at["rounds"] for at in places if at["steps"] % places[0]["steps"] == 0]
        assert numbers == list(range(1, len(numbers) + 1)), f"{name}: rounds are missing or there twice"
        end = group.events("evaluated")[-1]["models"][0]
        faults = [fault["what"] for fault in group.events("fault")]
        # Steps by everyone, for every second that someone who could take them was alive.
        alive = sum(group.lives) + sum(walls[-1] - born for born in group.living.values())
        figures[name] = {
            "minutes": (walls[-1] - walls[0]) / 60,
            "rounds": len(rounds),
            "steps of all": sum(sum(steps.values()) for _, steps, _ in rounds),
            "alive": alive,
            "gaps": gaps,
            "walls": walls,
            "wrong": end["wrong"],
            "of": end["examples"],
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
    count = lambda words: sum(words in fault for fault in dying["faults"])
    print()
    for name, figure in figures.items():
        print(f"{name}: {figure['minutes']:.1f} min, {figure['rounds']} rounds, {figure['steps of all']} steps, "
              f"exit code {figure['exit']}, {by(figure):.1f} steps a living worker and second, "
              f"median round {1000 * statistics.median(figure['gaps']):.0f} ms, longest {max(figure['gaps']):.2f} s, "
              f"{figure['wrong']} of {figure['of']} told wrong")
    print(f"deaths: {len(deaths)}; lost: {count('lost its connection: the others')}, late: {count('went on without')}, "
          f"silent: {count('sign of life')}, taken over: {count('takes over what')}")
    print(f"the round a death fell in: median {statistics.median(cost):.2f} s, longest {max(cost):.2f} s (else {gap:.3f} s)")
    print(f"throughput of the living: {100 * by(dying) / by(calm):.1f} % of that of the group left alone")
    print(f"other bits than the others: {count('other bits')}")
    with open(args.out / "figures.json", "w") as file:
        json.dump({"deaths": deaths, **figures}, file)


if __name__ == "__main__":
    sys.exit(main())
