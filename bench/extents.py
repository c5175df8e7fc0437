#!/usr/bin/env python3
"""A device of 84,656 extents and one of 2, on the same file with real I/O: writes bench/RESULTS-extents.md.

`crates/linux/examples/device_speed.rs` takes slots, finds their places by the device's extents, and reads and writes with
io_uring and direct I/O. Both devices are the same file, divided into extents in two ways, so only the map differs. Half of
the requests are page-outs, half page-ins; each has the length of one extent of the device of 84,656. The devices take turns
in one process, and their medians are compared.

Usage: bench/extents.py [--pages 16] [--seconds 2] [--repeats 5] [--place DIR] [--bin FILE] [--write]
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

from common import MIB, release_directory  # noqa: E402  (found through the path above)

FEW, MANY = 2, 84656
"""The numbers in the report that led to the kernel's tree of extents."""
TASKS = (1, 4, 8)
DEPTH = 16
WITHIN, SHARE = 0.05, 0.02
"""The largest difference of the throughputs, and the largest share of the processor time for the map."""


def device(program: Path, place: str, pages: int, tasks: int, seconds: float, repeats: int) -> dict[int, list[list[float]]]:
    """For each device and repeat: bytes per second, and the map's share of the tasks' time and of the processor time."""
    words = [program, place, MANY * pages * 4096, "both", pages, tasks, max(DEPTH // tasks, 1), seconds]
    words += [FEW, MANY] * repeats
    done = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)
    results: dict[int, list[list[float]]] = {FEW: [], MANY: []}
    for line in done.stdout.splitlines():
        extents, *figures = line.split()
        results[int(extents)].append([float(figure) for figure in figures])
    return results


def main() -> int:
    """All numbers of tasks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pages", type=int, default=16, help="pages of a request, and of an extent of the many")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--place", type=Path, default=REPOSITORY / "bench")
    parser.add_argument("--bin", type=Path, default=release_directory() / "examples" / "device_speed")
    parser.add_argument("--write", action="store_true", help="write RESULTS-extents.md")
    arguments = parser.parse_args()
    if not arguments.bin.exists():
        sys.exit(f"{arguments.bin} is missing: cargo build --release -p overspill-linux --example device_speed")
    before = os.getloadavg()[0]
    rows, ratios, shares = [], [], []
    with tempfile.TemporaryDirectory(dir=arguments.place) as place:
        for tasks in TASKS:
            results = device(arguments.bin, place, arguments.pages, tasks, arguments.seconds, arguments.repeats)
            speed = {extents: statistics.median(run[0] for run in runs) for extents, runs in results.items()}
            ratios.append(speed[MANY] / speed[FEW])
            shares.append(statistics.median(run[2] for run in results[MANY]) / 1e6)
            for extents, runs in results.items():
                speeds = [run[0] / MIB for run in runs]
                wall, processor = (statistics.median(run[at] for run in runs) / 1e4 for at in (1, 2))
                ratio = f"{ratios[-1]:.3f}" if extents == MANY else ""
                rows.append(
                    f"| {tasks} | {extents} | {speed[extents] / MIB:.0f} ({min(speeds):.0f} to {max(speeds):.0f}) | {ratio} "
                    f"| {wall:.3f} % | {processor:.2f} % |"
                )
    met = {True: "met", False: "missed"}
    apart = max(abs(1 - ratio) for ratio in ratios)
    text = f"""# Devices of many extents

`bench/extents.py --pages {arguments.pages} --seconds {arguments.seconds:g} --repeats {arguments.repeats}` on \
{datetime.date.today()}, Linux {platform.release()}, {os.cpu_count()} CPUs, load {before:.1f} at the start. The whole device layer \
with real I/O: slots, extents, io_uring, direct I/O, {DEPTH} requests of {arguments.pages * 4} KiB in flight over all tasks, one in \
two a page-out, the others page-ins at random places of {MANY * arguments.pages // 256} MiB. One file for both; medians of \
{arguments.repeats}, taken in turns (least to most). The shares are those of the lookups in the map, the clock's two readings included.

| tasks | extents | MiB/s | many to few | of the tasks' time | of the processor time |
| ---: | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(rows)}

| | wanted | measured | |
| --- | ---: | ---: | --- |
| throughput apart, at most | {WITHIN:.0%} | {apart:.1%} | {met[apart <= WITHIN]} |
| share of processor time in the map, at most | {SHARE:.0%} | {max(shares):.2%} | {met[max(shares) < SHARE]} |

Nothing is done here with what is read (no page is copied, checked or decrypted), so the processor's time is little compared with a pager's.
"""
    print(text)
    if arguments.write:
        (REPOSITORY / "bench" / "RESULTS-extents.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
