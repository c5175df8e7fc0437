#!/usr/bin/env python3
"""Real programs whose swap devices come and go at random moments: part of `make soak`, not of `make test`.

GNU sort, sqlite3 with a database in memory, redis-server under redis-benchmark, and stress-ng's verified memory
test run under Overspill, with two to four file devices. Meanwhile the script takes devices off and adds others (or the
same again) over the control socket, in the program and in the processes it forks, at moments drawn from a seed. Now and
then it interrupts a swapoff. A program is run again until it has seen its share of the swapoffs.

The test passes if every output is the same, byte for byte, as without Overspill; stress-ng and redis (its values, its
dumps under load, DEBUG DIGEST) find nothing wrong; no page was lost or came back damaged; no swap file is left; and
there were as many swapoffs as were asked for.

    scripts/swapoff_soak.py [--swapoffs 200] [--seed 1] [--only sort] [--keep] [--table FILE]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import datetime
import json
import os
import platform
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import common
import programs
import soak
from common import MIB, Failure, Finished, Launcher

PLACES = 4
"""How many directories devices may be in; two of them have a device from the start."""

TIMEOUT_SECONDS = 400.0
"""For one run; the swapoffs make it several times as long."""

RUNS_MAX = 40
"""A program that has not seen its share of the swapoffs after this many runs has failed."""

INTERRUPTED = 8
"""One swapoff in this many is interrupted, if it is still in progress."""

STRESS_SECONDS = 30
STRESS_BUDGET = 160 * MIB

DONE = re.compile(r"; (\S+ \w+) to other devices, (\S+ \w+) into memory; [\d,]+ reads of ([\d.]+) pages")

LOST = ("read_errors", "write_errors", "corrupt_pages")
"""Counters that must stay zero on a disk that works."""


@dataclass
class Tally:
    """The counts of one program."""

    runs: int = 0
    seconds: float = 0.0
    swapoffs: int = 0
    in_children: int = 0
    swapons: int = 0
    interrupted: int = 0
    moved: float = 0.0
    into_memory: float = 0.0
    refusals: collections.Counter[str] = field(default_factory=collections.Counter)


def size_mib(text: str) -> float:
    """`402 MiB`, `0 B`, `1.2 GiB`."""
    number, unit = text.split()
    return float(number.replace(",", "")) * {"B": 1 / MIB, "KiB": 1 / 1024, "MiB": 1, "GiB": 1024}[unit]


class Agitator(threading.Thread):
    """Takes devices off and adds some, until it is told to stop."""

    def __init__(self, name: str, places: list[Path], rng: random.Random, tally: Tally) -> None:
        super().__init__(daemon=True)
        self._name, self._places, self._rng, self._tally = name, places, rng, tally
        self._over = threading.Event()
        self.trouble: str | None = None

    def stop(self) -> None:
        """Stop, and wait for the last swapoff to end."""
        self._over.set()
        self.join(150)

    def run(self) -> None:
        """The thread's loop: one swapoff or addition after the other."""
        try:
            while not self._over.wait(self._rng.random() * 0.12):
                if processes := self._processes():
                    self._once(self._rng.choice(processes), processes[0])
        except Exception as error:  # a thread's exception would only be printed
            self.trouble = f"{type(error).__name__}: {error}"

    def _ask(self, *words: str, interrupt: float | None = None) -> subprocess.CompletedProcess[str]:
        command = [str(common.overspill_binary()), *words]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            try:
                if interrupt is not None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(interrupt)
                    if process.returncode is None:
                        process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                raise Failure(f"no answer in two minutes: {' '.join(words)}") from None
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def _processes(self) -> list[int]:
        """The program's process and its descendants, without those that are too young to answer."""
        stat = self._ask("stat", self._name, "--json")
        if stat.returncode:
            return []
        found = [int(json.loads(stat.stdout)["pid"])]
        parents = {}
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError):
                parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def _once(self, pid: int, program: int) -> None:
        swaps = self._ask("swaps", str(pid), "--json")
        if swaps.returncode:
            return  # it has ended, or is too young
        devices = [json.loads(line) for line in swaps.stdout.splitlines()]
        writable = [d["device"] for d in devices if d["state"] != "inherited"]
        place = self._rng.choice(self._places)
        tally = self._tally
        if str(place) in writable and (len(writable) > 1 or self._rng.random() < 0.1):
            interrupt = self._rng.random() * 0.05 if self._rng.randrange(INTERRUPTED) == 0 else None
            off = self._ask("swapoff", str(pid), str(place), interrupt=interrupt)
            if done := DONE.search(off.stdout):
                tally.swapoffs += 1
                tally.in_children += pid != program
                tally.moved += size_mib(done[1])
                tally.into_memory += size_mib(done[2])
            elif off.returncode == 128 + signal.SIGINT or interrupt is not None:
                tally.interrupted += 1
            else:
                tally.refusals[re.sub(r"^.*?: ", "", off.stderr.strip().removeprefix("overspill: "))] += 1
        elif str(place) not in writable:
            align = ",align=extents" if self._rng.random() < 0.3 else ""
            on = self._ask("swapon", str(pid), f"file:{place},prio={self._rng.randint(-3, 3)}{align}")
            tally.swapons += on.returncode == 0


def stress_ng(launcher: Launcher, work: Path, _size: int, output: Path, timeout: float) -> Finished:
    """Two processes that write and verify 400 MB."""
    finished, _ = soak.stress_ng(launcher, work, "all", STRESS_SECONDS, timeout)
    output.write_text("verified\n")
    return finished


@dataclass(frozen=True)
class Subject:
    """One program."""

    name: str
    size: int
    budget: int | None
    """In bytes; None: half of its peak."""
    prepare: Callable[[Path, int], object]
    execute: Callable[[Launcher, Path, int, Path, float], Finished]


