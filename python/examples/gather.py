"""Gathers 20,000 random elements of an array of four times the memory."""

from __future__ import annotations

import numpy as np
from memory import MIB, Side

ELEMENTS = 20_000

side = Side(__doc__)


def fill(array: np.ndarray) -> None:
    for at in range(0, array.size, MIB):
        array[at : at + MIB] = np.arange(at, min(at + MIB, array.size))


array = side.filled("array", side.data_bytes // 8, np.float64, fill)
where = np.random.default_rng(1).integers(0, array.size, ELEMENTS)


def job() -> float:
    return float(array[where].sum())


side.run(job)
