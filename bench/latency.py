#!/usr/bin/env python3
"""How long a thread's faults take while another thread changes the address space: prints the tables of bench/RESULTS-latency.md.

One thread of `bench/src/latency.c` touches random pages of a working set of 127/128 of the budget, under `overspill run`:
nine faults in ten are soft. It is timed alone, and then while another thread does what the case says to memory that
was filled before. The locks' hold times are the difference of two outputs of `overspill stat`.

Usage: bench/latency.py [--memory 256M] [--seconds 5] [--scale 1.0] [--cases LIST] [--place DIR] [--bin DIR] [--write]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

from common import MIB, parse_size, release_directory  # noqa: E402  (found through the path above)

CASES = {
    "unmap": (4096, "unmaps {size}"),
    "discard": (1024, "discards {size}, 256 KiB at a time"),
    "mremap": (2048, "moves {size}, there and back"),
    "fork": (0, "forks every second"),
    "swapoff": (1024, "a swapoff of {size}"),
    "fill": (2048, "fills {size}, which nobody uses again"),
}
"""Each case: the MiB that the other thread handles, and what it does."""

LOCKS = {"map_shared": "`map` shared", "map_exclusive": "`map` exclusive", "core": "`core`"}
HOLD_MARK_US = 50.0
RATIO_MARK = 2.0


def quantile(histogram: dict[int, int], share: float) -> int:
    """The upper end of the histogram's bucket that has this quantile, in nanoseconds."""
    wanted, seen = share * sum(histogram.values()), 0
    for upper, count in sorted(histogram.items()):
        seen += count
        if seen >= wanted:
            return upper
    return 0


def holds(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[float]]:
    """For each lock, of the holds between the two: p50, p99, p99.9 and the longest in microseconds; and their number."""
    found = {}
    for lock in LOCKS:
        old = before["lock_holds"][lock]["histogram_ns"]
        between: dict[int, int] = {}
        for upper, count in after["lock_holds"][lock]["histogram_ns"]:
            # (each `stat` works out the length of a tick again, so the same bucket ends a little earlier or later)
            known = sum(n for u, n in old if abs(u - upper) <= max(1, upper // 32))
            if count > known:
                between[upper] = count - known
        found[lock] = [quantile(between, share) / 1000 for share in (0.5, 0.99, 0.999, 1)] + [sum(between.values())]
    return found


def measure(binary: Path, program: Path, place: Path, memory: int, case: str, other: int, seconds: int) -> dict[str, Any]:
    """One case."""
    name = f"bench-latency-{os.getpid()}"
    directories = [place / "first", place / "second"]
    for directory in directories:
        directory.mkdir(exist_ok=True)
    command: list[str | Path] = [binary, "run", "--name", name, "--memory", str(memory), "--swap", directories[0], "--", program]
    command += [case, str(memory // 128 * 127), str(other), str(seconds)]

    def ask(*words: str | Path) -> str:
        return subprocess.run([binary, *words], check=True, capture_output=True, text=True, timeout=900).stdout

    def stat() -> dict[str, Any]:
        return json.loads(ask("stat", name, "--json"))

    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            stdin, stdout = running.stdin, running.stdout
            assert stdin and stdout

            def go_on(said: str) -> None:
                if (line := stdout.readline()) != f"{said}\n":
                    raise SystemExit(f"{case}: the program said {line!r}, not {said}")

            def answer() -> None:
                stdin.write("go\n")
                stdin.flush()

            go_on("alone")
            start = stat()
            answer()
            go_on("during")
            if case == "swapoff":
                ask("swapon", name, directories[1])
            before = stat()
            answer()
            if case == "swapoff":
                go_on("now")
                ask("swapoff", name, directories[0])
                answer()
            go_on("end")
            after = stat()
            result = json.loads(running.communicate("go\n", timeout=300)[0])
            if running.returncode:
                raise SystemExit(f"{case}: exit status {running.returncode}")
        finally:
            running.kill()
    soft, hard = (before[kind] - start[kind] for kind in ("soft_faults", "hard_faults"))
    at = {lock: f"{held['longest_ns'] / 1000:.1f} us, {held['longest_at']}" for lock, held in after["lock_holds"].items()}
    return result | {"soft": soft / max(1, soft + hard), "alone_holds": holds(start, before), "holds": holds(before, after), "longest": at}


def main() -> int:
    """All cases."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memory", default="256M")
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1, help="of the sizes that the other thread handles")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--place", type=Path, default=REPOSITORY / "bench")
    parser.add_argument("--bin", type=Path, default=release_directory())
    parser.add_argument("--write", action="store_true", help="write RESULTS-latency.md")
    arguments = parser.parse_args()
    binary = (arguments.bin / "overspill").resolve()
    faults, locks, load = [], [], os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="work-latency-", dir=arguments.place) as work:
        program = Path(work) / "latency"
        subprocess.run(["cc", "-O2", "-pthread", "-o", program, REPOSITORY / "bench/src/latency.c"], check=True)
        for case in arguments.cases.split(","):
            mib = round(CASES[case][0] * arguments.scale)
            size = f"{mib / 1024:g} GiB" if mib >= 1024 else f"{mib} MiB"
            label = CASES[case][1].format(size=size)
            r = measure(binary, program, Path(work), parse_size(arguments.memory), case, mib * MIB, arguments.seconds)
            print(json.dumps({"case": case} | r), file=sys.stderr, flush=True)
            for phase in ("alone", "during"):
                p = r[phase]
                us = [f"{p[key] / 1000:.1f}" for key in ("p50_ns", "p99_ns", "p999_ns", "longest_ns")]
                ratio = p["p99_ns"] / max(1, r["alone"]["p99_ns"])
                verdict = f"{ratio:.1f} {'met' if ratio <= RATIO_MARK else 'missed'}" if phase == "during" else ""
                took = f"{r['seconds']:.2f}" if phase == "during" else f"{arguments.seconds}"
                words = [label if phase == "during" else f"{case}: alone, {r['soft']:.0%} soft", took, f"{p['faults']:,}", *us, verdict]
                faults.append(f"| {' | '.join(words)} |")
            for lock, shown in LOCKS.items():
                p50, p99, p999, longest, count = r["holds"][lock]
                verdict = "met" if p999 <= HOLD_MARK_US else "missed"
                idle = r["alone_holds"][lock][2]
                words = [case, shown, f"{count:,}", *(f"{us:.1f}" for us in (p50, p99, p999, longest, idle)), verdict]
                locks.append(f"| {' | '.join(words)} |")
    text = f"""# Faults while the address space changes

How long do a thread's faults take while another thread unmaps, discards, moves, forks, or memory changes hands?

`bench/latency.py --memory {arguments.memory} --seconds {arguments.seconds} --scale {arguments.scale:g}` on {datetime.date.today()}, \
Linux {platform.release()},
{os.cpu_count()} CPUs, load {load:.1f} at the start. Microseconds. A thread that waits for a CPU holds what it holds: on a busy machine the
tails are time slices.

| other thread | seconds | faults | p50 | p99 | p99.9 | longest | p99 to alone (<= {RATIO_MARK:g}) |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |
{chr(10).join(faults)}

Hold times of the locks while the other thread does so, up to a quarter too long. The last column but one: alone.

| case | lock | holds | p50 | p99 | p99.9 | longest | p99.9 alone | p99.9 <= {HOLD_MARK_US:g} |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |
{chr(10).join(locks)}
"""
    print(text)
    if arguments.write:
        (REPOSITORY / "bench" / "RESULTS-latency.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
