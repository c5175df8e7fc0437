"""The programs that bench/run.py runs in less memory than they need: those of people, most of them with many small objects."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from common import REPOSITORY, Failure
from programs import TEST_PROGRAMS, Program, batch, programs

SOURCES = REPOSITORY / "bench" / "objects"


def jobs() -> list[Program]:
    """All of them. Which are installed, `Program.missing` says."""
    return [
        *(program for program in programs("full") if program.name == "sort"),
        batch("python", (1500, None), [sys.executable, TEST_PROGRAMS / "dict_list.py", "SIZE"]),
        batch("fork-pool", (0, None), [sys.executable, SOURCES / "pool.py"]),
        batch("php", (0, None), ["php", SOURCES / "hash.php"]),
        batch("perl", (0, None), ["perl", SOURCES / "hash.pl"]),
        batch("ruby", (0, None), ["ruby", SOURCES / "hash.rb"]),
        compiled(
            "java",
            ["javac", "-d", ".", SOURCES / "Objects.java"],
            ["java", "-XX:+UseSerialGC", "-Xmx1g", "-cp", ".", "Objects"],
        ),
        batch("R", (0, None), ["Rscript", SOURCES / "order.R"]),
        duckdb(),
        compiled("c++", ["c++", "-O2", "-o", "map", SOURCES / "map.cpp"], ["./map"]),
        compiled("haskell", ["ghc", "-O1", "-outputdir", ".", "-o", "map", SOURCES / "map.hs"], ["./map"]),
        batch("lua", (0, None), ["lua5.4", SOURCES / "table.lua"]),
        batch("node", (0, None), ["node", "--max-old-space-size=2000", SOURCES / "map.js"]),
        batch("sqlite", (0, None), ["sqlite3", ":memory:", f".read {SOURCES / 'rows.sql'}"]),
    ]


ALGORITHMS = (
    *("quicksort", "mergesort", "heapsort", "bsearch", "stencil", "transpose", "columns", "matrices", "bfs", "pagerank"),
    *("dijkstra", "zipf", "threads", "hash-join", "lru-cache", "churn", "queue"),
)


def algorithms() -> list[Program]:
    """Textbook algorithms in C++, which run only if they are asked for."""
    compiler = ["c++", "-O2", "-std=c++20", "-pthread", "-o", "algorithms", SOURCES / "algorithms.cpp"]
    return [compiled(name, compiler, ["./algorithms", name]) for name in ALGORITHMS]


def workers() -> Program:
    """Runs only if it is asked for: with too little memory the kernel takes many minutes."""
    return batch("fork-workers", (0, None), [sys.executable, SOURCES / "workers.py"])


def everything() -> list[Program]:
    """Those of people, and those that must be asked for."""
    return [*jobs(), workers(), *algorithms()]


def chosen(names: list[str] | None) -> list[Program]:
    """Those of these names, of which `algorithms` stands for all algorithms; without names those of people."""
    if names is None:
        return jobs()
    wanted = {*names, *(ALGORITHMS if "algorithms" in names else ())}
    return [program for program in everything() if program.name in wanted]


def compiled(name: str, compiler: list[str | Path], command: list[str | Path]) -> Program:
    """A program that is compiled in the working directory first."""

    def prepare(work: Path, _size: int) -> None:
        done = subprocess.run(compiler, cwd=work, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"{compiler[0]}: {done.stderr.strip()}")

    installed = (word for word in map(str, (compiler[0], command[0])) if not word.startswith("./"))  # (that is what is compiled)
    return replace(batch(name, (0, None), command), needs=tuple(installed), prepare=prepare)


def duckdb() -> Program:
    """A Python module, not a command."""
    has_module = importlib.util.find_spec("duckdb") is not None
    run = batch("duckdb", (0, None), [sys.executable, SOURCES / "group.py"])
    return run if has_module else replace(run, needs=("duckdb (Python)",))
