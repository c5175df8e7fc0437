"""Pagers for the tests, with each delivery, and programs that run in a process of their own."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import overspill

BUDGET = overspill.MEMORY_MIN

PATIENCE_SECONDS = 300
"""Catches a hang, not a slow run."""


def make(delivery: str) -> overspill.Pager:
    """A pager with the least budget. Where handler threads are not allowed, the test is skipped, which CI counts as a failure."""
    try:
        return overspill.Pager(BUDGET, delivery=delivery)
    except overspill.Error as e:
        if delivery == "threads" and "CI" not in os.environ:
            pytest.skip(f"no handler threads: {e}")
        raise


@functools.cache
def is_allowed(delivery: str) -> bool:
    make(delivery).close()
    return True


@pytest.fixture(params=["in-thread", "threads"])
def delivery(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    assert is_allowed(name)
    return name


@pytest.fixture
def pager(delivery: str) -> Iterator[overspill.Pager]:
    with make(delivery) as pager:
        yield pager
        if not pager.closed:
            stats = pager.stats()
            assert stats["first_loss"] is None
            assert stats["memory_peak_bytes"] <= BUDGET * 9 // 8, stats


def push_out(pager: overspill.Pager) -> None:
    """Touches so much other memory that what the program has touched so far is out."""
    filler = pager.empty(BUDGET * 5 // 4, np.uint8)
    for _ in range(2):
        filler[:: overspill.PAGE_SIZE] += 1


Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def program() -> Program:
    """Runs a Python program in a process of its own."""

    def run(text: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        text = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n" + textwrap.dedent(text)
        return subprocess.run(
            [sys.executable, "-c", text, *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            env=os.environ | environment,
        )

    return run
