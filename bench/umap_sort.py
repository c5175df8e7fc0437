#!/usr/bin/env python3
"""UMap's sort example beside the same access pattern on a region of a file, and on the kernel's mapping: prints a table.

    git clone https://github.com/LLNL/umap && cmake -S umap -B umap/build -DCMAKE_BUILD_TYPE=Release && make -C umap/build
    sudo bench/umap_sort.py umap/build [--size 256] [--memory 64] [--page-sizes 4,64,1024] [--repeats 3]

UMap is not a part of Overspill: its own program `examples/umapsort/umapsort` runs, with its own settings but for the buffer
and the page size. `bench/umap_sort.cpp` is the same on a region. Sizes are in MiB, page sizes of UMap's in KiB. Contenders take
turns. UMap's buffer and the region's budget are the memory, both in a cgroup of that and what the other measurements allow
besides; the mapping runs in a cgroup of the memory and 4 MiB for the program. Seconds count from the first fill until the file has
the result.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "scripts"))

from common import ALLOWANCE_BYTES, MIB, Cgroup, Hierarchy, memory_hierarchy  # noqa: E402

SOURCE = REPOSITORY / "bench" / "umap_sort.cpp"
PROGRAM_BYTES = 4 * MIB
PARTS = ("fill", "sort", "check", "end")
UMAP_PARTS = dict(zip(("INIT", "Sort", "Validate", "TERM"), PARTS, strict=True))
TIMEOUT_SECONDS = 600


def build(place: Path) -> Path:
    """The program for regions and mappings."""
    subprocess.run(["make", "-s", "install-c", f"PREFIX={place}"], cwd=REPOSITORY, check=True)
    program = place / "umap_sort"
    link = [f"-I{place}/include", f"-L{place}/lib", "-loverspill", f"-Wl,-rpath,{place}/lib"]
    command = [os.environ.get("CXX", "c++"), "-std=c++17", "-O3", "-fopenmp", "-o", program, SOURCE, *link]
    subprocess.run(command, check=True)
    return program


def run(hierarchy: Hierarchy, how: str, program: Path, options: argparse.Namespace, file: Path) -> dict[str, float]:
    """One run: seconds of each part."""
    environment, threads = dict(os.environ), str(os.cpu_count())
    if how.startswith("umap"):
        page = int(how.split(":")[1]) * 1024
        environment |= {"UMAP_PAGESIZE": str(page), "UMAP_BUFSIZE": str(options.memory * MIB // page)}
        environment["LD_LIBRARY_PATH"] = str(options.umap / "src" / "umap")
        command = [options.umap / "examples" / "umapsort" / "umapsort", "-f", file, "-p", options.size * MIB // page, "-t", threads]
    else:
        command = [program, how, file, options.size, options.memory, threads]
    limit = options.memory * MIB + (PROGRAM_BYTES if how == "mmap" else ALLOWANCE_BYTES)
    with Cgroup(hierarchy, limit) as cgroup:
        wrapped = cgroup.wrap([str(word) for word in command])
        done = subprocess.run(wrapped, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    file.unlink(missing_ok=True)
    if done.returncode:
        sys.exit(f"{how}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    # after umapsort's "umap INIT took" (its set-up) comes "INIT took" (the fill)
    took = dict(re.findall(r"^(?:umap )?(\w+) (?:took )?([\d.]+)(?: seconds)?$", done.stdout + done.stderr, re.MULTILINE))
    seconds = {UMAP_PARTS.get(name, name): float(value) for name, value in took.items()}
    return {"all": sum(seconds[part] for part in PARTS)} | {part: seconds[part] for part in PARTS}


def main() -> int:
    """All contenders, by turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("umap", type=lambda name: Path(name).resolve(), help="the folder in which UMap was built")
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--memory", type=int, default=64)
    parser.add_argument("--page-sizes", default="4,64,1024")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--place", type=Path, default=REPOSITORY / "target")
    parser.add_argument("--program", type=Path, help="bench/umap_sort.cpp, built")
    options = parser.parse_args()
    hierarchy = memory_hierarchy()
    if isinstance(hierarchy, str):
        sys.exit(hierarchy)
    contenders = ["region", "mmap", *(f"umap:{size}" for size in options.page_sizes.split(","))]
    results: dict[str, list[dict[str, float]]] = {how: [] for how in contenders}
    with tempfile.TemporaryDirectory(dir=options.place) as place:
        program = options.program or build(Path(place))
        for _ in range(options.repeats):
            for how in contenders:
                results[how].append(run(hierarchy, how, program, options, Path(place) / "sorted"))
                print(how, {part: round(value, 2) for part, value in results[how][-1].items()}, flush=True)
    median = {how: {part: statistics.median(run[part] for run in runs) for part in ("all", *PARTS)} for how, runs in results.items()}
    lines = ["| contender | s | runs | fill | sort | check | end | a region is |", "| --- | ---: | --- " + "| ---: " * 5 + "|"]
    for how in contenders:
        runs = ", ".join(f"{result['all']:.1f}" for result in results[how])
        parts = " | ".join(f"{median[how][part]:.2f}" for part in PARTS)
        lines.append(f"| {how} | {median[how]['all']:.2f} | {runs} | {parts} | {median[how]['all'] / median['region']['all']:.2f}x |")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
