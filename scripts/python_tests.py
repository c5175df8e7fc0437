#!/usr/bin/env python3
"""The tests of the Python package (python/tests), against the module that `cargo build` has made.

A virtual environment in target/python gets NumPy, pytest and hypothesis from pip's index; nothing else is installed. The package
is put together there, too, from python/overspill and the module, so that nothing is built twice.

    scripts/python_tests.py                      part of `make test`: half a minute
    scripts/python_tests.py -k system_calls -x   what follows goes to pytest
    scripts/python_tests.py --prepare            only the environment; its python is the last line

If the environment cannot be made, that is one line and a counted skip; with CI=true a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
TARGET = Path(os.environ.get("CARGO_TARGET_DIR") or REPOSITORY / "target").resolve()
VENV = TARGET / "python" / "venv"
SITE = TARGET / "python" / "site"
NEEDED = ["numpy>=2", "pytest>=8", "hypothesis>=6"]

LEAST_VERSION = (3, 11)
"""As in pyproject.toml: the first one whose stable ABI has buffers."""

PATIENCE_SECONDS = 900
"""For pip, and for the tests. Catches a hang."""


class Missing(Exception):
    """Something that the tests need is not there. The text says what to do."""


def run(what: str, *command: str | Path) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_SECONDS)
    if done.returncode:
        raise Missing(f"{what}: {(done.stdout.strip().splitlines() or ['no message'])[-1]}")


def environment(more: list[str] | None = None) -> Path:
    """Makes the virtual environment, unless it is there, with `more` packages if need be. Returns its python."""
    if sys.version_info < LEAST_VERSION:
        raise Missing(f"the package needs Python {'.'.join(map(str, LEAST_VERSION))} or newer, and this is {sys.version.split()[0]}")
    python = VENV / "bin" / "python"
    ready = VENV / "ready"
    wanted = sys.version + " ".join(NEEDED)
    if not ready.exists() or ready.read_text() != wanted:
        run("no virtual environment can be made (on Debian, install python3-venv)", sys.executable, "-m", "venv", "--clear", VENV)
        run("pip cannot install NumPy, pytest and hypothesis", python, "-m", "pip", "install", "--quiet", *NEEDED)
        ready.write_text(wanted)
    for name in more or []:
        run(f"pip cannot install {name}", python, "-m", "pip", "install", "--quiet", name)
    return python


def package(profile: str = "debug") -> None:
    """Puts the package together."""
    module = TARGET / profile / "lib_overspill.so"
    if not module.exists():
        raise Missing(f"{module} is not there: `cargo build -p overspill-python` makes it")
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.copytree(REPOSITORY / "python" / "overspill", SITE / "overspill", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(module, SITE / "overspill" / "_overspill.abi3.so")


def main(arguments: list[str]) -> int:
    try:
        python = environment()
        package()
    except Missing as e:
        print(f"the tests of the Python package cannot run: {e}", flush=True)
        return 1 if os.environ.get("CI") == "true" else 0
    if arguments == ["--prepare"]:
        print(python)
        return 0
    settings = os.environ | {"PYTHONPATH": str(SITE), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", REPOSITORY / "python" / "tests", *arguments]
    return subprocess.run(command, env=settings, cwd=SITE, timeout=PATIENCE_SECONDS).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
