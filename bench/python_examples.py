#!/usr/bin/env python3
"""The examples of the Python package next to numpy.memmap, in the same memory: writes bench/RESULTS-python.md.

Each example (python/examples) runs in a memory cgroup of its memory plus ALLOWANCE. With Overspill the pager's budget is the
memory; with numpy.memmap the page cache gets what the interpreter leaves of both. Repeats run each contender once, in turn.
Needs root, the release build of the module (`cargo build --release -p overspill-python`) and about 2 GB on the disk of bench/.

    bench/python_examples.py                                all examples, a quarter of an hour
    bench/python_examples.py --only gather --repeats 1      one; prints, and leaves RESULTS-python.md alone
    bench/python_examples.py --samples FILE --only gather   in parts: adds to the file, and writes when it has all examples
    bench/python_examples.py --plot plot.svg --memory 64M   time over memory, each example at 1 to 1/8 of its data; one run of each
                                                            (samples of its own; ten minutes)
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import site
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

import common  # noqa: E402  (found through the path above)
import python_tests  # noqa: E402
from common import MIB, Cgroup, Failure, Hierarchy  # noqa: E402

RESULTS = REPOSITORY / "bench" / "RESULTS-python.md"
EXAMPLES = REPOSITORY / "python" / "examples"

ALLOWANCE = 64 * MIB
"""For the interpreter, NumPy, what the examples keep in ordinary memory, and the pager's own tables and buffers."""

MARKS = {"gather": 1.5, "transpose": 1.5, "pagerank": 1.0, "kmeans": 1.0}
"""Least speed as a multiple of numpy.memmap's."""

SIDES = {
    "numpy.memmap": ["--memmap"],
    "overspill.memmap": ["--files", "--delivery=in-thread"],
    "in-thread": ["--delivery=in-thread"],
    "threads": ["--delivery=threads"],
}

PLOTTED = {"numpy.memmap": "numpy.memmap", "in-thread": "Overspill"}
"""What plots compare, and its name there."""

TIMEOUT_SECONDS = 900.0

CUT_SECONDS = 60.0
"""A run for a plot is stopped after this time, data made and all."""


class Cut(Failure):
    """A run that took too long."""


@dataclass
class Bench:
    python: Path
    work: Path
    hierarchy: Hierarchy

    def run(self, example: str, side: str, memory: int, scale: float, timeout: float = TIMEOUT_SECONDS) -> tuple[float, float]:
        """Runs an example once. Returns the seconds and the result.

        Raises Cut after `timeout` seconds.
        """
        output = self.work / "output"
        options = [f"--memory={memory // MIB}", f"--scale={scale:g}", "--directory", str(self.work), *SIDES[side]]
        with Cgroup(self.hierarchy, memory + ALLOWANCE) as cgroup:
            command = cgroup.wrap([self.python, EXAMPLES / f"{example}.py", *options])
            settings = {"PYTHONPATH": str(python_tests.SITE), "PYTHONDONTWRITEBYTECODE": "1"}
            finished = common.run(command, self.work, timeout, stdout=output, extra=settings)
        if finished.timed_out:
            raise Cut(f"{example}, {side}: not done after {timeout:.0f} s", finished)
        if why := finished.complaint():
            raise Failure(why, finished)
        figures = json.loads(output.read_text())
        print(f"[{datetime.datetime.now():%H:%M:%S}] {example}, {side}, {memory // MIB} MiB: {figures['seconds']:.1f} s", flush=True)
        return figures["seconds"], figures["result"]


Samples = dict[str, dict[str, list[float]]]
"""Seconds by example and side, of each repeat."""


def measure(bench: Bench, example: str, sides: list[str], memory: int, repeats: int, samples: Samples, file: Path | None) -> None:
    """Adds to `samples`, and keeps them in the file."""
    results = set()
    for _ in range(repeats):
        for side in sides:
            took, result = bench.run(example, side, memory, 4)
            samples.setdefault(example, {}).setdefault(side, []).append(took)
            results.add(result)
            if file:
                file.write_text(json.dumps(samples))
    if len(results) != 1:
        raise Failure(f"{example} has different results: {results}")


def row(example: str, seconds: dict[str, list[float]]) -> list[str]:
    """A row of the table."""
    cells = [example]
    base = statistics.median(seconds["numpy.memmap"])
    for side in SIDES:
        took = seconds[side]
        middle = statistics.median(took)
        text = f"{middle:.1f} ({min(took):.1f} to {max(took):.1f})"
        cells.append(text if side == "numpy.memmap" else f"{text}, {base / middle:.2f}x")
    speed = base / min(statistics.median(seconds[side]) for side in ("overspill.memmap", "in-thread"))
    return [*cells, f"{MARKS[example]:g}x, {'met' if speed >= MARKS[example] else 'missed'}"]


