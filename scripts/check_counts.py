#!/usr/bin/env python3
"""Does `overspill sim` count what the table of reference counts says? Integer for integer, every trace, policy and size of it.

The traces and the table, `reference_misses.csv`, are in `../shared/traces` next to the repository, or where `OVERSPILL_TRACES` or
`--traces` says. The count of an `exact` row must be equal. The other rows are published variants of what a paper leaves open: for
them the script prints how many are equal. Exit status 1 if an exact row differs.

    cargo build --release -p overspill-cli
    scripts/check_counts.py [OVERSPILL] [--traces DIRECTORY] [--tell]
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = "reference_misses.csv"
TIMEOUT_SECONDS = 1800


def counted(overspill: Path, trace: Path, policies: list[str], sizes: list[int]) -> dict[tuple[str, int], dict]:
    command = [str(overspill), "sim", "--trace", str(trace), "--format", "json"]
    command += ["--policy", *policies, "--memory", ",".join(map(str, sizes))]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=TIMEOUT_SECONDS)
    if done.returncode != 0:
        sys.exit(f"{trace.name}: overspill sim ended with status {done.returncode}: {done.stderr.strip()}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return {(row["policy"], row["memory_pages"]): row for row in rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overspill", nargs="?", type=Path, default=ROOT / "target/release/overspill")
    beside = os.environ.get("OVERSPILL_TRACES", ROOT.parent / "shared/traces")
    parser.add_argument("--traces", type=Path, default=Path(beside), help="the directory of the traces and their table")
    parser.add_argument("--tell", action="store_true", help="print each row that differs and need not be equal")
    options = parser.parse_args()
    if not (options.traces / TABLE).is_file():
        sys.exit(f"{options.traces} has no {TABLE}; --traces or OVERSPILL_TRACES says where the traces are")
    if not options.overspill.is_file():
        sys.exit(f"{options.overspill} is not there; build it with: cargo build --release -p overspill-cli")

    by_trace: dict[str, list[dict]] = defaultdict(list)
    with open(options.traces / TABLE, newline="") as table:
        for row in csv.DictReader(table):
            by_trace[row["trace_file"]].append(row)
    sums: dict[tuple[bool, str, str], list[int]] = defaultdict(lambda: [0, 0])
    wrong = 0
    for name, rows in by_trace.items():
        policies = list(dict.fromkeys(row["policy"] for row in rows))
        sizes = sorted({int(row["memory_pages"]) for row in rows})
        counts = counted(options.overspill, options.traces / name, policies, sizes)
        for row in rows:
            exact = row["kind"] == "exact"
            count = counts[row["policy"], int(row["memory_pages"])]
            same = count["faults"] == int(row["faults"]) and count["references"] == int(row["references"])
            total = sums[exact, row["policy"], row["origin"]]
            total[0] += same
            total[1] += 1
            wrong += exact and not same
            if not same and (exact or options.tell):
                print(f"{name}, {row['policy']}, {row['memory_pages']} pages: {count['faults']} faults of {count['references']} "
                      f"references, {row['faults']} of {row['references']} in the table ({row['origin']})")
        print(f"{name}: {len(rows)} rows compared", file=sys.stderr)
    for (exact, policy, origin), (same, of) in sorted(sums.items(), key=lambda item: (not item[0][0], item[0][1:])):
        print(f"{policy:24} {same:4} of {of:4} equal  ({'exact' if exact else f'published version: {origin}'})")
    exact_rows = [total for (exact, *_), total in sums.items() if exact]
    print(f"{sum(total[0] for total in exact_rows)} of {sum(total[1] for total in exact_rows)} exact rows are equal")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
