#!/usr/bin/env python3
"""Real programs under Overspill: the same bytes out, in half and in a quarter of the memory they need.

Each program runs first without Overspill, which gives its output and its peak. The cases are then

    half            half of that peak
    quarter         a quarter of the peak of a smaller input
    cgroup-half     as half, inside a memory cgroup whose hard limit is the budget + 48 MiB, without kernel swap
    cgroup-quarter  as quarter, inside such a cgroup

and a case passes when the program ends well, its output is the same byte for byte, no process and no swap file
is left, its resident size stays within budget + 48 MiB, and, in a cgroup, nobody was killed.

    scripts/programs.py --profile quick     small inputs, half and cgroup-half being one case: part of `make test`
    scripts/programs.py --profile full      sizes of real jobs, an hour or more
    scripts/programs.py --only sort --case half --keep

A program that is not installed is a counted skip, and with --strict or CI=true a failure. Cases in a cgroup need
root and a mounted memory controller; without them they are skipped with the reason (and fail with --strict).
The exit status is 1 when anything failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import common
import gen
import redis_job
from common import ALLOWANCE_BYTES, MIB, Cgroup, Failure, Finished, Hierarchy, Launcher, Tally, mib

CASES = ("half", "quarter", "cgroup-half", "cgroup-quarter")

QUICK_CASES = ("cgroup-half", "quarter")
"""One case within a cgroup and one without. The case in a cgroup is `half`: a quarter of a small input's peak is less than
the allowance, so that such a cgroup could not show whether the program was paged. Without cgroups it is plain `half`."""

LEAST_MIB = 8
"""The smallest budget that Overspill accepts. A quarter of the smaller `sort`'s peak is now and then a little less."""

TIMEOUT_SECONDS = {"quick": 300.0, "full": 1500.0}
"""Per run. Unpaged, the longest takes 4 s (quick) and 150 s (full) on two quiet cores, measured November 2026."""

HEAD = "overspill: "
"""The start of the lines in which the script says what it is going to do."""

COUNTS = re.compile(r"programs: (\d+) passed, (\d+) failed, (\d+) skipped")
"""The last line."""

TEST_PROGRAMS = common.REPOSITORY / "tests" / "programs"


@dataclass(frozen=True)
class Program:
    """One program, at the sizes of one profile."""

    name: str
    needs: tuple[str, ...]
    """Executables that must be installed."""
    sizes: tuple[int, int | None]
    """For the cases with half, and for those with a quarter of the memory: None if there are none."""
    prepare: Callable[[Path, int], object]
    """(work, size): write the input."""
    execute: Callable[[Launcher, Path, int, Path, float], Finished]
    """(launcher, work, size, output, timeout): run once; what is to be compared goes to `output`."""

    def missing(self) -> str | None:
        """Why this program cannot run here, if it cannot."""
        absent = [name for name in self.needs if not shutil.which(name)]
        return f"not installed: {', '.join(absent)}" if absent else None


def batch(
    name: str,
    sizes: tuple[int, int | None],
    command: list[str | Path],
    *,
    kind: str | None = None,
    file: str = "input",
    feed: bool = False,
) -> Program:
    """A program that runs once from an input to an output.

    `kind` is the generator of its input, written to `file` and with `feed` given on standard input. In `command`
    the word SIZE stands for the size, and OUTPUT for the output's path; without OUTPUT that is standard output.
    """

    def prepare(work: Path, size: int) -> None:
        if kind:
            gen.write(kind, size, work / file)

    def execute(launcher: Launcher, work: Path, size: int, output: Path, timeout: float) -> Finished:
        stands_for: dict[str | Path, str | Path] = {"SIZE": str(size), "OUTPUT": output}
        words = [stands_for.get(word, word) for word in command]
        stdin = work / file if feed else None
        stdout = None if "OUTPUT" in command else output
        return common.run(launcher.wrap(words), work, timeout, stdin=stdin, stdout=stdout)

    return Program(name, (str(command[0]),), sizes, prepare, execute)