def table(samples: Samples, memory: int) -> str:
    commit = subprocess.run(["git", "-C", REPOSITORY, "describe", "--always", "--dirty"], capture_output=True, text=True).stdout.strip()
    repeats = " or ".join(sorted({str(len(took)) for sides in samples.values() for took in sides.values()}))
    rows = [row(example, samples[example]) for example in MARKS if example in samples]
    lines = [
        "# NumPy arrays of Overspill next to numpy.memmap",
        "",
        f"`bench/python_examples.py --memory {memory // MIB}M` on {datetime.date.today()}, commit {commit}, Linux "
        f"{platform.release()}, {common.cpu_model()}.",
        "",
        f"Seconds for the jobs of [python/examples](../python/examples), median of {repeats} runs (least to most). The data takes "
        f"{4 * memory // MIB} MiB, the memory is {memory // MIB} MiB. All run in a cgroup of that and {ALLOWANCE // MIB} MiB more; the "
        "page cache under numpy.memmap may use all of it. Ratios are speed as a multiple of numpy.memmap's. Arrays of "
        "overspill.memmap are files, and the others lie in swap. Each mark is for the better of the two with in-thread "
        "delivery, which needs no privileges.",
        "",
    ]
    head = ["example", "numpy.memmap", "overspill.memmap", "Overspill, in-thread", "Overspill, threads", "mark"]
    lines += ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


Points = dict[str, dict[str, list[tuple[float, float | None]]]]
"""By example and side: memory as a part of the data, and seconds, or nothing for a run that was cut."""


def measure_points(bench: Bench, example: str, data: int, points: Points, file: Path | None) -> None:
    """Runs an example at several sizes of memory. Adds to `points`, and keeps them in the file."""
    points[example] = {side: [] for side in PLOTTED}
    for scale in (1, 2, 4, 8):
        for side, taken in points[example].items():
            seconds = None
            with contextlib.suppress(Cut):
                seconds = bench.run(example, side, data // scale, scale, CUT_SECONDS)[0]
            taken.append((1 / scale, seconds))
    if file:
        file.write_text(json.dumps(points))


def plot(points: Points, data: int, file: Path) -> None:
    """Time over memory. matplotlib is in the environment of the examples, which has the same Python."""
    for packages in (python_tests.VENV / "lib").glob("python*/site-packages"):
        site.addsitedir(str(packages))
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "overspill", "font.size": 8}
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(points), figsize=(2.6 * len(points), 2.4), squeeze=False)
    figure.subplots_adjust(left=0.07, right=0.99, bottom=0.18, top=0.88, wspace=0.25)
    for axis, example in zip(axes[0], [example for example in MARKS if example in points], strict=True):
        for number, (side, taken) in enumerate(points[example].items()):
            color = f"C{number}"
            done = [(at, seconds) for at, seconds in taken if seconds]
            axis.plot([at for at, _ in done], [seconds for _, seconds in done], "o-", color=color, label=PLOTTED[side])
            cut = [at for at, seconds in taken if not seconds]
            axis.plot(cut, [CUT_SECONDS] * len(cut), "^", color=color, fillstyle="none", clip_on=False)
        axis.set(title=example, xlabel="memory / data", xscale="log")
        axis.set_xticks([1 / 8, 1 / 4, 1 / 2, 1], ["1/8", "1/4", "1/2", "1"], minor=False)
        axis.minorticks_off()
        if any(seconds is None for taken in points[example].values() for _, seconds in taken):
            axis.set(yscale="log")
            axis.set_ylim(top=CUT_SECONDS)
        else:
            axis.set_ylim(bottom=0)
    axes[0][0].set_ylabel(f"seconds, {data // MIB} MiB of data")
    axes[0][-1].legend()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MARKS, action="append")
    parser.add_argument("--side", choices=SIDES, action="append")
    parser.add_argument("--memory", type=common.parse_size, default=128 * MIB)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    hierarchy = common.memory_hierarchy()
    if not isinstance(hierarchy, Hierarchy):
        sys.exit(hierarchy)
    common.end_on_signals()
    try:
        python = python_tests.environment(["matplotlib"] if options.plot else [])
        python_tests.package("release")
    except python_tests.Missing as e:
        sys.exit(str(e))
    place = REPOSITORY / "bench" / "work"
    place.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as work:
        bench = Bench(python, Path(work), hierarchy)
        examples = options.only or list(MARKS)
        before = json.loads(options.samples.read_text()) if options.samples and options.samples.exists() else {}
        if options.plot:
            points: Points = before
            for example in examples:
                measure_points(bench, example, 4 * options.memory, points, options.samples)
            plot(points, 4 * options.memory, options.plot)
            return
        samples: Samples = before
        for example in examples:
            measure(bench, example, options.side or list(SIDES), options.memory, options.repeats, samples, options.samples)
        done = {example: sides for example, sides in samples.items() if sides.keys() == SIDES.keys()}
        text = table(done, options.memory)
        print(text)
        if done.keys() == MARKS.keys():
            RESULTS.write_text(text)


if __name__ == "__main__":
    main()
