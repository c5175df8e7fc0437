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


def compiled(name: str, compiler: list[str | Path], command: list[str | Path]) -> Program:
    """A program that is compiled in the working directory first."""

    def prepare(work: Path, _size: int) -> None:
        done = subprocess.run(compiler, cwd=work, capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"{compiler[0]}: {done.stderr.strip()}")

    installed = (str(word) for word in (compiler[0], command[0]) if word != "./map")  # (that is what is compiled)
    return replace(batch(name, (0, None), command), needs=tuple(installed), prepare=prepare)


def duckdb() -> Program:
    """A Python module, not a command."""
    has_module = importlib.util.find_spec("duckdb") is not None
    run = batch("duckdb", (0, None), [sys.executable, SOURCES / "group.py"])
    return run if has_module else replace(run, needs=("duckdb (Python)",))
