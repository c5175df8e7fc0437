"""k-means, three rounds with eight centres over points of four times the memory."""

from __future__ import annotations

import numpy as np
from memory import Side

ROUNDS = 3
CENTRES = 8
DIMENSIONS = 16
PIECE = 1 << 16
"""Points that are looked at together."""

side = Side(__doc__)
count = side.data_bytes // 4 // DIMENSIONS


def fill(points: np.ndarray) -> None:
    random = np.random.default_rng(1)
    for at in range(0, count, PIECE):
        piece = points[at : at + PIECE]
        piece[...] = random.random(piece.shape, np.float32) + random.integers(0, CENTRES, (len(piece), 1))


points = side.filled("points", (count, DIMENSIONS), np.float32, fill)


def job() -> float:
    centres = points[:CENTRES].copy()
    for _ in range(ROUNDS):
        sums, members = np.zeros((CENTRES, DIMENSIONS)), np.zeros(CENTRES)
        for at in range(0, count, PIECE):
            piece = points[at : at + PIECE]
            nearest = ((centres**2).sum(axis=1) - 2 * (piece @ centres.T)).argmin(axis=1)
            members += np.bincount(nearest, minlength=CENTRES)
            for centre in range(CENTRES):
                sums[centre] += piece[nearest == centre].sum(axis=0)
        centres = (sums / np.maximum(members, 1)[:, None]).astype(np.float32)
    return round(float(np.sort(centres.sum(axis=1))[-1]), 3)


side.run(job)
