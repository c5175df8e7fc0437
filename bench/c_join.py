#!/usr/bin/env python3
"""The hash join of the C examples with liboverspill, with the kernel's swap, and with all the memory that it needs.

    sudo bench/c_join.py [--size 1024] [--memory 256] [--repeats 3] [--write]

`crates/capi/examples/hash_join.c` is built twice: with liboverspill, and with `plain/overspill.h`, where its regions are
anonymous mappings. Sizes are in MiB. Contenders take turns. The kernel's swap is a file in `bench/work` for one memory
cgroup of that size and 4 MiB more for the program; liboverspill runs in a cgroup of its budget and what the other
measurements allow besides, without kernel swap. Its swap file is in the same folder. Each run checks its result.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

from common import ALLOWANCE_BYTES, MIB, Cgroup, Hierarchy, memory_hierarchy  # noqa: E402
from kernel_swap import KernelSwap  # noqa: E402

SOURCE = REPOSITORY / "crates" / "capi" / "examples" / "hash_join.c"
RESULTS = REPOSITORY / "bench" / "RESULTS-c.md"
CONTENDERS = ("liboverspill", "kernel swap", "all the memory")
PROGRAM_BYTES = 4 * MIB
TIMEOUT_SECONDS = 600


def build(place: Path) -> dict[str, Path]:
    """Both programs."""
    subprocess.run(["make", "-s", "install-c", f"PREFIX={place}"], cwd=REPOSITORY, check=True)
    cc = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-o"]
    own, plain = place / "own", place / "plain"
    link = [f"-I{place}/include", f"-L{place}/lib", "-loverspill", f"-Wl,-rpath,{place}/lib"]
    subprocess.run([*cc, own, SOURCE, *link], check=True)
    subprocess.run([*cc, plain, f"-I{REPOSITORY / 'bench' / 'plain'}", SOURCE], check=True)
    return {"liboverspill": own, "kernel swap": plain, "all the memory": plain}


def run(hierarchy: Hierarchy, how: str, program: Path, options: argparse.Namespace, work: Path) -> dict[str, float]:
    """One run: seconds, and megabytes moved to swap and back."""
    command = [program, str(options.size), str(options.memory)]
    memory = options.memory * MIB + (ALLOWANCE_BYTES if how == "liboverspill" else PROGRAM_BYTES)
    limit = 2 * options.size * MIB if how == "all the memory" else memory
    with Cgroup(hierarchy, limit, kernel_swap=how == "kernel swap") as cgroup:
        before, start = swapped(), time.monotonic()
        done = subprocess.run(
            cgroup.wrap(command), check=True, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env={**os.environ, "TMPDIR": str(work)}
        )
        seconds = time.monotonic() - start
        out, back = (now - then for now, then in zip(swapped(), before, strict=True))
    if not done.stdout.endswith("the result is right\n"):
        sys.exit(f"{how}: {done.stdout}{done.stderr}")
    if how == "liboverspill":
        out, back = map(int, re.findall(r"(\d+) pages written, (\d+) read", done.stdout)[0])
    parts = [float(part) for part in re.findall(r" in ([\d.]+) s", done.stdout)]
    return {"seconds": seconds, "sort": parts[0], "join": parts[1], "out": out * 4096 / 1e6, "in": back * 4096 / 1e6}


def swapped() -> tuple[int, int]:
    """Pages that the kernel has written to swap and read from there."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counts["pswpout"]), int(counts["pswpin"])


def main() -> int:
    """All contenders, by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--memory", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write RESULTS-c.md")
    options = parser.parse_args()
    hierarchy = memory_hierarchy()
    if isinstance(hierarchy, str):
        sys.exit(hierarchy)
    work = REPOSITORY / "bench" / "work"
    work.mkdir(exist_ok=True)
    results: dict[str, list[dict[str, float]]] = {how: [] for how in CONTENDERS}
    with tempfile.TemporaryDirectory() as place:
        programs = build(Path(place))
        for _ in range(options.repeats):
            for how in CONTENDERS:
                with KernelSwap(work) if how == "kernel swap" else contextlib.nullcontext():
                    results[how].append(run(hierarchy, how, programs[how], options, work))
                print(how, {name: round(value, 2) for name, value in results[how][-1].items()}, flush=True)
    work.rmdir()

    def median(how: str, what: str = "seconds") -> float:
        return statistics.median(result[what] for result in results[how])

    lines = ["| contender | s | runs | sorting, s | joining, s | MB written | MB read | speed |", "| --- | ---: | --- " + "| ---: " * 5 + "|"]
    for how in CONTENDERS:
        runs = ", ".join(f"{result['seconds']:.1f}" for result in results[how])
        parts = " | ".join(f"{median(how, what):.1f}" for what in ("sort", "join"))
        moved = " | ".join(f"{median(how, what):,.0f}" for what in ("out", "in"))
        speed = median("kernel swap") / median(how)
        lines.append(f"| {how} | {median(how):.1f} | {runs} | {parts} | {moved} | {speed:.2f}x |")
    print("\n".join(lines))
    if options.write:
        names = [line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
        head = f"""# The C library: a hash join of four times its memory

Written by `bench/c_join.py --size {options.size} --memory {options.memory} --repeats {options.repeats} --write` on {datetime.date.today()}, Linux
{platform.release()}, {len(names)} virtual CPUs ({names[0]}). Two tables of {options.size} MiB together in {options.memory} MiB of memory, by turns; medians of the
runs. Speeds are compared with the kernel's swap on the same disk. The head of `bench/c_join.py` says how each runs."""
        RESULTS.write_text("\n".join([head, "", *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
