#!/usr/bin/env python3
"""swapoff of a device full of pages, in runs and page by page: prints the table of bench/RESULTS-swapoff.md.

A program under `overspill run` fills memory of several times its budget with random bytes, and waits. Then a second
swap device is added and the first is taken off, so the pages move from device to device. This is measured in runs of
pages, and with operations of one page, one at a time (OVERSPILL_INJECT=swapoff_pages=1). Each repeat measures both
ways, and the best of each counts. At the end the program checks every byte.

Usage: bench/swapoff.py [--size 1G] [--memory 128M] [--repeats 2] [--place DIR] [--bin DIR]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

from common import MIB, parse_size  # noqa: E402  (found through the path above)

TIME_MARK = 15.0
"""Page by page should take at least this many times as long as in runs."""

RUN_MARK = 32.0
"""The least mean number of pages per read in runs."""

PROGRAM = """
import hashlib, os, sys
blocks = [bytearray(os.urandom(1 << 20)) for _ in range(int(sys.argv[1]))]
sums = [hashlib.blake2b(b, digest_size=8).digest() for b in blocks]
print("ready", flush=True)
sys.stdin.readline()
print("right" if all(hashlib.blake2b(b, digest_size=8).digest() == s for b, s in zip(blocks, sums)) else "WRONG")
"""

DONE = re.compile(r": (?P<size>[\d.]+ \w+) in (?P<time>.+?); (?P<moved>\S+ \w+) to other devices, (?P<memory>\S+ \w+) into memory; "
                  r"(?P<reads>[\d,]+) reads of (?P<run>[\d.]+) pages")


def seconds(text: str) -> float:
    """`1.234 s`, `4 min 05 s`."""
    if parts := re.fullmatch(r"(\d+) min (\d+) s", text):
        return int(parts[1]) * 60.0 + int(parts[2])
    return float(text.removesuffix(" s"))


def swapoff(binary: Path, place: Path, size: int, memory: str, pages: int) -> dict[str, float | str]:
    """One program, one swapoff; at most `pages` per operation, 0 for no limit."""
    first, second = place / "first", place / "second"
    for directory in (first, second):
        directory.mkdir(exist_ok=True)
    name = f"bench-swapoff-{os.getpid()}"
    environment = os.environ | ({"OVERSPILL_INJECT": f"swapoff_pages={pages}"} if pages else {})
    command = [binary, "run", "--name", name, "--memory", memory, "--swap", first]
    command += ["--", sys.executable, "-c", PROGRAM, str(size // MIB)]

    def ask(*words: str | Path) -> str:
        return subprocess.run([binary, *words], check=True, capture_output=True, text=True, timeout=1800).stdout

    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdin and program.stdout
            if program.stdout.readline() != "ready\n":
                raise SystemExit("the program did not come up")
            before = json.loads(ask("stat", name, "--json"))
            ask("swapon", name, second)
            line = ask("swapoff", name, first)
            after = json.loads(ask("stat", name, "--json"))
            if program.communicate("go\n", timeout=900)[0] != "right\n":
                raise SystemExit("the program found a wrong byte")
        finally:
            program.kill()
    if not (done := DONE.search(line)):
        raise SystemExit(f"not understood: {line}")
    return {
        "seconds": seconds(done["time"]),
        "size": done["size"],
        "run": float(done["run"]),
        "memory": done["memory"],
        "peak": max(0, after["memory_peak_bytes"] - max(before["memory_peak_bytes"], after["memory_limit_bytes"])) / MIB,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", default="1G")
    parser.add_argument("--memory", default="128M")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--place", type=Path, default=REPOSITORY / "bench")
    parser.add_argument("--bin", type=Path, default=REPOSITORY / "target/release")
    arguments = parser.parse_args()
    binary = (arguments.bin / "overspill").resolve()
    best: dict[int, dict[str, float | str]] = {}
    with tempfile.TemporaryDirectory(prefix="work-swapoff-", dir=arguments.place) as work:
        for repeat in range(arguments.repeats):
            for pages in (0, 1):
                result = swapoff(binary, Path(work), parse_size(arguments.size), arguments.memory, pages)
                print(f"repeat {repeat + 1}, {'page by page' if pages else 'in runs'}: {result}", file=sys.stderr, flush=True)
                if pages not in best or result["seconds"] < best[pages]["seconds"]:
                    best[pages] = result
    runs, single = best[0], best[1]
    ratio = float(single["seconds"]) / float(runs["seconds"])
    load = ", ".join(f"{n:.1f}" for n in os.getloadavg())
    print(f"""# swapoff in runs

`bench/swapoff.py --size {arguments.size} --memory {arguments.memory} --repeats {arguments.repeats}` on {datetime.date.today()}, Linux \
{platform.release()}, {os.cpu_count()} CPUs, load {load} at the end. Best of {arguments.repeats}, taken in turns. Device to device, \
two files on one disk, contents encrypted; the program found every byte right afterwards.

| swapoff | moved | seconds | pages per read | into memory | peak above the budget |
| --- | ---: | ---: | ---: | ---: | ---: |
| in runs | {runs["size"]} | {runs["seconds"]:.2f} | {runs["run"]:.1f} | {runs["memory"]} | {runs["peak"]:.1f} MiB |
| page by page | {single["size"]} | {single["seconds"]:.2f} | {single["run"]:.1f} | {single["memory"]} | {single["peak"]:.1f} MiB |

| mark | wanted | measured | |
| --- | ---: | ---: | --- |
| page by page takes | >= {TIME_MARK:.0f}x | {ratio:.1f}x | {"met" if ratio >= TIME_MARK else "missed"} |
| pages per read | >= {RUN_MARK:.0f} | {runs["run"]:.1f} | {"met" if float(runs["run"]) >= RUN_MARK else "missed"} |""")
    return 0


if __name__ == "__main__":
    sys.exit(main())
