#!/usr/bin/env python3
"""Does `overspill sim --see faults` predict a live run? Prints the table of docs/LAB-FAULTS.md.

The program is `access` of this directory: it fills its memory, then touches a hot set and scans the rest at the same
time. `overspill trace record` records it once, then it runs under each policy. The table compares the hard faults that
the pager counts (the median of the repeats) with those that the lab predicts from the recording. Needs a machine that
can page programs.

    cargo build --release --workspace
    bench/see_faults.py target/release/overspill target/release/access [--patterns hot-scan] [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

POLICIES = ["fifo", "aging", "use-once", "2q", "s3-fifo", "lirs"]
TIMEOUT_SECONDS = 300
MARK = 0.10


def output(command: list[str]) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overspill")
    parser.add_argument("access")
    parser.add_argument("--size", default="64M")
    parser.add_argument("--memory", default="16M")
    parser.add_argument("--fine", default="90")
    parser.add_argument("--patterns", default="hot-scan")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    program = [args.access, "--size", args.size, "--patterns", args.patterns]

    with tempfile.TemporaryDirectory() as directory:
        trace, stats = Path(directory) / "access.ovt.zst", Path(directory) / "stats.json"
        output([args.overspill, "trace", "record", "--out", str(trace), "--memory", args.memory, "--fine", args.fine, "--", *program])
        sim = [args.overspill, "sim", "--trace", str(trace), "--see", "faults", "--memory", args.memory, "--format", "json"]
        predicted = {}
        for line in output([*sim, "--policy", *POLICIES]).splitlines():
            row = json.loads(line)
            predicted[row["policy"]] = (row["faults"] - row["cold_faults"], row["soft_faults"])

        live: dict[str, list[tuple[int, int]]] = {policy: [] for policy in POLICIES}
        for _ in range(args.repeats):
            for policy in POLICIES:
                run = [args.overspill, "run", "--memory", args.memory, "--policy", policy, "--stats-file", str(stats)]
                output([*run, "--", *program])
                counters = json.loads(stats.read_text())
                live[policy].append((counters["hard_faults"], counters["soft_faults"]))

    print("| policy | hard faults live, median (least to most) | predicted | difference | soft faults live | predicted |")
    print("| --- | --- | --- | --- | --- | --- |")
    within = 0
    for policy in POLICIES:
        hard = sorted(run[0] for run in live[policy])
        soft = int(statistics.median(run[1] for run in live[policy]))
        middle = int(statistics.median(hard))
        difference = predicted[policy][0] / middle - 1
        within += abs(difference) <= MARK
        print(
            f"| `{policy}` | {middle:,} ({hard[0]:,} to {hard[-1]:,}) | {predicted[policy][0]:,} | {difference:+.1%} "
            f"| {soft:,} | {predicted[policy][1]:,} |"
        )
    print(f"\n{within} of {len(POLICIES)} are within {MARK:.0%}.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
