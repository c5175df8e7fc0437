#!/usr/bin/env python3
"""How far two programs get that do not end in a useful time: zstd in half of its memory, xz in a quarter.

    bench/unfinished.py [--seconds 600] [PROGRAM ...]

Each program first runs alone, which gives its peak. Then it runs for the given time under the kernel's swap, in a memory
cgroup of the budget, and for the same time under `overspill run`, in a cgroup of the budget and the allowance. The
program's own reports of its progress are compared. Prints a Markdown table, that of `RESULTS-unfinished.md`. Needs root.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from dataclasses import dataclass

import run
from run import MIB, RUN_TIMEOUT_SECONDS, Bench, Failure, Launcher, common, mib


@dataclass(frozen=True)
class Job:
    """A program of `scripts/programs.py`, and how it reports how much of its input it has done."""

    command: tuple[str, ...]
    """The command of `scripts/programs.py`, with options that make it report its progress."""
    divisor: int
    """Its budget is its peak divided by this."""
    told: str
    """Matches the report on standard error: a number and its unit."""
    asked: signal.Signals | None = None
    """The signal that makes it report, if it needs one."""


JOBS = {
    "zstd": Job(
        ("zstd", "-v", "--progress", "-c", "-T2", "--ultra", "-20", "--long=27", "input"),
        2,
        r"Consumed *: *([\d.]+) *([KMG]i?B)",
    ),
    "xz": Job(("xz", "-v", "-c", "-T2", "input"), 4, r"/ ([\d,.]+) ([KMG]iB) ", signal.SIGUSR1),
}
ANSWER_SECONDS = 60
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def done_after(bench: Bench, job: Job, launcher: Launcher, size: int, seconds: float) -> tuple[float, float]:
    """The share of its input that it has done when it ends or the time is over, and the seconds that it took."""
    with common.started(launcher.wrap(job.command), bench.work, stdout=bench.work / "output") as running:
        if running.exits_within(seconds):
            finished = running.wait(0)
            if why := finished.complaint():
                raise Failure(why, finished)
            return 1.0, finished.seconds
        if job.asked:
            os.killpg(running.process.pid, job.asked)
        for _ in range(ANSWER_SECONDS):  # it answers when it comes by
            found = re.findall(job.told, os.pread(running.stderr.fileno(), 1 << 24, 0).decode(errors="replace"))
            took = time.monotonic() - running.started
            if found:
                number, unit = found[-1]
                return float(number.replace(",", "")) * UNITS[unit[0]] / size, took
            time.sleep(1)
    return 0.0, took


def main() -> int:
    """Read the command line; clean up afterwards."""
    parser = argparse.ArgumentParser(description="How far programs get that do not end.")
    parser.add_argument("program", nargs="*", choices=[*JOBS, []], help="zstd, xz [both]")
    parser.add_argument("--seconds", type=float, default=600.0)
    arguments = parser.parse_args()
    with run.at_work() as work:
        hierarchy = common.memory_hierarchy()
        bench = Bench(work, hierarchy, run.no_kernel_swap(work, hierarchy), 1, 0, 0)
        rows = []
        for program in run.wanted("full", arguments.program or list(JOBS)):
            job = JOBS[program.name]
            size = program.sizes[0 if job.divisor == 2 else 1]
            program.prepare(work, size)
            bench.say(f"{program.name} alone")
            alone = program.execute(Launcher(work / "swap"), work, size, work / "output", RUN_TIMEOUT_SECONDS)
            if why := alone.complaint():
                raise Failure(why, alone)
            budget = alone.peak_bytes // job.divisor // MIB * MIB
            row = [program.name, f"{alone.seconds:.0f} s, {mib(alone.peak_bytes)}", mib(budget)]
            for who, contender in (("the kernel", bench.under_kernel), ("overspill run", bench.under_overspill)):
                if who == "the kernel" and bench.no_kernel:
                    row.append("not measured")
                    continue
                bench.say(f"{program.name} in {mib(budget)} under {who}")
                with contender(budget) as launcher:
                    share, took = done_after(bench, job, launcher, size, arguments.seconds)
                row.append(f"{share * 100:.1f} % in {took:.0f} s")
                bench.say(row[-1])
            rows.append(row)
        bench.table(["program", "alone", "budget", "kernel swap", "`overspill run`"], rows)
        return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
