"""What the examples share: arrays on either side, command line, and clock.

Each example runs the same code on arrays of Overspill's and, with `--memmap`, on files mapped by `numpy.memmap`. It prints one line
of JSON: the seconds that the job took, not counting the time to make its input, and a figure to compare results with.
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
        parser.add_argument("--memmap", action="store_true", help="use numpy.memmap (limit its memory yourself: with a cgroup)")
        parser.add_argument("--delivery", default="auto", help="auto, threads or in-thread")
        parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="where files or swap lie")
        parser.add_argument("--scale", type=float, default=4, help="the data, as a multiple of the memory")
        self.options = parser.parse_args()
        self.data_bytes = int(self.options.memory * MIB * self.options.scale)
        self.pager = None
        self.mapped: list[np.memmap] = []
        if self.options.memmap:
            self.files = tempfile.TemporaryDirectory(prefix="overspill-example-", dir=self.options.directory)
        else:
            self.pager = overspill.Pager(self.options.memory * MIB, self.options.directory, delivery=self.options.delivery)

    def empty(self, name: str, shape: Any, dtype: Any) -> np.ndarray:
        """A large array."""
        if self.pager is None:
            self.mapped.append(np.memmap(Path(self.files.name) / name, dtype, "w+", shape=shape))
            return self.mapped[-1]
        return self.pager.empty(shape, dtype)

    def run(self, job: Callable[[], float]) -> None:
        """Times the job, and prints the result. Files are on the disk before."""
        for mapped in self.mapped:
            mapped.flush()
        began = time.monotonic()
        result = job()
        seconds = time.monotonic() - began
        print(json.dumps({"seconds": round(seconds, 3), "result": result}))
