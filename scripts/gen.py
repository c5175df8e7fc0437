#!/usr/bin/env python3
"""Deterministic inputs for the real programs that Overspill is tried on.

Every generator takes a size and a seed and always writes the same bytes, so that a failing run can be repeated
from its command line alone. They must also be fast, because `make demo` and `make test` make their inputs
afresh instead of keeping hundreds of megabytes in the repository: all of them draw random numbers in bulk and
turn them into text by table look-ups, never byte by byte.

    lines   random lines for sort
    text    words with a natural (Zipf) distribution, which compressors shrink about fourfold
    c       one large C file whose functions share types and call each other
    sql     a script for the sqlite3 shell: an in-memory table, an index, look-ups at random
"""

from __future__ import annotations

import argparse
import random
import string
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import common

CHUNK_BYTES = 4 << 20
"""How many bytes are drawn at once: enough to make Python's own cost small, few enough not to show in the
memory figures that are measured at the same time."""

LINE_END_WEIGHT = 4
"""Of 256 byte values, how many become a line end: lines of 63 characters on average, for which GNU sort needs
about twice the size of its input."""

WORDS = 20_000
"""Size of the vocabulary, that of an ordinary text."""


def lines(size: int, seed: int) -> Iterator[bytes]:
    """Random lines, `size` bytes of them, the last one complete."""
    rng = random.Random(seed)
    alphabet = (string.ascii_letters + string.digits + " -").encode()
    table = bytes(b"\n"[0] if value < LINE_END_WEIGHT else alphabet[value % len(alphabet)] for value in range(256))
    for start in range(0, size, CHUNK_BYTES):
        chunk = rng.randbytes(min(CHUNK_BYTES, size - start)).translate(table)
        yield chunk if start + len(chunk) < size else chunk[:-1] + b"\n"


def text(size: int, seed: int) -> Iterator[bytes]:
    """Words drawn by Zipf's law: like prose for a compressor, but without its long repetitions."""
    rng = random.Random(seed)
    vocabulary = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 11))) for _ in range(WORDS)]
    ends = rng.choices([" ", ", ", ".\n"], weights=[85, 9, 6], k=1 << 16)
    weights = [1 / (rank + 2) for rank in range(WORDS)]
    drawn = rng.choices(vocabulary, weights=weights, k=1 << 16)
    table = [(word + end).encode() for word, end in zip(drawn, ends, strict=True)]
    left = size
    while left:
        numbers = memoryview(rng.randbytes(CHUNK_BYTES // 4)).cast("H")
        chunk = b"".join(map(table.__getitem__, numbers))[:left]
        left -= len(chunk)
        yield chunk


def c_source(functions: int, seed: int) -> Iterator[bytes]:
    """A C file of `functions` functions, each with loops, a switch and calls, so that -O2 has work to do."""
    rng = random.Random(seed)
    yield b"struct item { long key; double weight; struct item *next; int tags[8]; };\n"
    for number in range(functions):
        callee = f"work_{rng.randrange(number)}(p, n - 1)" if number else "n"
        cases = "\n".join(
            f"        case {case}: sum += p->tags[{rng.randrange(8)}] * {rng.randrange(1, 999)}L"
            f" - (p->key >> {rng.randrange(1, 30)}); break;"
            for case in range(6)
        )
        yield f"""
long work_{number}(struct item *p, long n) {{
    long sum = {rng.randrange(1 << 20)};
    double scale = {rng.random():.6f};
    for (long i = 0; i < n && p; i++) {{
        switch ((p->key + i * {rng.randrange(3, 99)}) % {rng.randrange(6, 12)}) {{
{cases}
        default: scale *= p->weight + {rng.random():.6f};
        }}
        for (int t = 0; t < 8; t++) p->tags[t] += (int)(sum ^ (t * {rng.randrange(1, 1 << 16)}));
        if (scale > {rng.randrange(10, 99)}.0) {{ sum += {callee}; scale = 1.0; }}
        p = p->next;
    }}
    return sum + (long)scale;
}}
""".encode()


def sql(rows: int, seed: int) -> Iterator[bytes]:
    """A script that makes an in-memory table of `rows` rows (about 330 bytes each with the index) and queries it.

    SQLite's own random() cannot be seeded, so keys come from a linear congruential step over the row number, and
    payloads are windows of one long random text. A third as many look-ups as rows go through the index, in an
    order that has nothing to do with the table's.
    """
    rng = random.Random(seed)
    factor, shift = rng.randrange(1 << 30, 1 << 31) | 1, rng.randrange(1 << 31)
    noise = "".join(rng.choices(string.ascii_letters, k=40_000))
    yield f"""
CREATE TEMP TABLE noise(bytes BLOB);
INSERT INTO noise VALUES (CAST('{noise}' AS BLOB));
CREATE TABLE item(id INTEGER PRIMARY KEY, key INTEGER, payload TEXT);
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
    INSERT INTO item SELECT i, (i * {factor} + {shift}) % 2147483648,
                            CAST(substr(bytes, i * 7 % 39700 + 1, 250) AS TEXT) FROM n, noise;
CREATE INDEX item_key ON item(key);
SELECT count(*), sum(key), sum(length(payload)) FROM item;
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows // 3}),
     wanted(k) AS (SELECT (((i * 7919 * {factor}) % {rows} + 1) * {factor} + {shift}) % 2147483648 FROM n)
    SELECT count(*), sum(item.id), sum(length(item.payload)), max(item.payload)
    FROM wanted JOIN item ON item.key = wanted.k;
SELECT id, key, substr(payload, 200) FROM item WHERE key > 1000000 ORDER BY key LIMIT 5000;
UPDATE item SET payload = upper(payload) || 'changed' WHERE key % 16 = 3;
SELECT count(*), sum(length(payload)), max(payload) FROM item WHERE payload LIKE '%changed';
PRAGMA integrity_check;
""".encode()


GENERATORS: dict[str, Callable[[int, int], Iterator[bytes]]] = {
    "lines": lines,
    "text": text,
    "c": c_source,
    "sql": sql,
}


def write(kind: str, size: int, path: Path) -> None:
    """Write the input called `kind` to `path`; `size` is in bytes, or in functions or rows for c and sql.

    In a process of its own, because a program's `ru_maxrss` begins with the size of the process it was forked from:
    a script that has grown while it made an input would pass that on to everything it measures.
    """
    subprocess.run([sys.executable, __file__, kind, str(size), path], check=True)


def main() -> int:
    """Write one input."""
    parser = argparse.ArgumentParser(description="Write one of the test inputs.")
    parser.add_argument("kind", choices=GENERATORS)
    parser.add_argument("size", help="bytes (64M, 1G), or functions or rows for c and sql", type=common.parse_size)
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with arguments.path.open("wb") as file:
        file.writelines(GENERATORS[arguments.kind](arguments.size, arguments.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
