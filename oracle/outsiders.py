#!/usr/bin/env python3
"""Peers without the key, beside a group that trains: connections that say nothing, nonsense, a byte now and then, or begin TLS.

Holds so many connections open to the coordinator and as many to a worker, from sixteen addresses of this machine (127.0.1.x), and opens
each again when it was ended, once a second at most. Prints, without them and with them: the longest and the median time from one round to
the next, the coordinator's and that worker's share of a core, and what the record says of them. Then one more worker joins: it prints
how long that takes. Loopback only; bounded in number and time; needs Linux and Python.

    oracle/outsiders.py --grawa target/release/grawa --wire key
    oracle/outsiders.py --grawa target/release/grawa --wire plain --kind silent
"""

import argparse
import json
import os
import re
import resource
import selectors
import socket
import ssl
import statistics
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

KINDS = ["silent", "nonsense", "drip", "tls"]


def hello():
    """The first record of a TLS handshake, as a client without a certificate sends it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    out = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="grawa.run")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


class Outsiders:
    def __init__(self, address, count, kinds):
        host, port = address.rsplit(":", 1)
        self.to, self.count, self.kinds, self.hello = (host, int(port)), count, kinds, hello()
        self.selector, self.opened, self.last_drip = selectors.DefaultSelector(), 0, 0.0
        self.due = [(0.0, number) for number in range(count)]

    def open(self, number):
        one = socket.socket()
        one.setblocking(False)
        one.bind((f"127.0.1.{1 + number % 16}", 0))
        one.connect_ex(self.to)
        self.opened += 1
        self.selector.register(one, selectors.EVENT_WRITE | selectors.EVENT_READ, (number, time.monotonic()))

    def close(self, one, number, since):
        self.selector.unregister(one)
        one.close()
        self.due.append((since + 1.0, number))

    def turn(self):
        now = time.monotonic()
        later = []
        for due, number in self.due:
            self.open(number) if due <= now else later.append((due, number))
        self.due = later
        drips = now - self.last_drip > 0.1
        for key, events in self.selector.select(0.02):
            one, (number, since) = key.fileobj, key.data
            kind = self.kinds[number % len(self.kinds)]
            try:
                if events & selectors.EVENT_READ and not one.recv(4096):
                    raise OSError
                if events & selectors.EVENT_WRITE:
                    if kind == "nonsense":
                        one.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    if kind == "tls":
                        one.send(self.hello)
                    self.selector.modify(one, selectors.EVENT_READ, key.data)
            except OSError:
                self.close(one, number, since)
        if drips and "drip" in self.kinds:
            self.last_drip = now
            for key in list(self.selector.get_map().values()):
                if self.kinds[key.data[0] % len(self.kinds)] == "drip":
                    try:
                        key.fileobj.send(b"\x14")
                    except OSError:
                        pass


def used(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rounds(place):
    walls = [json.loads(line) for line in open(place / "journal.jsonl")]
    walls = {entry["line"]: entry["wall"] for entry in walls if "event" not in entry}
    events = enumerate(open(place / "events.jsonl"), 1)
    return [walls[number] for number, line in events if '"event":"round"' in line and number in walls]


def faults(place):
    events = [json.loads(line) for line in open(place / "events.jsonl")]
    return [event["what"] for event in events if event["event"] == "fault"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grawa", required=True)
    parser.add_argument("--wire", choices=["plain", "key"], default="key")
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: silent, nonsense and drip, a third each")
    parser.add_argument("--connections", type=int, default=2000, help="to the coordinator, and as many to a worker")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--period", type=int, default=256)
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 3 * args.connections), hard))
    grawa, kinds, children = os.path.abspath(args.grawa), args.kind or KINDS[:3], []
    with tempfile.TemporaryDirectory() as folder:
        line = ["--wire", "plain"]
        if args.wire == "key":
            subprocess.run([grawa, "key", "new", "run.key"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            line = ["--key", "run.key"]

        # The limit of this process is not theirs.
        def usual():
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))

        def start(*words, **more):
            more = {"stdout": subprocess.DEVNULL, **more}
            children.append(subprocess.Popen([grawa, *words, *line], cwd=folder, preexec_fn=usual, **more))
            return children[-1]

        try:
            words = ["coordinate", "--data", "digits", "--method", f"mgrawa:period={args.period}", "--workers", "4"]
            words += ["--budget", "100000000step", "--set", "evaluate.every=end", "--set", "train.batch=16"]
            words += ["--out", "run", "--listen", "127.0.0.1:0", "--page", "127.0.0.1:0", "--quiet"]
            coordinator = start(*words, stdout=subprocess.PIPE, text=True)
            address = coordinator.stdout.readline().split()[2]
            page = re.search(r"http\S+", coordinator.stdout.readline())[0]
            workers = [start("join", address, "--threads", "1") for _ in range(4)]
            place = Path(folder) / "run"
            while not (place / "events.jsonl").exists() or len(rounds(place)) < 5:
                time.sleep(0.2)
            members = json.load(urllib.request.urlopen(page + "status.json"))["members"]
            victim = members[0]["address"]
            listening = subprocess.run(["ss", "-tlnpH"], capture_output=True, text=True).stdout
            pid = re.search(rf"{re.escape(victim)} .*pid=(\d+)", listening)
            pids = [coordinator.pid] + ([int(pid[1])] if pid else [])

            def watch(seconds, outsiders):
                begin, before, wall = time.monotonic(), [used(one) for one in pids], time.time()
                while time.monotonic() < begin + seconds:
                    for one in outsiders:
                        one.turn()
                    if not outsiders:
                        time.sleep(0.1)
                shares = [(used(one) - then) / (time.monotonic() - begin) for one, then in zip(pids, before)]
                walls = [at for at in rounds(place) if at >= wall]
                gaps = [b - a for a, b in zip(walls, walls[1:])]
                shares = ", ".join(f"{name} {100 * share:.1f} %" for name, share in zip(["coordinator", "worker"], shares))
                print(f"{len(gaps)} rounds, longest {max(gaps):.3f} s, median {statistics.median(gaps):.3f} s; {shares} of a core")

            def join(outsiders):
                began = time.monotonic()
                workers.append(start("join", address, "--threads", "1"))
                while time.monotonic() < began + 60:
                    for one in outsiders:
                        one.turn()
                    if '"workers":[0,1,2,3,4]' in open(place / "events.jsonl").read().rsplit('"event":"round"', 1)[-1]:
                        return f"after {time.monotonic() - began:.1f} s"
                return "not within 60 s"

            print(f"{args.wire}, without them: ", end="", flush=True)
            watch(args.seconds, [])
            outsiders = [Outsiders(to, args.connections, kinds) for to in (address, victim)]
            print(f"{args.wire}, {args.connections} to each ({', '.join(kinds)}): ", end="", flush=True)
            watch(args.seconds, outsiders)
            print(f"  one more takes part {join(outsiders)}")
            print(f"  opened {[one.opened for one in outsiders]}, events that are faults: {faults(place)}")
            assert coordinator.poll() is None and all(worker.poll() is None for worker in workers), "someone has ended"
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()


if __name__ == "__main__":
    main()
