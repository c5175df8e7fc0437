#!/usr/bin/env python3
"""Page-out and page-in of the device layer and fio on the same disk: writes bench/RESULTS-fio.md.

`crates/linux/examples/device_speed.rs` takes slots, finds their places by the extents of a swap file and reads or writes
them with io_uring and direct I/O. fio does the same with a file of its own, in the same directory and of the same length;
both files are written once before. Both make the same requests, of 64 pages (a cluster) and of one page: writes in order,
each thread in its own part (as the device layer allocates slots), and reads at places drawn evenly. 16 requests are in
flight over 1 to 8 threads. The two take turns, and the best of the repeats of each counts.

Usage: bench/fio.py [--size 1G] [--seconds 2] [--repeats 3] [--place DIR] [--bin FILE] [--write]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

from common import MIB, parse_size, release_directory  # noqa: E402  (found through the path above)

DEPTH = 16
THREADS = (1, 2, 4, 8)
MARKS = {64: 0.9, 1: 0.8}
"""Pages of a request, and the least share of fio's throughput."""

CASES = (("write", 64), ("read", 64), ("write", 1), ("read", 1))


def device(program: Path, place: Path, size: int, operation: str, pages: int, threads: int, seconds: float) -> float:
    """Bytes per second of the device layer."""
    words = [program, place, size, operation, pages, threads, DEPTH // threads, seconds]
    done = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True, timeout=300)
    return float(done.stdout)


def fio(place: Path, size: int, operation: str, pages: int, threads: int, seconds: float) -> float:
    """Bytes per second of fio, in one file that all its threads share."""
    how = {"write": "write", "read": "randread"}[operation]
    part = size // threads if how == "write" else 0
    command = ["fio", "--name=job", f"--filename={place / 'fio'}", f"--size={part or size}", f"--offset_increment={part}"]
    command += [f"--rw={how}", f"--bs={pages * 4096}", "--ioengine=io_uring", "--direct=1", f"--iodepth={DEPTH // threads}"]
    command += [f"--numjobs={threads}", "--thread", "--group_reporting", "--time_based", f"--runtime={seconds}"]
    command += ["--norandommap", "--randrepeat=0", "--refill_buffers=0", "--output-format=json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    report = json.loads(done.stdout[done.stdout.index("{") :])
    return float(report["jobs"][0][operation]["bw_bytes"])


def prepare(place: Path, size: int) -> None:
    """Write fio's file once."""
    with open(place / "fio", "wb") as file:
        for _ in range(size // MIB):
            file.write(os.urandom(MIB))
        os.fsync(file.fileno())


def main() -> int:
    """All cases, in turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--size", default="1G")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--place", type=Path, default=REPOSITORY / "bench")
    parser.add_argument("--bin", type=Path, default=release_directory() / "examples" / "device_speed")
    parser.add_argument("--write", action="store_true", help="write RESULTS-fio.md")
    arguments = parser.parse_args()
    if not shutil.which("fio"):
        sys.exit("fio is not installed: get it with your package manager")
    if not arguments.bin.exists():
        sys.exit(f"{arguments.bin} is missing: cargo build --release -p overspill-linux --example device_speed")
    size = parse_size(arguments.size)
    best: dict[tuple[str, int, int], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="work-fio-", dir=arguments.place) as work:
        place = Path(work)
        prepare(place, size)
        for repeat in range(arguments.repeats):
            for operation, pages in CASES:
                for threads in THREADS:
                    ours = device(arguments.bin, place, size, operation, pages, threads, arguments.seconds)
                    theirs = fio(place, size, operation, pages, threads, arguments.seconds)
                    entry = best.setdefault((operation, pages, threads), [0.0, 0.0])
                    entry[:] = [max(entry[0], ours), max(entry[1], theirs)]
                    print(f"{repeat + 1}: {operation} {pages} x{threads}: {ours / MIB:.0f} {theirs / MIB:.0f}", file=sys.stderr)
    version = subprocess.run(["fio", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    rows, marks = [], []
    for operation, pages in CASES:
        ratios = []
        for threads in THREADS:
            ours, theirs = best[operation, pages, threads]
            ratios.append(ours / theirs)
            what = f"page-{'out' if operation == 'write' else 'in'}"
            rows.append(f"| {what} | {pages * 4} KiB | {threads} | {ours / MIB:.0f} | {theirs / MIB:.0f} | {ratios[-1]:.2f} |")
        met = "met" if min(ratios) >= MARKS[pages] else "missed"
        marks.append(f"| {what}, {pages * 4} KiB | >= {MARKS[pages]:.1f} | {min(ratios):.2f} | {met} |")
    text = f"""# The device layer and fio

`bench/fio.py --size {arguments.size} --seconds {arguments.seconds:g} --repeats {arguments.repeats}` on {datetime.date.today()}, \
Linux {platform.release()}, {os.cpu_count()} CPUs, {version}, load {load} at the end. io_uring, direct I/O, {DEPTH} requests in flight \
over all threads, one file each on one disk; the best of {arguments.repeats}, taken in turns.

| | request | threads | device layer, MiB/s | fio, MiB/s | ratio |
| --- | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(rows)}

| least ratio | wanted | measured | |
| --- | ---: | ---: | --- |
{chr(10).join(marks)}
"""
    print(text)
    if arguments.write:
        (REPOSITORY / "bench" / "RESULTS-fio.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
