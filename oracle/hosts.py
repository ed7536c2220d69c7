#!/usr/bin/env python3
"""Workers on machines of their own, as network namespaces: cables are pulled and put back, and made slow.

Every worker and the coordinator has a network namespace, an address and a cable (veth) to one bridge, of so many Mbit/s (tc tbf). In the
middle of the run a worker's cable is pulled for six seconds, the coordinator's for six, one cable is made ten times as slow for ten
seconds, and a worker is killed and replaced. Needs root, iproute2, a kernel with bridge, veth and tbf; and Python. Leaves nothing behind.

    sudo oracle/hosts.py --grawa target/release/grawa -- --data digits --method mgrawa:period=32 --budget 12000step
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

BRIDGE = "grawa-hosts"


def do(*words, check=True):
    subprocess.run([str(word) for word in words], check=check, stderr=None if check else subprocess.DEVNULL)


class Hosts:
    """Namespaces on a bridge; number 0 is the coordinator's."""

    def __init__(self, count, mbit):
        self.count, self.mbit = count, mbit
        do("ip", "link", "add", BRIDGE, "type", "bridge")
        do("ip", "link", "set", BRIDGE, "up")
        for host in range(count):
            do("ip", "netns", "add", f"grawa{host}")
            do("ip", "link", "add", f"grawa-c{host}", "type", "veth", "peer", "name", "eth0", "netns", f"grawa{host}")
            do("ip", "link", "set", f"grawa-c{host}", "master", BRIDGE, "up")
            do("ip", "-n", f"grawa{host}", "addr", "add", f"10.77.0.{10 + host}/24", "dev", "eth0")
            do("ip", "-n", f"grawa{host}", "link", "set", "eth0", "up")
            do("ip", "-n", f"grawa{host}", "link", "set", "lo", "up")
            self.rate(host, mbit)

    def rate(self, host, mbit):
        limit = ["root", "tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "100ms"]
        do("tc", "qdisc", "replace", "dev", f"grawa-c{host}", *limit)
        do("ip", "netns", "exec", f"grawa{host}", "tc", "qdisc", "replace", "dev", "eth0", *limit)

    def pull(self, host):
        do("ip", "link", "set", f"grawa-c{host}", "down")

    def put_back(self, host):
        do("ip", "link", "set", f"grawa-c{host}", "up")

    def start(self, host, words, **more):
        return subprocess.Popen(["ip", "netns", "exec", f"grawa{host}", *map(str, words)], **more)

    def remove(self):
        for host in range(self.count):
            do("ip", "netns", "del", f"grawa{host}", check=False)
            do("ip", "link", "del", f"grawa-c{host}", check=False)
        do("ip", "link", "del", BRIDGE, check=False)


def read(place, kind):
    """Events of a kind, with when they were written."""
    walls = {}
    for line in open(place / "journal.jsonl"):
        entry = json.loads(line)
        if "event" not in entry:
            walls[entry["line"]] = entry["wall"]
    lines = [(json.loads(line), walls.get(number)) for number, line in enumerate(open(place / "events.jsonl"), 1)]
    return [(event, wall) for event, wall in lines if event["event"] == kind]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grawa", required=True)
    parser.add_argument("--out", default="out/hosts", type=Path)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--mbit", type=int, default=100)
    parser.add_argument("options", nargs="*", help="options of `grawa coordinate`")
    args = parser.parse_args()
    grawa, children = os.path.abspath(args.grawa), []
    # Whoever ends this ends the namespaces with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    args.out.mkdir(parents=True)
    key = args.out / "run.key"
    do(grawa, "key", "new", key)
    hosts = Hosts(args.workers + 1, args.mbit)
    try:
        words = [grawa, "coordinate", "--quiet", "--key", key, "--listen", "10.77.0.10:7117", "--page", "none"]
        words += ["--workers", args.workers, "--out", args.out / "run", *args.options]
        coordinator = hosts.start(0, words, stdout=subprocess.DEVNULL)
        children.append(coordinator)
        log = open(args.out / "workers.log", "w")

        def join(host):
            words = [grawa, "join", "10.77.0.10:7117", "--key", key, "--threads", 1]
            children.append(hosts.start(host, words, stdout=log, stderr=log))
            return children[-1]

        workers = [join(host + 1) for host in range(args.workers)]
        moments = []

        def note(what):
            rounds = read(args.out / "run", "round")
            moments.append((time.time(), what))
            print(f"round {rounds[-1][0]['at']['rounds'] if rounds else 0}: {what}", flush=True)

        time.sleep(8)
        note("the cable of a worker is pulled")
        hosts.pull(2)
        time.sleep(6)
        hosts.put_back(2)
        note("and put back")
        time.sleep(8)
        note("the cable of the coordinator is pulled")
        hosts.pull(0)
        time.sleep(6)
        hosts.put_back(0)
        note("and put back")
        time.sleep(8)
        note("the cable of a worker is ten times as slow")
        hosts.rate(3, args.mbit / 10)
        time.sleep(10)
        hosts.rate(3, args.mbit)
        note("and as quick as before")
        time.sleep(4)
        note("a worker is killed and replaced")
        workers[0].kill()
        join(1)
        time.sleep(8)
        note("all is well again")
        coordinator.wait()
        time.sleep(1)
        report(args.out / "run", coordinator.returncode, moments)
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()
        hosts.remove()


def report(place, code, moments):
    rounds = read(place, "round")
    assert [event["at"]["rounds"] for event, _ in rounds] == list(range(1, len(rounds) + 1)), "rounds are missing"
    gaps = [(b[1] - a[1], a[1]) for a, b in zip(rounds, rounds[1:])]
    median = statistics.median(gap for gap, _ in gaps)
    print(f"\nexit code {code}, {len(rounds)} rounds, each once, median {1000 * median:.0f} ms")
    for (begin, what), (end, _) in zip(moments, moments[1:] + [(float("inf"), "")]):
        inside = [gap for gap, wall in gaps if begin - median <= wall < end]
        sizes = {len(event["workers"]) for event, wall in rounds if begin <= wall < end}
        print(f"{what}: {len(inside)} rounds of {'/'.join(map(str, sorted(sizes)))} workers, longest {max(inside, default=0):.2f} s")
    for fault, _ in read(place, "fault"):
        print(f"  step {fault['at']['steps']}: {fault['what']}")


if __name__ == "__main__":
    sys.exit(main())
