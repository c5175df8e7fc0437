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
        java(),
        batch("R", (0, None), ["Rscript", SOURCES / "order.R"]),
        duckdb(),
    ]


def java() -> Program:
    """A hash map under the serial collector."""

    def prepare(work: Path, _size: int) -> None:
        done = subprocess.run(["javac", "-d", work, SOURCES / "Objects.java"], capture_output=True, text=True)
        if done.returncode:
            raise Failure(f"javac: {done.stderr.strip()}")

    run = batch("java", (0, None), ["java", "-XX:+UseSerialGC", "-Xmx1g", "-cp", ".", "Objects"])
    return replace(run, needs=("java", "javac"), prepare=prepare)


def duckdb() -> Program:
    """A Python module, not a command."""
    has_module = importlib.util.find_spec("duckdb") is not None
    run = batch("duckdb", (0, None), [sys.executable, SOURCES / "group.py"])
    return run if has_module else replace(run, needs=("duckdb (Python)",))
