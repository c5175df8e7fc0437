"""PageRank, three rounds over an edge list of four times the memory. The ranks are in ordinary memory."""

from __future__ import annotations

import numpy as np
from memory import MIB, Side

ROUNDS = 3
NODES = 250_000
DAMPING = 0.85
PIECE = MIB // 4
"""Edges that are looked at together."""

side = Side(__doc__)
count = side.data_bytes // 8
degree = np.zeros(NODES)


def fill(edges: np.ndarray) -> None:
    random = np.random.default_rng(1)
    for at in range(0, count, PIECE):
        piece = edges[at : at + PIECE]
        piece[:, 0] = random.integers(0, NODES, len(piece))
        piece[:, 1] = random.random(len(piece)) ** 2 * NODES  # some nodes are linked to more often
        np.add(degree, np.bincount(piece[:, 0], minlength=NODES), out=degree)


edges = side.filled("edges", (count, 2), np.int32, fill)
degree = np.maximum(degree, 1)


def job() -> float:
    rank = np.full(NODES, 1 / NODES)
    for _ in range(ROUNDS):
        share = rank / degree
        got = np.zeros(NODES)
        for at in range(0, count, PIECE):
            source, target = edges[at : at + PIECE].T
            got += np.bincount(target, weights=share[source], minlength=NODES)
        rank = (1 - DAMPING) / NODES + DAMPING * got
    return round(float(rank.max()) * 1e6, 3)


side.run(job)
