#!/usr/bin/env python3
"""Test suites and runtimes that others wrote: the same verdict with Overspill as without it.

Each case runs once alone and once under `overspill run` with a small budget, and passes when both give the same
verdict and the same exit status, and when the second leaves nothing: no process, no file in its temporary
directory that the first does not leave too, no swap file, no control socket.

    ltp         the Linux Test Project's tests of memory, processes and futexes, within 16 MiB. $OVERSPILL_LTP is the
                directory of a built copy; without it they are one counted skip. The verdict is the sorted list of the
                TPASS, TFAIL, TBROK, TCONF and TWARN lines, less their numbers
    stress-ng   the stressors of its class vm, and those that fork, clone, switch contexts and handle signals, each
                with --verify, within 32 MiB. The verdict is what stress-ng complains of
    runtimes    programs with a memory manager of their own (runtimes.py), within 60 % of their peak without
                Overspill: first one alone, then two at a time under a shell. The verdict is their output

    scripts/suites.py --profile quick     about a minute: part of `make test`
    scripts/suites.py --profile full      all of them, an hour: part of `make soak`
    scripts/suites.py --only ltp/mmap01 --only runtimes/node-tree --keep

A suite or program that is not installed is a counted skip; with --strict, or in the quick profile with CI=true, a failure.
The exit status is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import common
import runtimes
from common import MIB, Failure, Finished, Launcher, Tally, mib
from runtimes import Case

LTP_BUDGET = 16 * MIB

LTP_TESTS = re.compile(
    r"(mmap|munmap|mremap|madvise|mprotect|s?brk|fork|vfork|clone|mlock|mlockall|munlock|munlockall|mincore|msync|futex"
    r"|sigaltstack|splice|vmsplice|process_madvise|remap_file_pages|mmapstress|fork_procs)[0-9_]"
    r"|(futex|mmapstress|fork)_"
)
"""Names in the Linux Test Project's lists of tests."""

LTP_LISTS = ("syscalls", "mm")

LTP_LEFT_OUT = {"fork13"}
"""The test forks for a quarter of an hour, also without Overspill, until process ids are used again."""

LTP_BUDGETS = {"mlock01": 32 * MIB, "munlock01": 32 * MIB, "mmap22": 512 * MIB}
"""The first two lock 10 MiB in a forked child. The last waits until a child has filled a memory cgroup of 256 MiB, which never
happens within a smaller budget."""

LTP_OPTIONS = {"munlockall01": ("--no-encrypt",)}
"""The test needs a process without locked pages, but the page with the swap's keys is locked."""

LTP_VERDICT = re.compile(r"\b(TPASS|TFAIL|TBROK|TCONF|TWARN)\b.*")

STRESS_BUDGET = 32 * MIB

STRESS_QUICK = ("vm", "mmap", "mremap", "madvise", "fork", "vfork", "clone", "pthread", "context", "sigsegv")

STRESS_FULL = (
    *("bad-altstack", "brk", "env", "madvise", "malloc", "mlock", "mlockmany", "mmap", "mmapaddr", "mmapfixed", "mmapfork"),
    *("mmaphuge", "mmapmany", "mprotect", "mremap", "msync", "msyncmany", "munmap", "pagemove", "pageswap", "shm"),
    *("shm-sysv", "stack", "stackmmap", "userfaultfd", "vm", "vm-addr", "vm-rw", "vm-segv", "vm-splice"),
    *("fork", "vfork", "clone", "pthread", "context", "sigsegv", "sigsuspend", "sigfd", "forkheavy", "zombie", "exec"),
)
"""Class vm, less bigheap (takes all memory there is), swap, watchdog and physpage (devices of the machine), dev-shm
and tmpfs (fill a file system); and what else begins processes, switches stacks or takes signals."""

STRESS_COMPLAINT = re.compile(r"^stress-ng: (?:fail|error|warn): +\[\d+\] (.*)$", re.MULTILINE)

SHARE = 0.6
"""The budget as a share of the runtime's peak without Overspill."""

TIMEOUT_SECONDS = 300.0
"""For each run; alone, the longest takes 30 s."""

DIFFERENCE_LINES = 12