def subjects() -> list[Subject]:
    """The four of them."""
    known = {program.name: program for program in programs.programs("quick")}
    chosen = [known["sort"], known["sqlite3"], known["redis"]]
    found = [Subject(p.name, p.sizes[0], None, p.prepare, p.execute) for p in chosen]
    return [*found, Subject("stress-ng", 0, STRESS_BUDGET, lambda _work, _size: None, stress_ng)]


def judge(finished: Finished, launcher: Launcher, expected: Path, output: Path) -> None:
    """Raise a Failure unless the run gave what it gives without Overspill."""
    if why := finished.complaint():
        raise Failure(why, finished)
    if (offset := common.first_difference(expected, output)) is not None:
        raise Failure(f"the output differs at byte {offset} ({expected} against {output})", finished)
    stats = launcher.stats()
    if wrong := [f"{key} {stats[key]}" for key in LOST if stats[key]]:
        raise Failure(f"the pager counted {', '.join(wrong)}", finished)


def agitate(subject: Subject, directory: Path, wanted: int, rng: random.Random) -> Tally:
    """Run a program until it has seen `wanted` swapoffs."""
    tally = Tally()
    subject.prepare(directory, subject.size)
    expected, output = directory / "expected", directory / "output"
    baseline = subject.execute(Launcher(directory / "swap-0"), directory, subject.size, expected, TIMEOUT_SECONDS)
    if why := baseline.complaint():
        raise Failure(f"without Overspill: {why}", baseline)
    places = [directory / f"swap-{number}" for number in range(PLACES)]
    for place in places:
        place.mkdir(exist_ok=True)
    budget = subject.budget or baseline.peak_bytes // 2 // MIB * MIB
    while tally.swapoffs < wanted:
        if tally.runs == RUNS_MAX:
            raise Failure(f"only {tally.swapoffs} swapoffs in {tally.runs} runs: {tally}")
        name = f"swapoffs-{os.getpid()}-{subject.name}-{tally.runs}"[:32]
        engine = ("io_uring", "psync")[tally.runs % 2]
        launcher = Launcher(places[0], budget, None, ("--swap", str(places[1]), "--name", name, "--engine", engine))
        agitator = Agitator(name, places, rng, tally)
        agitator.start()
        try:
            finished = subject.execute(launcher, directory, subject.size, output, TIMEOUT_SECONDS)
        finally:
            agitator.stop()
        tally.runs += 1
        tally.seconds += finished.seconds
        if agitator.trouble:
            raise Failure(agitator.trouble, finished)
        judge(finished, launcher, expected, output)
        if left := [path for place in places for path in place.iterdir()]:
            raise Failure(f"swap files are left: {left}")
        print(f"      {subject.name}, run {tally.runs} with {engine}: {tally.swapoffs} swapoffs so far", flush=True)
    return tally


def table(tallies: dict[str, Tally], arguments: argparse.Namespace) -> str:
    """The table of bench/RESULTS-swapoff-soak.md."""
    load = ", ".join(f"{number:.1f}" for number in os.getloadavg())
    rows = [
        f"| {name} | {t.runs} | {t.seconds:.0f} | {t.swapoffs} | {t.in_children} | {t.interrupted} | {t.swapons} "
        f"| {t.moved:.0f} | {t.into_memory:.0f} |"
        for name, t in tallies.items()
    ]
    refusals = sum((t.refusals for t in tallies.values()), collections.Counter[str]())
    notes = "".join(f"\n- {count} x: {why}" for why, count in refusals.most_common())
    return f"""# swapoffs under real programs

`scripts/swapoff_soak.py --swapoffs {arguments.swapoffs} --seed {arguments.seed}` on {datetime.date.today()}, Linux {platform.release()}, \
{os.cpu_count()} CPUs, load {load} at the end. File devices come and go at random moments, both engines by turns; every output was the \
same, byte for byte, as without Overspill, and no page was lost or damaged.

| program | runs | seconds | swapoffs | of these in forked processes | interrupted | swapons | MiB to other devices | MiB into memory |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
{chr(10).join(rows)}

{sum(t.swapoffs for t in tallies.values())} swapoffs in all. Refused, and with which words:
{notes or chr(10) + "- none"}
"""


def main() -> int:
    """All programs, one after the other."""
    names = [subject.name for subject in subjects()]
    parser = argparse.ArgumentParser(description="Take swap devices off under real programs.")
    parser.add_argument("--swapoffs", type=int, default=200, help="so many in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=names, help="this program (may be repeated)")
    parser.add_argument("--keep", action="store_true", help="keep the work directory")
    parser.add_argument("--table", type=Path, help="write a table for bench/ to this file")
    arguments = parser.parse_args()
    common.end_on_signals()
    if why := common.cannot_page():
        sys.exit(why)
    chosen = [subject for subject in subjects() if not arguments.only or subject.name in arguments.only]
    tallies: dict[str, Tally] = {}
    failed = 0
    with common.work_directory(arguments.keep) as work:
        for subject in chosen:
            directory = work / subject.name
            directory.mkdir()
            wanted = -(-arguments.swapoffs // len(chosen))
            rng = random.Random(f"{arguments.seed}-{subject.name}")
            start = time.monotonic()
            try:
                tallies[subject.name] = agitate(subject, directory, wanted, rng)
            except Failure as failure:
                failed += 1
                print(f"FAIL  {subject.name}: {failure}", flush=True)
                continue
            print(f"ok    {subject.name}: {tallies[subject.name]}, {time.monotonic() - start:.0f} s in all", flush=True)
    print(f"swapoffs: {len(tallies)} passed, {failed} failed")
    if arguments.table and not failed:
        arguments.table.write_text(table(tallies, arguments))
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
