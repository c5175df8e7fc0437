#!/usr/bin/env python3
"""All measurements of Overspill against the kernel's own swap: `make bench`, which writes bench/RESULTS.md.

Ratios count, not seconds: both sides are measured in one run, on one disk, with the same memory. Every repeat runs each
contender once, in turn, and the medians are compared.

    access     one program, the same accesses, 1 GiB over 256 MiB: kernel swap, `overspill run`, a Region
    programs   real programs, most of them with many small objects, at shares of their peak: kernel swap on the disk and
               on zram in a cgroup, `overspill run`, the same without compressed memory in front of the disk
    fits       the programs under Overspill with more than enough memory, which shows the cost of `overspill run` itself
    startup    `overspill run -- true` against `true`
    faults     the fault-costs program, when it has been built

The kernel's side needs root. The script makes a swap file on the same disk, which only a memory cgroup uses, and removes
it at the end, also after an error or a signal; after a SIGKILL the next start removes it. Overspill runs in a cgroup of
its budget + 48 MiB, so that it cannot profit from the page cache.

With --only one part is measured and printed, and RESULTS.md stays as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import mmap
import os
import platform
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

import common  # noqa: E402  (found through the path above)
import jobs  # noqa: E402
import programs  # noqa: E402
from common import ALLOWANCE_BYTES, MIB, Cgroup, Failure, Hierarchy, Launcher, mib  # noqa: E402
from kernel_swap import KERNEL_SWAP_BYTES, KernelSwap, no_kernel_swap, no_zram, on_zram  # noqa: E402

RESULTS = REPOSITORY / "bench" / "RESULTS.md"

KERNEL_TIMEOUT_SECONDS = 300.0
"""A program under the kernel's swap that runs longer than this counts as not ending."""

RUN_TIMEOUT_SECONDS = 900.0

FITS_BYTES = 2 << 30
"""A budget that none of the programs reaches."""

MARKS = {
    ("run", "sequential"): 3.0,
    ("run", "random"): 0.9,
    ("run", "hot-scan"): 1.5,
    ("run", "burst"): 1.3,
    ("region", "sequential"): 3.0,
    ("region", "random"): 1.1,
    ("region", "hot-scan"): 1.5,
}
"""Least speed as a multiple of the kernel's."""

PROGRAM_MARK = 0.9
"""Each program's least speed as a multiple of the kernel's on the disk."""

PROGRAMS_MARK = 1.5
"""The same for the geometric mean of all programs."""

FITS_MARK_PERCENT = 3.0
STARTUP_MARK_MS = 30.0
METADATA_MARK_PERCENT = 1.0


# ---- the bench ------------------------------------------------------------------------------------------------


