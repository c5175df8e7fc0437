#!/usr/bin/env python3
"""Regions of files and the kernel's own ways to read a file; `--write` writes a table.

All have the same memory. A region's is its pager's budget. The kernel's ways run in a memory cgroup of that size and
4 MiB more for the program itself. Every file is on the same disk, and leaves the page cache before each run. Contenders
take turns, and the medians of the repeats count. `bench/src/bin/file-access.rs` describes the patterns and checks what
it reads.

    random      pages drawn evenly from a file of four times the memory
    sequential  every word of that file in order
    hot         lookups in an index of half of the memory, while a file of four times the memory is read through once
    sort        a file of twice the memory is sorted in place

Usage: bench/files.py [--memory 96M] [--repeats 3] [--only PATTERN] [--place DIR] [--write]
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

from common import ALLOWANCE_BYTES, MIB, Cgroup, Hierarchy, memory_hierarchy, parse_size, release_directory  # noqa: E402

RESULTS = REPOSITORY / "bench" / "RESULTS-files.md"
PROGRAM_BYTES = 4 * MIB
"""What the program itself may take in the kernel's cgroup."""

CONTENDERS = {
    "random": ("region", "mmap", "mmap:random", "read"),
    "sequential": ("region", "mmap", "mmap:sequential", "read"),
    "hot": (
        "region:use-once",
        "region:fifo",
        "region:aging",
        "region:drop-behind",
        "region:use-once/fifo",
        "region:use-once/drop-behind",
        "mmap",
        "mmap:random",
        "read",
    ),
    "sort": ("region", "mmap"),
}
MARKS = (
    ("random", "region", "mmap:random", 1.0),
    ("random", "region", "mmap", 2.0),
    ("sequential", "region", "mmap", 1.0),
    ("hot", "region:use-once", "mmap", 2.0),
)
"""Pattern, contender, and how many times as fast as which other it should be."""


def run(hierarchy: Hierarchy, how: str, pattern: str, files: dict[str, Path], memory: int) -> dict:
    """One run."""
    own = how.startswith("region")
    limit = memory + (ALLOWANCE_BYTES if own else PROGRAM_BYTES)
    accesses = {"random": random_accesses(how, memory), "sequential": 2}.get(pattern, 0)
    command = [release_directory() / "file-access", how, pattern, files[pattern], memory, accesses]
    command += [files["scanned"]] if pattern == "hot" else []
    if pattern == "sort":
        prepare(files["sort"], 2 * memory)
    with Cgroup(hierarchy, limit) as cgroup:
        done = subprocess.run(
            cgroup.wrap([str(word) for word in command]), check=True, capture_output=True, text=True, timeout=600
        )
    return json.loads(done.stdout)


def random_accesses(how: str, memory: int) -> int:
    """Half as many as there are pages; fewer for the kernel's read-ahead, which takes milliseconds for each."""
    return 4 * memory // 4096 // (16 if how == "mmap" else 2)


def prepare(path: Path, size: int) -> None:
    """Write a file."""
    subprocess.run([str(release_directory() / "file-access"), "region", "prepare", str(path), str(size), "0"], check=True)


def main() -> int:
    """All patterns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memory", default="96M")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", choices=list(CONTENDERS))
    parser.add_argument("--place", type=Path, default=REPOSITORY / "target")
    parser.add_argument("--write", action="store_true", help="write RESULTS-files.md")
    arguments = parser.parse_args()
    hierarchy = memory_hierarchy()
    if isinstance(hierarchy, str):
        sys.exit(hierarchy)
    memory = parse_size(arguments.memory)
    lines = []
    results: dict[tuple[str, str], list[dict]] = {}
    with tempfile.TemporaryDirectory(dir=arguments.place) as place:
        scanned = Path(place) / "scanned"
        index = Path(place) / "index"
        files = {"random": scanned, "sequential": scanned, "scanned": scanned, "hot": index, "sort": Path(place) / "sort"}
        prepare(scanned, 4 * memory)
        prepare(index, memory // 2)
        for pattern, contenders in CONTENDERS.items():
            if arguments.only in (None, pattern):
                for _ in range(arguments.repeats):
                    for how in contenders:
                        result = run(hierarchy, how, pattern, files, memory)
                        results.setdefault((pattern, how), []).append(result)
                        counters = result.pop("counters", {})
                        few = {name: counters[name] for name in ("hard_faults", "soft_faults", "file_pages_in") if counters}
                        print(pattern, how, result, few, flush=True)

    def median(pattern: str, how: str, key: str = "seconds") -> float:
        return statistics.median(result[key] for result in results[pattern, how])

    for pattern, contenders in CONTENDERS.items():
        if (pattern, contenders[0]) not in results:
            continue
        hot = pattern == "hot"
        if pattern == "random":
            for how in contenders:
                for result in results[pattern, how]:
                    result["seconds"] *= 1e6 / random_accesses(how, memory)
        lines += ["", f"## {pattern}", ""]
        unit = "us per access" if pattern == "random" else "s"
        lines += [f"| contender | {unit} | runs |" + (" lookups that had to read | s in lookups |" if hot else "")]
        lines += ["| --- | ---: | --- |" + (" ---: | ---: |" if hot else "")]
        for how in contenders:
            runs = ", ".join(f"{result['seconds']:.2f}" for result in results[pattern, how])
            line = f"| `{how}` | {median(pattern, how):.2f} | {runs} |"
            if hot:
                lookups = results[pattern, how][0]["lookups"]
                line += f" {100 * median(pattern, how, 'misses') / lookups:.1f} % |"
                line += f" {median(pattern, how, 'lookup_seconds'):.2f} |"
            lines.append(line)
    lines += ["", "## Marks", "", "| pattern | contender | as fast as | ratio | mark |", "| --- | --- | --- | ---: | ---: |"]
    for pattern, how, other, mark in MARKS:
        if (pattern, how) in results:
            ratio = median(pattern, other) / median(pattern, how)
            met = "" if ratio >= mark else " (missed)"
            lines.append(f"| {pattern} | `{how}` | `{other}` | {ratio:.2f}x{met} | {mark}x |")
    print("\n".join(lines))
    if arguments.write:
        head = f"""# Regions of files

Written by `bench/files.py --memory {arguments.memory} --repeats {arguments.repeats} --write` on
{datetime.date.today()}, Linux {platform.release()}, {cpu()}. Memory: {memory // MIB} MiB for every contender.
The head of `bench/files.py` describes the patterns. Figures are medians of the runs."""
        RESULTS.write_text("\n".join([head, *lines, ""]))
    return 0


def cpu() -> str:
    """What the machine is."""
    text = Path("/proc/cpuinfo").read_text()
    names = [line.split(":")[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return f"{len(names)} CPUs ({names[0] if names else 'unknown'})"


if __name__ == "__main__":
    sys.exit(main())