def programs(profile: str) -> list[Program]:
    """All programs.

    The quick profile has the same commands, except for the compressors' levels and the number of Python's look-ups: with
    the values of the full profile they would spend minutes on a few megabytes of paged memory. `sort` and redis take
    half a minute each in a quarter of their memory, so the quick profile leaves these cases out. Half of a quick size's
    peak plus the allowance must be less than that peak; otherwise the cgroup shows nothing.
    """
    quick = profile == "quick"
    return [
        batch(
            "sort",
            (60_000_000, None) if quick else (330_000_000, 120_000_000),
            ["sort", "-S", "1G", "--parallel=2", "input"],
            kind="lines",
        ),
        batch(
            "python",
            (500, 250) if quick else (2000, 1000),
            [sys.executable, TEST_PROGRAMS / "dict_list.py", "SIZE", *(["10000"] if quick else [])],
        ),
        batch(
            "sqlite3",
            (220_000, 90_000) if quick else (700_000, 300_000),
            ["sqlite3", "-batch", ":memory:"],
            kind="sql",
            feed=True,
        ),
        batch(
            "zstd",
            (128_000_000, 60_000_000) if quick else (300_000_000, 40_000_000),
            ["zstd", "-q", "-c", "-T2", *(["-6"] if quick else ["--ultra", "-20"]), "--long=27", "input"],
            kind="text",
        ),
        batch(
            "xz",
            (64_000_000, 32_000_000) if quick else (300_000_000, 64_000_000),
            ["xz", "-c", "-T2", *(["--lzma2=preset=0,dict=8MiB"] if quick else []), "input"],
            kind="text",
        ),
        batch(
            "gcc",
            (350, 150) if quick else (1500, 600),
            ["gcc", "-O2", "-c", "input.c", "-o", "OUTPUT"],
            kind="c",
            file="input.c",
        ),
        Program(
            "redis",
            ("redis-server", "redis-benchmark"),
            (80_000, None) if quick else (320_000, 120_000),
            lambda _work, _size: None,
            redis_job.scenario,
        ),
    ]


@dataclass(frozen=True)
class Baseline:
    """A program's output and its peak without Overspill."""

    output: Path
    peak_bytes: int
    seconds: float


