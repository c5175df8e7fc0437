#!/usr/bin/env python3
"""Random touches of pages in compressed memory: a Region in-thread, `overspill run`, and the kernel's zram in a memory cgroup.

    sudo bench/compressed.py [--size 256] [--memory 96] [--touches 100000] [--repeats 3] [--algo lz4]
                             [--binaries target/release] [--out FILE]

All three compress with --algo, lz4 or zstd (zram at its own level), and get the same memory for mapped and compressed
pages together. The kernel does not charge zram's own memory to a cgroup: so the cgroup's limit is the budget less what
zram needs for these pages, which a first run measures. Each repeat runs every contender once, in turn. The kernel's side
needs root; zram and its swap are removed at the end, also after an error. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

import common  # noqa: E402  (found through the path above)
from common import MIB, Failure  # noqa: E402
from kernel_swap import on_zram  # noqa: E402

TIMEOUT_SECONDS = 300


def run(command: list[str | Path]) -> dict[str, float]:
    """One run: nanoseconds per touch by pattern."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    if done.returncode:
        raise Failure(f"{command}: exit status {done.returncode}: {done.stderr.strip()}")
    return {line["pattern"]: line["ns_per_access"] for line in map(json.loads, done.stdout.splitlines())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="MiB that are touched")
    parser.add_argument("--memory", type=int, default=160, help="MiB for mapped and compressed pages together")
    parser.add_argument("--touches", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--algo", default="lz4", help="lz4, or zstd")
    parser.add_argument("--binaries", type=Path, default=REPOSITORY / "target" / "release")
    parser.add_argument("--out", type=Path, help="the table goes there too")
    options = parser.parse_args()
    access, overspill = options.binaries / "compressed-access", options.binaries / "overspill"
    arguments = ["--size", str(options.size), "--touches", str(options.touches)]
    hierarchy = common.memory_hierarchy()
    samples: dict[str, list[dict[str, float]]] = {}
    why_not, taken = "", 0
    with tempfile.TemporaryDirectory(prefix="overspill-compressed-") as swap:
        pool = f"compressed:size={options.size}M,algo={options.algo}"
        own = [*arguments, "--memory", str(options.memory), "--pool", pool, "--swap", swap]
        try:
            with on_zram(hierarchy, options.memory * MIB // 2, options.size * MIB * 2, options.algo) as (zram, cgroup):
                run(cgroup.wrap([access, "plain", "--size", str(options.size), "--touches", "1"]))
                taken = zram.memory_peak()
        except Failure as failure:
            why_not = str(failure)
        for repeat in range(options.repeats):
            print(f"repeat {repeat + 1} of {options.repeats}", file=sys.stderr)
            samples.setdefault("Region, in-thread", []).append(run([access, "region", *own]))
            under = [overspill, "run", "--memory", f"{options.memory}M", "--swap", pool, "--swap", swap, "--"]
            samples.setdefault("`overspill run`", []).append(run([*under, access, "plain", *arguments]))
            if not why_not:
                limit = options.memory * MIB - taken
                with on_zram(hierarchy, limit, options.size * MIB * 2, options.algo) as (_, cgroup):
                    samples.setdefault("kernel, zram", []).append(run(cgroup.wrap([access, "plain", *arguments])))
    patterns = ["fill", "random", "update"]
    lines = [
        f"{options.algo}, {options.size} MiB over {options.memory} MiB, {options.touches} touches, median of {options.repeats}; "
        f"zram took {taken / MIB:.0f} MiB, which its cgroup had less.",
        "",
        "| microseconds per touch | " + " | ".join(patterns) + " |",
        "| --- |" + " --- |" * len(patterns),
    ]
    middle = {
        name: {p: statistics.median(sample[p] for sample in all_) / 1000 for p in patterns} for name, all_ in samples.items()
    }
    base = middle.get("kernel, zram")
    for name, times in middle.items():
        cells = [f"{times[p]:.2f}" + (f" ({base[p] / times[p]:.2f}x)" if base and base is not times else "") for p in patterns]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if why_not:
        lines += ["", f"The kernel's side was not measured: {why_not}."]
    text = "\n".join(lines) + "\n"
    print(text, end="")
    if options.out:
        options.out.write_text(text)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failure as failure:
        sys.exit(f"compressed.py: {failure}")