def ltp_cases() -> list[Case]:
    """The tests that the copy's own lists name, with their arguments."""
    root = os.environ.get("OVERSPILL_LTP")
    if root is None:
        return [Case("ltp", "all", (), budget=LTP_BUDGET, unless="OVERSPILL_LTP does not name a built copy")]
    built = {
        path.name: path
        for path in [*Path(root).glob("testcases/**/*")]
        if path.is_file() and "." not in path.name and os.access(path, os.X_OK)
    }
    cases: dict[str, Case] = {}
    for name in LTP_LISTS:
        for line in (Path(root) / "runtest" / name).read_text().splitlines():
            title, _, command = line.strip().partition(" ")
            # A command with shell variables needs the Linux Test Project's own runner.
            if not LTP_TESTS.match(title) or "$" in command or title in LTP_LEFT_OUT:
                continue
            program, *arguments = shlex.split(command)
            if program in built:
                path = built[program]
                cases[title] = Case(
                    "ltp",
                    title,
                    (str(path), *arguments),
                    budget=LTP_BUDGETS.get(title, LTP_BUDGET),
                    verdict=ltp_verdict,
                    options=LTP_OPTIONS.get(title, ()),
                    extra={"PATH": f"{path.parent}:{os.environ['PATH']}", "LTP_TIMEOUT_MUL": "3"},
                )
    return list(cases.values()) or [
        Case("ltp", "all", (), budget=LTP_BUDGET, unless=f"no built tests were found below {root}")
    ]


def ltp_verdict(stdout: str, stderr: str) -> str:
    """What was tested and how it went, sorted, because processes of a test report in any order."""
    lines = (LTP_VERDICT.search(line) for line in [*stdout.splitlines(), *stderr.splitlines()])
    return "\n".join(sorted(re.sub(r"0x[0-9a-f]+|\d+", "N", match[0]) for match in lines if match))


def kinds(verdict: str) -> Counter[str]:
    """How often each verdict was given."""
    return Counter(line.split()[0].rstrip(":") for line in verdict.splitlines())


def stress_cases(names: Sequence[str], seconds: int) -> list[Case]:
    """One for each stressor."""
    return [
        Case(
            "stress-ng",
            name,
            (*("stress-ng", f"--{name}", "2", "--verify", "--timeout", str(seconds), "--no-rand-seed"),),
            budget=STRESS_BUDGET,
            verdict=stress_verdict,
        )
        for name in names
    ]


def stress_verdict(stdout: str, stderr: str) -> str:
    """Complaints only: the rest are times and counts of operations."""
    return "\n".join(
        sorted({re.sub(r"0x[0-9a-f]+|\d+", "N", match[0]) for match in STRESS_COMPLAINT.finditer(stdout + stderr)})
    )


@dataclass(frozen=True)
class Ran:
    """One run of a case, and what it left behind."""

    finished: Finished
    verdict: str
    files: int
    """Files left in its directory."""


