#!/usr/bin/env python3
"""Memory testers in a quarter of the memory they test, for a long time: `make soak`, not part of `make test`.

stress-ng writes patterns over 400 MB in many orders, from two processes, and verifies every one; memtester does
so in one process over 400 MB, mlocked where the system allows. Both would report a single wrong bit.

$SOAK_SECONDS is the time for each of the two, ten minutes by default; stress-ng's is shared out among its methods.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import common
from common import MIB, Failure, Finished, Launcher

TESTED_MIB = 400

METHODS = ("flip", "galpat-0", "gray", "incdec", "move-inv", "prime-1", "rand-set", "rowhammer", "walk-1d", "zero-one")
"""stress-ng's vm methods that differ most in the order and direction of their accesses."""

GRACE_SECONDS = 240.0
"""How long a tester may go on when its time is over: it finishes its current pass, in which it pages."""


def stress_ng(launcher: Launcher, work: Path, method: str, seconds: float, timeout: float) -> tuple[Finished, str]:
    """One vm method (or "all") for `seconds`, and the number of its operations.

    stress-ng itself verifies, and exits with 2 when a value was wrong.
    """
    command = ["stress-ng", "--vm", "2", "--vm-bytes", f"{TESTED_MIB}M", "--vm-method", method, "--vm-keep"]
    command += ["--verify", "--metrics-brief", "--timeout", f"{seconds:.0f}s", "--temp-path", str(work)]
    output = work / "stress-ng.txt"
    finished = common.run(launcher.wrap(command), work, timeout, stdout=output)
    text = output.read_text(errors="replace") + finished.stderr
    if why := finished.complaint():
        raise Failure(f"stress-ng, method {method}: {why}\n{text}", finished)
    if wrong := re.search(r".*(fail:|error|killed|OOM).*", text, re.IGNORECASE):
        raise Failure(f"stress-ng, method {method}: {wrong[0]}", finished)
    operations = re.search(r"\bvm\s+(\d+)\s", text)
    if not operations or operations[1] == "0":
        raise Failure(f"stress-ng, method {method}, did nothing:\n{text}", finished)
    return finished, operations[1]


def verified(launcher: Launcher, work: Path, method: str, seconds: float) -> str:
    """One method, and what it has done."""
    finished, operations = stress_ng(launcher, work, method, seconds, seconds + GRACE_SECONDS)
    return f"{operations} operations in {finished.seconds:.0f} s"


def memtester(launcher: Launcher, work: Path, seconds: float) -> str:
    """As many loops as fit into `seconds`; a tester that is still running then has passed."""
    output = work / "memtester.txt"
    command = launcher.wrap(["memtester", f"{TESTED_MIB}M", "1000"])
    with common.started(command, work, stdout=output) as running:
        ended_early = running.exits_within(seconds)
        if not ended_early:
            os.kill(running.process.pid, signal.SIGTERM)
        finished = running.wait(GRACE_SECONDS)
    # Progress is written over itself with backspaces.
    text = re.sub(r".?\x08", "", output.read_text(errors="replace"))
    if ended_early:
        raise Failure(f"memtester ended after {finished.seconds:.0f} s:\n{text}", finished)
    if wrong := re.search(r".*(FAILURE|reducing).*", text):
        raise Failure(f"memtester: {wrong[0]}", finished)
    if finished.timed_out or finished.left_behind:
        raise Failure("memtester did not end when it was told to", finished)
    passed = text.count(": ok")
    if not passed:
        raise Failure(f"memtester did not finish a single test:\n{text}", finished)
    locked = "mlocked" if re.search(r"mlock \.\.\.\s*locked", text) else "not mlocked"
    loops = len(re.findall(r"^Loop \d", text, re.MULTILINE))
    return f"{passed} tests ok in {loops} loops, {finished.seconds:.0f} s, {locked}"


def main() -> int:
    """Both testers, one method after the other."""
    common.end_on_signals()
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    budget = TESTED_MIB * MIB // 4
    failed = 0
    with common.work_directory() as work:
        launcher = Launcher(work / "swap", budget)
        rounds: dict[str, Callable[[], str]] = {
            f"stress-ng {method}": partial(verified, launcher, work, method, seconds / len(METHODS))
            for method in METHODS
        }
        rounds["memtester"] = partial(memtester, launcher, work, seconds)
        for name, tester in rounds.items():
            try:
                print(f"ok    {name}: {tester()}", flush=True)
            except Failure as failure:
                failed += 1
                print(f"FAIL  {name}: {failure}", flush=True)
    print(f"soak: {len(rounds) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
