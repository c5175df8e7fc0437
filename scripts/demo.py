#!/usr/bin/env python3
"""The demonstration behind `make demo`: GNU sort does its work in half of the memory it needs.

Sorts 330 MB of random lines twice, plainly and under `overspill run` with half of the peak just measured, compares
the two outputs byte for byte, and shows the pager's own report. Everything it writes is under $TMPDIR (else /tmp)
and removed at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import common
import gen
from common import ALLOWANCE_BYTES, MIB, Failure, Finished, Launcher, mib

INPUT_BYTES = 330_000_000

SORT = ["sort", "-S", "1G", "--parallel=2", "input"]

TIMEOUT_SECONDS = 600.0


def step(text: str) -> None:
    """Say what comes next, at once: the next step takes seconds."""
    print(f"==> {text}", flush=True)


def sort(command: Sequence[str | Path], work: Path, output: Path) -> Finished:
    """Run one sort and insist that it ends well."""
    finished = common.run(command, work, TIMEOUT_SECONDS, stdout=output)
    if why := finished.complaint():
        raise Failure(why, finished)
    return finished


def demonstrate(work: Path) -> None:
    """The whole show."""
    if why := common.cannot_page():
        raise Failure(why)

    step(f"writing {INPUT_BYTES // 1_000_000} MB of random lines to {work}")
    begun = time.monotonic()
    gen.write("lines", INPUT_BYTES, work / "input")
    print(f"    {time.monotonic() - begun:.1f} s")

    step("sorting them without Overspill")
    plain = sort(SORT, work, work / "expected")
    print(f"    {plain.seconds:.1f} s; it needs {mib(plain.peak_bytes)} of memory")

    budget = plain.peak_bytes // 2 // MIB * MIB
    step(f"sorting them again in half of that: overspill run --memory {budget // MIB}M --stats -- {' '.join(SORT)}")
    launcher = Launcher(work / "swap", budget, options=("--stats",))
    paged = sort(launcher.wrap(SORT), work, work / "output")
    launcher.stats()
    if paged.peak_bytes > budget + ALLOWANCE_BYTES:
        raise Failure(f"it had {mib(paged.peak_bytes)} of memory, the budget was {mib(budget)}", paged)
    print(f"    {paged.seconds:.1f} s; it had {mib(paged.peak_bytes)} of memory at most. The pager's report:\n")
    print(paged.stderr.rstrip(), "\n")

    step("comparing the two outputs")
    if (offset := common.first_difference(work / "expected", work / "output")) is not None:
        raise Failure(f"the outputs differ at byte {offset}", paged)
    print(
        f"The same program, unchanged, wrote the same {INPUT_BYTES // 1_000_000} MB byte for byte in half of the "
        f"memory ({mib(budget)} instead of {mib(plain.peak_bytes)}), in {paged.seconds:.1f} s instead of "
        f"{plain.seconds:.1f} s: what did not fit was kept in a swap file of Overspill's own, and is gone now."
    )


def main() -> int:
    """Show it, or say what went wrong."""
    common.end_on_signals()
    try:
        with common.work_directory() as work:
            demonstrate(work)
    except Failure as failure:
        print(f"the demo cannot go on: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