@dataclass
class Bench:
    """What all parts need."""

    work: Path
    hierarchy: Hierarchy | str
    no_kernel: str | None
    """Why the kernel's side cannot be measured, if it cannot."""
    repeats: int
    size: int
    memory: int
    shares: list[float] = field(default_factory=list)
    """The memory of the programs, as shares of their peak."""
    programs: list[str] | None = None
    """Names of the only ones to run."""
    lines: list[str] = field(default_factory=list)
    """The Markdown so far."""

    def say(self, text: str) -> None:
        """Show progress."""
        print(f"[{datetime.datetime.now():%H:%M:%S}] {text}", flush=True)

    def write(self, *lines: str) -> None:
        """Add to the result and show it."""
        self.lines += lines
        print("\n".join(lines), flush=True)

    def table(self, head: list[str], rows: list[list[str]]) -> None:
        """Add a Markdown table."""
        self.write("", *("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]), "")

    @contextlib.contextmanager
    def under_kernel(self, limit: int) -> Iterator[Launcher]:
        """Memory limited by a cgroup, the rest in the kernel's swap."""
        assert isinstance(self.hierarchy, Hierarchy)
        with KernelSwap(self.work), Cgroup(self.hierarchy, limit, kernel_swap=True) as cgroup:
            yield Launcher(self.work / "swap", cgroup=cgroup)

    @contextlib.contextmanager
    def under_zram(self, limit: int) -> Iterator[Launcher]:
        """Memory limited by a cgroup, the rest in zram, whose own memory the kernel charges to nobody."""
        with on_zram(self.hierarchy, limit, KERNEL_SWAP_BYTES, "lz4") as (_, cgroup):
            yield Launcher(self.work / "swap", cgroup=cgroup)

    @contextlib.contextmanager
    def under_overspill(self, budget: int, options: tuple[str, ...] = ()) -> Iterator[Launcher]:
        """Memory limited by Overspill, in a cgroup that keeps it from using more (where there are cgroups)."""
        with contextlib.ExitStack() as stack:
            cgroup = None
            if isinstance(self.hierarchy, Hierarchy):
                cgroup = stack.enter_context(Cgroup(self.hierarchy, budget + ALLOWANCE_BYTES))
            yield Launcher(self.work / "swap", budget, cgroup, options)


@contextlib.contextmanager
def at_work() -> Iterator[Path]:
    """The directory for the measured programs, removed afterwards. Ends the script with a message where nothing can be paged."""
    common.end_on_signals()
    if why := common.cannot_page():
        sys.exit(why)
    work = REPOSITORY / "bench" / "work"
    work.mkdir(exist_ok=True)
    lock = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("another measurement is under way: two at a time would share the disk, and their files; wait for its end")
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        os.close(lock)


def verdict(ratio: float | None, mark: float | None) -> str:
    """A speed ratio, and whether it meets its mark."""
    if ratio is None:
        return ""
    if mark is None:
        return f"{ratio:.2f}x"
    return f"{ratio:.2f}x ({'met' if ratio >= mark else 'missed'}: {mark:g}x)"


# ---- access ---------------------------------------------------------------------------------------------------

Samples = dict[str, list[dict[str, float]]]
"""By pattern, what each repeat printed."""


def access_once(bench: Bench, launcher: Launcher, command: list[str | Path], samples: Samples) -> None:
    """Run the patterns once; adds to `samples`."""
    output = bench.work / "access.jsonl"
    finished = common.run(launcher.wrap(command), bench.work, RUN_TIMEOUT_SECONDS, stdout=output)
    if why := finished.complaint():
        raise Failure(why, finished)
    for line in output.read_text().splitlines():
        sample = json.loads(line)
        # bench-region adds a line of its counters.
        if "pattern" in sample:
            samples.setdefault(sample["pattern"], []).append(sample)


def median(samples: Samples | None, pattern: str, key: str = "ns_per_access") -> float | None:
    """Over the repeats; nothing where there are none."""
    values = [sample[key] for sample in (samples or {}).get(pattern, []) if key in sample]
    return statistics.median(values) if values else None


def speed(kernel: Samples | None, own: Samples | None, pattern: str) -> float | None:
    """How many times as fast as the kernel, where both were measured."""
    before, after = median(kernel, pattern), median(own, pattern)
    return before / after if before and after else None


def cell(samples: Samples | None, pattern: str) -> str:
    """Median microseconds per access and the spread; for the mixed patterns also each of the two streams."""
    middle = median(samples, pattern)
    if samples is None or middle is None:
        return "not measured"
    values = [sample["ns_per_access"] / 1000 for sample in samples[pattern]]
    text = f"{middle / 1000:.2f} ({min(values):.2f} to {max(values):.2f})"
    hot, scan = median(samples, pattern, "ns_per_hot_access"), median(samples, pattern, "ns_per_scan_access")
    return text if hot is None or scan is None else f"{text}; hot {hot / 1000:.2f}, scan {scan / 1000:.2f}"


def measure_access(bench: Bench) -> None:
    """The same accesses under the kernel, under `overspill run` and on a Region."""
    access, region = (common.release_directory() / name for name in ("access", "bench-region"))
    size = ["--size", f"{bench.size // MIB}M"]
    region_options = ["--memory", f"{bench.memory // MIB}M", "--swap", str(bench.work)]
    kernel: Samples | None = None if bench.no_kernel else {}
    run: Samples = {}
    in_thread: Samples | None = {} if region.exists() else None
    metadata = []
    for repeat in range(bench.repeats):
        bench.say(f"access, repeat {repeat + 1} of {bench.repeats}")
        if kernel is not None:
            with bench.under_kernel(bench.memory) as launcher:
                access_once(bench, launcher, [access, *size], kernel)
        with bench.under_overspill(bench.memory) as launcher:
            access_once(bench, launcher, [access, *size], run)
            stats = launcher.stats()
            metadata.append(float(stats["metadata_bytes"]))
        if in_thread is not None:
            with bench.under_overspill(bench.memory) as launcher:
                # The program sets the budget itself: only the cgroup is needed here.
                plain = Launcher(launcher.swap, cgroup=launcher.cgroup)
                access_once(bench, plain, [region, *size, *region_options], in_thread)

    bench.write(
        f"## The same accesses, {mib(bench.size)} over {mib(bench.memory)}",
        "",
        f"Microseconds per access of one thread, median of {bench.repeats} (least to most); one access touches one "
        "page. Ratios are speed, as a multiple of the kernel's.",
    )
    rows = []
    for pattern in run:
        rows.append(
            [
                pattern,
                cell(kernel, pattern),
                cell(run, pattern),
                verdict(speed(kernel, run, pattern), MARKS.get(("run", pattern))),
                cell(in_thread, pattern),
                verdict(speed(kernel, in_thread, pattern), MARKS.get(("region", pattern))),
            ]
        )
    bench.table(["pattern", "kernel swap", "`overspill run`", "ratio", "Region, in-thread", "ratio"], rows)
    share = 100 * statistics.median(metadata) / bench.size
    bench.write(
        f"The pager's metadata under `overspill run`: {share:.2f} % of the memory it manages "
        f"({'met' if share <= METADATA_MARK_PERCENT else 'missed'}: {METADATA_MARK_PERCENT:g} %).",
        "",
    )
    if kernel is None:
        bench.write(f"The kernel's side was not measured: {bench.no_kernel}.", "")


# ---- programs -------------------------------------------------------------------------------------------------


def timed(bench: Bench, program: programs.Program, launcher: Launcher, timeout: float) -> tuple[float | None, str]:
    """Seconds of one run, and their text; no seconds when it did not end well."""
    output = bench.work / "output"
    try:
        finished = program.execute(launcher, bench.work, program.sizes[0], output, timeout)
    except Failure as failure:
        return None, str(failure).splitlines()[0]
    if launcher.cgroup and launcher.cgroup.oom_kills():
        return None, f"OOM-killed after {finished.seconds:.0f} s"
    if why := finished.complaint():
        return None, why
    return finished.seconds, f"{finished.seconds:.1f} s"


def wanted(profile: str, names: list[str]) -> list[programs.Program]:
    """Programs by name that can run here."""
    return [program for program in programs.programs(profile) if program.name in names and not program.missing()]


class Contender:
    """One way to run a program in less memory than it needs, and what came of it."""

    def __init__(self, launch: Callable[[], contextlib.AbstractContextManager[Launcher]], timeout: float) -> None:
        self._launch = launch
        self._timeout = timeout
        self._seconds: list[float] = []
        self._words: str | None = None

    def run(self, bench: Bench, program: programs.Program) -> None:
        """Once; no more after a run that did not end well: it may take minutes to show it."""
        if self._words is None:
            with self._launch() as launcher:
                seconds, words = timed(bench, program, launcher, self._timeout)
            if seconds is None:
                self._words = words
            elif common.first_difference(bench.work / "expected", bench.work / "output") is not None:
                self._words = "WRONG OUTPUT"
            else:
                self._seconds.append(seconds)

    def median(self) -> float | None:
        """Seconds, if all runs ended well."""
        return None if self._words or not self._seconds else statistics.median(self._seconds)

    def cell(self, kernel: float | None = None) -> str:
        """Seconds, and the speed as a multiple of the kernel's if that is given; or why there are none."""
        middle = self.median()
        if middle is None:
            return self._words or "not measured"
        ratio = f" ({verdict(kernel / middle, PROGRAM_MARK)})" if kernel else ""
        return f"{middle:.1f}{ratio}"


def measure_programs(bench: Bench) -> None:
    """Real programs at shares of their peak."""
    rows = []
    ratios: dict[str, list[float]] = {"paged": [], "disk alone": []}
    why_no_zram = bench.no_kernel or no_zram()
    for program in jobs.chosen(bench.programs):
        if why := program.missing():
            bench.say(f"{program.name} is left out: {why}")
            continue
        program.prepare(bench.work, program.sizes[0])
        plain = program.execute(
            Launcher(bench.work / "swap"), bench.work, program.sizes[0], bench.work / "expected", RUN_TIMEOUT_SECONDS
        )
        if why := plain.complaint():
            raise Failure(why, plain)
        for share in bench.shares:
            budget = int(plain.peak_bytes * share) // MIB * MIB
            contenders = {
                "kernel": Contender(lambda: bench.under_kernel(budget), KERNEL_TIMEOUT_SECONDS),
                "zram": Contender(lambda: bench.under_zram(budget), KERNEL_TIMEOUT_SECONDS),
                "paged": Contender(lambda: bench.under_overspill(budget), RUN_TIMEOUT_SECONDS),
                "disk alone": Contender(lambda: bench.under_overspill(budget, ("--no-compress",)), RUN_TIMEOUT_SECONDS),
            }
            unable = {"kernel": bench.no_kernel, "zram": why_no_zram}
            for repeat in range(bench.repeats):
                bench.say(f"{program.name} at {share:.0%}, repeat {repeat + 1} of {bench.repeats}")
                for name, contender in contenders.items():
                    if not unable.get(name):
                        contender.run(bench, program)
            kernel = contenders["kernel"].median()
            for name, of_program in ratios.items():
                if kernel and (own := contenders[name].median()):
                    of_program.append(kernel / own)
            cells = [contenders["kernel"].cell(), contenders["zram"].cell()]
            cells += [contenders[name].cell(kernel) for name in ratios]
            rows.append([program.name, f"{plain.seconds:.1f}", f"{share:.0%} of {mib(plain.peak_bytes)}", *cells])
    bench.write(
        "## Real programs in less memory than they need",
        "",
        f"Seconds, median of {bench.repeats}, and the speed as a multiple of the kernel's on the disk. The kernel has a memory cgroup of "
        f"the budget; after {KERNEL_TIMEOUT_SECONDS:.0f} s a program counts as not ending. zram's own memory (LZ4) comes on top of the "
        "cgroup, so there is more memory in that column than in the others.",
    )
    bench.table(["program", "alone", "memory", "kernel, disk", "kernel, zram", "`overspill run`", "`--no-compress`"], rows)
    for (name, values), mark in zip(ratios.items(), (PROGRAMS_MARK, None), strict=True):
        if values:
            mean = verdict(statistics.geometric_mean(values), mark)
            bench.write(f"Geometric mean over the kernel's disk, where both end, {name}: {mean}.", "")
    for name, why in (("The kernel's side", bench.no_kernel), ("zram", why_no_zram)):
        if why:
            bench.write(f"{name} was not measured: {why}.", "")


def measure_fits(bench: Bench) -> None:
    """What Overspill costs a program that does not need it."""
    # The compressors have the sizes of the quick profile: minutes of computing would show the overhead no better.
    chosen = wanted("full", ["sort", "python", "sqlite3", "gcc"]) + wanted("quick", ["zstd", "xz", "redis"])
    rows = []
    for program in chosen:
        program.prepare(bench.work, program.sizes[0])
        without: list[float] = []
        under: list[float] = []
        for repeat in range(bench.repeats + 1):
            bench.say(f"{program.name} with enough memory, repeat {repeat + 1} of {bench.repeats + 1}")
            for samples, memory in ((without, None), (under, FITS_BYTES)):
                launcher = Launcher(bench.work / "swap", memory)
                seconds, words = timed(bench, program, launcher, RUN_TIMEOUT_SECONDS)
                if seconds is None:
                    raise Failure(f"{program.name}: {words}")
                samples.append(seconds)
        # The first pair warms the page cache for the others.
        before, after = statistics.median(without[1:]), statistics.median(under[1:])
        percent = 100 * (after / before - 1)
        met = "met" if percent <= FITS_MARK_PERCENT else "missed"
        rows.append(
            [
                program.name,
                f"{before:.2f} s ({min(without[1:]):.2f} to {max(without[1:]):.2f})",
                f"{after:.2f} s ({min(under[1:]):.2f} to {max(under[1:]):.2f})",
                f"{percent:+.1f} % ({met}: {FITS_MARK_PERCENT:g} %)",
            ]
        )
    bench.write(
        "## Overhead when everything fits",
        "",
        f"`overspill run --memory {mib(FITS_BYTES)}`, which none of the programs reaches; median of {bench.repeats} "
        "(least to most).",
    )
    bench.table(["program", "without", "`overspill run`", "overhead"], rows)


def measure_startup(bench: Bench) -> None:
    """The shortest program there is."""
    commands: dict[str, list[str | Path]] = {
        "true": ["true"],
        "run": [common.overspill_binary(), "run", "--memory", "64M", "--swap", bench.work, "--", "true"],
    }
    samples: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(20):
        for name, command in commands.items():
            begun = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            samples[name].append(1000 * (time.perf_counter() - begun))
    plain, paged = statistics.median(samples["true"]), statistics.median(samples["run"])
    cost = paged - plain
    bench.write(
        "## Start-up",
        "",
        f"`true` takes {plain:.1f} ms, `overspill run --memory 64M -- true` {paged:.1f} ms (medians of 20): "
        f"{cost:.1f} ms more ({'met' if cost <= STARTUP_MARK_MS else 'missed'}: {STARTUP_MARK_MS:g} ms).",
        "",
    )


def measure_faults(bench: Bench) -> None:
    """The costs of single faults: the fault-costs program prints a table of its own."""
    program = common.release_directory() / "fault-costs"
    bench.write("## Single faults", "")
    if not program.exists():
        bench.write(f"Not measured: {program.name} has not been built.", "")
        return
    bench.say("fault costs")
    output = bench.work / "faults.md"
    finished = common.run([program], bench.work, RUN_TIMEOUT_SECONDS, stdout=output)
    if why := finished.complaint():
        raise Failure(why, finished)
    bench.write(*output.read_text().splitlines(), "")


# ---- head -----------------------------------------------------------------------------------------------------


def disk_speed(directory: Path) -> str:
    """Latency of single 4 KiB reads and of 128 KiB reads in order, past the page cache."""
    path = directory / "disk-speed"
    size, block, large = 512 * MIB, 4096, 128 << 10
    noise = os.urandom(MIB)
    with path.open("wb") as file:
        for _ in range(size // MIB):
            file.write(noise)
        os.fsync(file.fileno())
    handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, large)
        rng = random.Random(1)
        singles = []
        for _ in range(4000):
            offset = rng.randrange(size // block) * block
            begun = time.perf_counter()
            os.preadv(handle, [memoryview(buffer)[:block]], offset)
            singles.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        for offset in range(0, size, large):
            os.preadv(handle, [buffer], offset)
        in_order = (time.perf_counter() - begun) / (size // block)
    finally:
        os.close(handle)
        path.unlink()
    return (
        f"{1e6 * statistics.median(singles):.0f} us for a random 4 KiB read at depth 1, "
        f"{1e6 * in_order:.1f} us per page at 128 KiB in order (O_DIRECT)"
    )


def file_system(directory: Path) -> str:
    """Type of the file system that holds `directory`."""
    return subprocess.run(
        ["stat", "--file-system", "--format=%T", directory], capture_output=True, text=True, check=True
    ).stdout.strip()


def setting(path: str) -> str:
    """A kernel setting as it stands."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def write_head(bench: Bench, parts: list[str]) -> None:
    """Where, when and with what."""
    version = subprocess.run([common.overspill_binary(), "--version"], capture_output=True, text=True).stdout.strip()
    bench.say("measuring the disk")
    bench.write(
        "# Measurements",
        "",
        "The tables are made by `make bench` (bench/run.py), all in one run: do not edit them. Ratios count, seconds are this machine's.",
        "",
        f"- date: {datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC",
        f"- command: `bench/{shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])}`, parts: {', '.join(parts)}",
        f"- Overspill: {version}",
        f"- processor: {common.cpu_model()}",
        f"- kernel: {platform.release()}; "
        f"transparent huge pages {setting('/sys/kernel/mm/transparent_hugepage/enabled')}, off for the memory touched; "
        f"vm.swappiness {setting('/proc/sys/vm/swappiness')}, "
        f"vm.page-cluster {setting('/proc/sys/vm/page-cluster')}",
        f"- disk: {file_system(bench.work)}; {disk_speed(bench.work)}",
        f"- load when started: {os.getloadavg()[0]:.2f} (1 minute)",
        "",
    )


PARTS: dict[str, Callable[[Bench], None]] = {
    "access": measure_access,
    "programs": measure_programs,
    "fits": measure_fits,
    "startup": measure_startup,
    "faults": measure_faults,
}


def shares(text: str) -> list[float]:
    """Numbers between 0 and 1, separated by commas."""
    values = [float(word) for word in text.split(",")]
    if not all(0 < value < 1 for value in values):
        raise argparse.ArgumentTypeError(f"{text}: each share must be between 0 and 1, as 0.75,0.5")
    return values


def main() -> int:
    """Read the command line; clean up afterwards."""
    parser = argparse.ArgumentParser(description="Measure Overspill beside the kernel's swap.")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part (may be repeated); only printed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--size", type=common.parse_size, default=1 << 30, help="memory touched by access [1G]")
    parser.add_argument("--memory", type=common.parse_size, default=256 * MIB, help="memory to do it in [256M]")
    parser.add_argument("--at", type=shares, default=[0.75, 0.5], help="memory of the programs, shares of their peak [0.75,0.5]")
    names = [*(job.name for job in jobs.everything()), "algorithms"]
    parser.add_argument("--program", action="append", choices=names, help="this one (may be repeated); `algorithms`: all of those")
    arguments = parser.parse_args()

    with at_work() as work:
        return measure(arguments, work)


def measure(arguments: argparse.Namespace, work: Path) -> int:
    """Measure the parts that the command line names, with `work` for files; write RESULTS.md when they are all."""
    hierarchy = common.memory_hierarchy()
    no_kernel = no_kernel_swap(work, hierarchy)
    sizes = (arguments.size, arguments.memory)
    bench = Bench(work, hierarchy, no_kernel, arguments.repeats, *sizes, arguments.at, arguments.program)
    if no_kernel:
        bench.say(f"the kernel's side is left out: {no_kernel}")
    parts = arguments.only or list(PARTS)
    failed = False
    write_head(bench, parts)
    for part in parts:
        try:
            PARTS[part](bench)
        except Failure as failure:
            failed = True
            quoted = [f"    {line}" for line in str(failure).splitlines()]
            bench.write(f"## {part}", "", "This part failed:", "", *quoted, "")
    if not arguments.only:
        RESULTS.write_text("\n".join(bench.lines))
        bench.say(f"written: {RESULTS.relative_to(REPOSITORY)}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
