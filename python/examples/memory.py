"""What the examples share: arrays on either side, command line, and clock.

Each example runs the same code on arrays of Overspill's, with `--files` on files that `overspill.memmap` opens, and with `--memmap`
on files that `numpy.memmap` opens. It prints one line of JSON: the seconds that the job took, not counting the time to make its
input, and a figure to compare results with.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import overspill

MIB = 1 << 20


class Side:
    """Where arrays lie."""

    def __init__(self, about: str) -> None:
        parser = argparse.ArgumentParser(description=about)
        parser.add_argument("--memory", type=int, default=256, help="the pager's budget in MiB; the data takes four times as much")
        parser.add_argument("--files", action="store_true", help="use overspill.memmap")
        parser.add_argument("--memmap", action="store_true", help="use numpy.memmap (limit its memory yourself: with a cgroup)")
        parser.add_argument("--delivery", default="auto", help="auto, threads or in-thread")
        parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where files or swap lie")
        parser.add_argument("--scale", type=float, default=4, help="the data, as a multiple of the memory")
        self.options = parser.parse_args()
        self.data_bytes = int(self.options.memory * MIB * self.options.scale)
        self.pager = None
        self.files = None
        if self.options.memmap or self.options.files:
            self.files = tempfile.TemporaryDirectory(prefix="overspill-example-", dir=self.options.directory)
        if not self.options.memmap:
            self.pager = overspill.Pager(self.options.memory * MIB, self.options.directory, delivery=self.options.delivery)

    def empty(self, name: str, shape: Any, dtype: Any) -> np.ndarray:
        """A large array to be written."""
        return self.pager.empty(shape, dtype) if self.files is None else self.open(name, shape, dtype, "w+")

    def filled(self, name: str, shape: Any, dtype: Any, fill: Callable[[np.ndarray], None]) -> np.ndarray:
        """A large array to be read, with what `fill` has put in. A file is on the disk."""
        array = self.empty(name, shape, dtype)
        fill(array)
        if self.files is None:
            return array
        array.flush()
        del array
        return self.open(name, shape, dtype, "r")

    def open(self, name: str, shape: Any, dtype: Any, mode: str) -> np.ndarray:
        path = Path(self.files.name) / name
        if self.pager is None:
            return np.memmap(path, dtype, mode, shape=shape)
        return overspill.memmap(path, dtype, mode, shape=shape, pager=self.pager)

    def run(self, job: Callable[[], float]) -> None:
        """Times the job, and prints the result."""
        began = time.monotonic()
        result = job()
        seconds = time.monotonic() - began
        print(json.dumps({"seconds": round(seconds, 3), "result": result}))