class Tester:
    """Runs cases one after the other."""

    def __init__(self, arguments: argparse.Namespace, work: Path) -> None:
        self.tally = Tally(width=24)
        self.seconds: Counter[tuple[str, str]] = Counter()
        """By suite, and `alone` or `paged`."""
        self.outcomes: Counter[tuple[str, str]] = Counter()
        """By suite, and how it ended."""
        self._work = work
        self._timeout = arguments.timeout
        self._missing_fails = arguments.strict or (arguments.profile == "quick" and os.environ.get("CI") == "true")
        self._options = tuple(arguments.option)
        self._keep = arguments.keep
        self._again = f"scripts/suites.py --profile {arguments.profile} --keep --only"

    def test(self, case: Case) -> None:
        """Run `case` alone and paged, and compare."""
        name = f"{case.suite}/{case.name}"
        why = case.missing()
        if why and not (self._missing_fails and case.suite != "ltp"):
            self.tally.skip(name, why)
            self.outcomes[case.suite, "skipped"] += 1
            return
        try:
            if why:
                raise Failure(why)
            self.tally.ok(name, self._compare(case))
            self.outcomes[case.suite, "same"] += 1
        except Failure as failure:
            self.tally.fail(name, str(failure), f"{self._again} {name}")
            self.outcomes[case.suite, "different"] += 1

    def _compare(self, case: Case) -> str:
        given = self._work / f"{case.suite}-{case.name}"
        given.mkdir()
        case.prepare(given)
        alone = self._run(case, given, None)
        budget = case.budget or max(int(alone.finished.peak_bytes * SHARE) // MIB, 8) * MIB
        paged = self._run(case, given, budget)
        if alone.verdict != paged.verdict and case.suite == "ltp":
            # Some tests report differently each time, also without Overspill; then only the kinds of verdicts can be compared.
            again = self._run(case, given, None)
            if again.verdict != alone.verdict and kinds(paged.verdict) in (kinds(alone.verdict), kinds(again.verdict)):
                alone = Ran(alone.finished, paged.verdict, alone.files)
        if (expected := alone.verdict) != paged.verdict:
            lines = difflib.unified_diff(expected.splitlines(), paged.verdict.splitlines(), "alone", "paged", "", "", 0, "")
            raise Failure("\n".join(["the verdict differs:", *list(lines)[:DIFFERENCE_LINES]]), paged.finished)
        if alone.finished.status != paged.finished.status:
            raise Failure(f"exit status {paged.finished.status}, alone {alone.finished.status}", paged.finished)
        if paged.files > alone.files:
            raise Failure(f"{paged.files} files were left, alone {alone.files}", paged.finished)
        if not self._keep:
            shutil.rmtree(given)
        return (
            f"{mib(budget)} of {mib(alone.finished.peak_bytes)}, {paged.finished.seconds:.1f} s, "
            f"alone {alone.finished.seconds:.1f} s"
        )

    def _run(self, case: Case, given: Path, budget: int | None) -> Ran:
        """Run once, in a directory of its own."""
        directory = given / "run"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o777)
        directory.chmod(0o777)
        output = given / ("alone.out" if budget is None else "paged.out")
        launcher = Launcher(given / "swap", budget, None, (*self._options, *case.options))
        sockets = given / "sockets"
        sockets.mkdir(mode=0o700, exist_ok=True)
        extra = {"INPUT": str(given), "XDG_RUNTIME_DIR": str(sockets), **case.extra}
        finished = common.run(launcher.wrap(case.command), directory, self._timeout, stdout=output, extra=extra)
        self.seconds[case.suite, "alone" if budget is None else "paged"] += finished.seconds
        which = "alone" if budget is None else f"within {mib(budget)}"
        if finished.timed_out or finished.left_behind:
            raise Failure(f"{which}: {finished.complaint()}", finished)
        if case.must_succeed and finished.status:
            raise Failure(f"{which}: exit status {finished.status}", finished)
        if left := common.strays(directory):
            raise Failure(f"{which}: processes were left behind: {left}", finished)
        if budget is not None:
            launcher.stats()
            # The next `overspill` that looks there removes the sockets of processes that outlived the run for a moment.
            look = [common.overspill_binary(), "swaps", "nobody"]
            subprocess.run(look, env={**os.environ, "XDG_RUNTIME_DIR": str(sockets)}, capture_output=True)
            if left_sockets := [path.name for path in sockets.glob("overspill/*.sock")]:
                raise Failure(f"control sockets were left: {', '.join(left_sockets)}", finished)
        text = output.read_text(errors="replace")
        files = sum(1 for path in directory.rglob("*") if not path.is_dir())
        return Ran(finished, case.verdict(text, finished.stderr), files)

    def table(self) -> Iterator[str]:
        """The summary of all cases."""
        yield f"{'suite':<12}{'same':>8}{'different':>11}{'skipped':>9}{'alone':>9}{'paged':>9}"
        for suite in dict.fromkeys(suite for suite, _ in self.outcomes):
            counts = [self.outcomes[suite, outcome] for outcome in ("same", "different", "skipped")]
            alone, paged = (self.seconds[suite, kind] for kind in ("alone", "paged"))
            yield f"{suite:<12}{counts[0]:>8}{counts[1]:>11}{counts[2]:>9}{alone:>7.0f} s{paged:>7.0f} s"


def main() -> int:
    """Run what the command line asks for and sum up."""
    parser = argparse.ArgumentParser(description="Run test suites that others wrote with and without Overspill.")
    parser.add_argument("--profile", choices=("quick", "full"), default="quick")
    parser.add_argument("--only", action="append", default=[], help="a case, or a pattern: runtimes/*-tree")
    parser.add_argument("--timeout", type=float, default=TIMEOUT_SECONDS, help="seconds for each run")
    parser.add_argument("--strict", action="store_true", help="what is not installed is a failure")
    parser.add_argument("--keep", action="store_true", help="keep the work directory")
    parser.add_argument("--list", action="store_true", help="name the cases, and run none")
    parser.add_argument(
        "--option", action="append", default=[], help="passed on to `overspill run`, e.g. --option=--engine=psync"
    )
    arguments = parser.parse_args()

    quick = arguments.profile == "quick"
    cases = [] if quick else ltp_cases()
    cases += stress_cases(STRESS_QUICK, 1) if quick else stress_cases(STRESS_FULL, 4)
    cases += runtimes.cases(quick)
    if arguments.only:
        cases = [c for c in cases if any(fnmatch.fnmatch(f"{c.suite}/{c.name}", only) for only in arguments.only)]
    if arguments.list:
        print("\n".join(f"{case.suite}/{case.name}" for case in cases))
        return 0

    common.end_on_signals()
    started = time.monotonic()
    print(f"overspill: {common.overspill_binary()}; profile {arguments.profile}, {len(cases)} cases")
    if why := common.cannot_page():
        sys.exit(why)
    with common.work_directory(arguments.keep) as work:
        # Programs that give up root must be able to enter the directory.
        work.chmod(0o755)
        tester = Tester(arguments, work)
        for case in cases:
            tester.test(case)
    print(*tester.table(), sep="\n")
    print(f"suites: {tester.tally} in {time.monotonic() - started:.0f} s")
    return 1 if tester.tally.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
