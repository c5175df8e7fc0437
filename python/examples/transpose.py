"""Transposes a matrix: input and output together take four times the memory."""

from __future__ import annotations

import numpy as np
from memory import Side

side = Side(__doc__)
rows = int((side.data_bytes / 2 / 8) ** 0.5) // 512 * 512


def fill(matrix: np.ndarray) -> None:
    for row in range(rows):
        matrix[row] = np.arange(row, row + rows)


matrix = side.filled("matrix", (rows, rows), np.float64, fill)
turned = side.empty("turned", (rows, rows), np.float64)


def job() -> float:
    np.copyto(turned, matrix.T)
    return float(turned[7, 3] + turned[-1, 0])


side.run(job)