class Tester:
    """Runs the cases of one program after the other and keeps count."""

    def __init__(self, arguments: argparse.Namespace, work: Path, hierarchy: Hierarchy | str) -> None:
        self.tally = Tally(width=23)
        self._work = work
        self._hierarchy = hierarchy
        self._timeout = arguments.timeout or TIMEOUT_SECONDS[arguments.profile]
        self._missing_fails = arguments.strict or os.environ.get("CI") == "true"
        self._no_cgroup_fails = arguments.strict
        self._options = tuple(arguments.option)
        self._keep = arguments.keep
        self._again = f"scripts/programs.py --profile {arguments.profile} --keep"

    def test(self, program: Program, cases: Iterable[str]) -> None:
        """All `cases` of one program; cases of the same size share an input and a baseline."""
        if why := program.missing():
            for case in cases:
                self._skip(program, case, why, fails=self._missing_fails)
            return
        for share, size in zip(("half", "quarter"), program.sizes, strict=True):
            wanted = [case for case in cases if case.endswith(share)]
            if not wanted or size is None:
                continue
            directory = self._work / f"{program.name}-{share}"
            directory.mkdir()
            try:
                program.prepare(directory, size)
                baseline = self._baseline(program, directory, size)
            except Failure as failure:
                for case in wanted:
                    self._fail(program, case, f"without Overspill: {failure}")
                continue
            for case in wanted:
                self._case(program, case, directory, size, baseline)
            if not self._keep:
                shutil.rmtree(directory)

    def _baseline(self, program: Program, directory: Path, size: int) -> Baseline:
        output = directory / "expected"
        finished = program.execute(Launcher(directory / "swap"), directory, size, output, self._timeout)
        if why := finished.complaint():
            raise Failure(why, finished)
        self.tally.say("", title(program, "alone"), f"needs {mib(finished.peak_bytes)}, {finished.seconds:.1f} s")
        return Baseline(output, finished.peak_bytes, finished.seconds)

    def _case(self, program: Program, case: str, directory: Path, size: int, baseline: Baseline) -> None:
        in_cgroup = case.startswith("cgroup")
        if in_cgroup and isinstance(self._hierarchy, str):
            self._skip(program, case, self._hierarchy, fails=self._no_cgroup_fails)
            return
        divisor = 2 if case.endswith("half") else 4
        budget = max(baseline.peak_bytes // divisor // MIB, LEAST_MIB) * MIB
        output = directory / "output"
        with contextlib.ExitStack() as stack:
            cgroup = None
            if in_cgroup:
                assert isinstance(self._hierarchy, Hierarchy)
                cgroup = stack.enter_context(Cgroup(self._hierarchy, budget + ALLOWANCE_BYTES))
            launcher = Launcher(directory / "swap", budget, cgroup, self._options)
            try:
                finished = program.execute(launcher, directory, size, output, self._timeout)
                self._judge(finished, launcher, output, baseline)
            except Failure as failure:
                killed = f"\nout-of-memory kills in the cgroup: {cgroup.oom_kills()}" if cgroup else ""
                self._fail(program, case, f"{failure}{killed}")
                return
            self.tally.ok(title(program, case), describe(finished, launcher, baseline))

    def _judge(self, finished: Finished, launcher: Launcher, output: Path, baseline: Baseline) -> None:
        """Raise a Failure unless the run did all that a case asks for."""
        assert launcher.memory is not None
        if why := finished.complaint():
            raise Failure(why, finished)
        if (offset := common.first_difference(baseline.output, output)) is not None:
            raise Failure(f"the output differs at byte {offset} ({baseline.output} against {output})", finished)
        launcher.stats()
        if finished.peak_bytes > launcher.memory + ALLOWANCE_BYTES:
            raise Failure(f"resident size reached {mib(finished.peak_bytes)}, budget {mib(launcher.memory)}", finished)
        if launcher.cgroup and launcher.cgroup.oom_kills():
            raise Failure(f"the kernel killed {launcher.cgroup.oom_kills()} processes of the cgroup", finished)

    def _fail(self, program: Program, case: str, why: str) -> None:
        self.tally.fail(title(program, case), why, f"{self._again} --only {program.name} --case {case.split('-')[0]}")

    def _skip(self, program: Program, case: str, why: str, *, fails: bool) -> None:
        if fails:
            self._fail(program, case, why)
        else:
            self.tally.skip(title(program, case), why)


def describe(finished: Finished, launcher: Launcher, baseline: Baseline) -> str:
    """The line of a passed case."""
    stats = launcher.stats()
    text = (
        f"{mib(launcher.memory or 0)} of {mib(baseline.peak_bytes)}, {finished.seconds:.1f} s "
        f"({finished.seconds / baseline.seconds:.1f}x), resident peak {mib(finished.peak_bytes)}, "
        f"hard faults {stats['hard_faults']}, pages in {stats['pages_in']}, out {stats['pages_out']}"
    )
    if cgroup := launcher.cgroup:
        text += (
            f"; cgroup limit {mib(cgroup.limit)}, peak {mib(cgroup.peak())}, "
            f"anonymous {mib(cgroup.anonymous_peak)}, limit hits {cgroup.limit_hits()}, kills {cgroup.oom_kills()}"
        )
        if cgroup.limit >= baseline.peak_bytes:
            text += " (the limit is above what the program needs: proves little)"
    return text


def title(program: Program, case: str) -> str:
    """How a line of progress names a case."""
    return f"{program.name:<8} {case}"


def side_by_side(names: list[str], jobs: int) -> Tally:
    """Test `jobs` programs at a time, each by a script of its own, which cleans up after itself however it ends."""
    tally = Tally(width=23)
    started: list[subprocess.Popen[str]] = []

    def test(name: str) -> str:
        command = [sys.executable, __file__, *sys.argv[1:], "--part", name]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout
        last = ""
        for line in process.stdout:
            if not line.startswith(HEAD):
                print(last, end="", flush=True)
                last = line
        return last

    with ThreadPoolExecutor(jobs) as pool:
        try:
            for name, last in zip(names, pool.map(test, names), strict=True):
                if not (counts := COUNTS.fullmatch(last.strip())):
                    sys.exit(f"the script that tests {name} came to no end: {last}")
                tally.passed += int(counts[1])
                tally.failed += int(counts[2])
                tally.skipped += int(counts[3])
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in started:
                if process.poll() is None:
                    process.terminate()
    return tally


def main() -> int:
    """Run what the command line asks for and sum up."""
    names = [program.name for program in programs("full")]
    parser = argparse.ArgumentParser(description="Try real programs under Overspill.")
    parser.add_argument("--profile", choices=TIMEOUT_SECONDS, default="quick")
    parser.add_argument("--only", action="append", choices=names, help="this program (may be repeated)")
    parser.add_argument("--case", choices=["half", "quarter", "cgroup"], help="only cases of this kind")
    parser.add_argument("--timeout", type=float, help="seconds for each run, instead of the profile's")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time (1; the times mean little with more)")
    parser.add_argument("--part", choices=names, help=argparse.SUPPRESS)
    parser.add_argument("--strict", action="store_true", help="a skip is a failure")
    parser.add_argument("--keep", action="store_true", help="keep the work directory")
    parser.add_argument(
        "--option", action="append", default=[], help="passed on to `overspill run`, e.g. --option=--engine=psync"
    )
    arguments = parser.parse_args()

    common.end_on_signals()
    hierarchy = common.memory_hierarchy()
    cases: tuple[str, ...] = CASES if arguments.profile == "full" or arguments.case == "cgroup" else QUICK_CASES
    if cases == QUICK_CASES and isinstance(hierarchy, str) and not arguments.strict:
        print(f"{HEAD}half is tried without a cgroup: {hierarchy}")
        cases = tuple(case.removeprefix("cgroup-") for case in cases)
    if arguments.case == "cgroup":
        cases = tuple(case for case in cases if case.startswith("cgroup"))
    elif arguments.case:
        cases = (arguments.case,)
    print(f"{HEAD}{common.overspill_binary()}; profile {arguments.profile}", flush=True)
    if why := common.cannot_page():
        sys.exit(why)
    wanted = [name for name in names if not arguments.only or name in arguments.only]
    if arguments.part:
        wanted = [arguments.part]
    elif arguments.jobs > 1:
        tally = side_by_side(wanted, arguments.jobs)
        print(f"programs: {tally}")
        return 1 if tally.failed else 0
    with common.work_directory(arguments.keep) as work:
        tester = Tester(arguments, work, hierarchy)
        for program in programs(arguments.profile):
            if program.name in wanted:
                tester.test(program, cases)
    print(f"programs: {tester.tally}")
    return 1 if tester.tally.failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
