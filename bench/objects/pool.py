"""A pool of three forked processes that read a dict of their parent's, whose reference counts they change."""

import hashlib
import multiprocessing
import random

STRINGS = 1_000_000
shared: dict[str, str] = {}


def job(number: int) -> str:
    """Look things up at random."""
    rng = random.Random(number)
    digest = hashlib.sha256()
    for _ in range(50_000):
        digest.update(shared[f"key-{rng.randrange(STRINGS)}"].encode())
    return digest.hexdigest()


if __name__ == "__main__":
    shared.update((f"key-{number}", f"value-{number * 2654435761 % (1 << 32):x}") for number in range(STRINGS))
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print("\n".join(pool.map(job, range(6), chunksize=1)))
