#!/usr/bin/env python3
"""What it does to training when vectors travel one round late (--overlap), as halves (train.wire=bf16), or both.

    oracle/travel.py --grawa target/release/grawa --seeds 5 -- --data digits --budget 3000step

For every method, seed and way to travel one run of `grawa launch`; the first way is that of `grawa train`, bit for bit. Prints
a table of the errors at the end (mean ± standard deviation over seeds). What stands after `--` goes to
`grawa launch`. Needs nothing but Python and the program.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WAYS = {"plain": [], "overlap": ["--overlap"], "bf16": ["--set", "train.wire=bf16"],
        "both": ["--overlap", "--set", "train.wire=bf16"]}


def error(grawa, options, method, seed, way):
    """The error of one run at its end, in percent."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        words = [grawa, "launch", "--quiet", "--out", place, "--method", method, "--seed", str(seed), *WAYS[way], *options]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        events = [json.loads(line) for line in open(place / "events.jsonl")]
    model = [event for event in events if event["event"] == "evaluated"][-1]["models"][0]
    return 100 * model["wrong"] / model["examples"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--grawa", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--methods", default="mean:pull=0.5,mgrawa,lgrawa,easgd")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    arguments, options = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1:]
    print("| method | " + " | ".join(WAYS) + " |")
    print("|---|" + "---:|" * len(WAYS))
    for method in arguments.methods.split(","):
        cells = []
        for way in WAYS:
            errors = [error(arguments.grawa, options, method, seed, way) for seed in range(1, arguments.seeds + 1)]
            spread = statistics.stdev(errors) if len(errors) > 1 else 0.0
            cells.append(f"{statistics.mean(errors):.2f} ± {spread:.2f}")
            print(f"{method} {way}: {cells[-1]}", file=sys.stderr, flush=True)
        print(f"| {method} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
