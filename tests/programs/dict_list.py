"""A Python job: a dict of strings, a list of floats, look-ups at random.

It is a program as people write them: many small objects, reference counts that dirty a page on every read, and
look-ups that touch the hash table, the key and the value, each on a page of its own. What it prints depends on
every string and every float, so a single wrong page shows.

Run as `python3 dict_list.py THOUSANDS [LOOKUPS]`: 2000 is a real job (two million strings, three million floats,
about 450 MiB), with 200 look-ups for each thousand unless another number is given.
"""

import hashlib
import random
import sys


def main(strings: int, floats: int, lookups: int) -> None:
    """Fill both containers, look things up, and print digests of what was found."""
    rng = random.Random(7)
    names = {f"key-{number}": f"value-{number * 2654435761 % (1 << 32):x}" for number in range(strings)}
    numbers = [rng.random() for _ in range(floats)]

    found = hashlib.sha256()
    for _ in range(lookups):
        found.update(names[f"key-{rng.randrange(strings)}"].encode())
        found.update(numbers[rng.randrange(floats)].hex().encode())
    print("looked up", lookups, found.hexdigest())

    everything = hashlib.sha256()
    for key, value in names.items():
        everything.update(key.encode() + value.encode())
    print("strings", len(names), everything.hexdigest())
    print("floats", len(numbers), repr(sum(numbers)), repr(max(numbers)))


if __name__ == "__main__":
    thousands = int(sys.argv[1])
    lookups = int(sys.argv[2]) if len(sys.argv) > 2 else 200 * thousands
    main(strings=1000 * thousands, floats=1500 * thousands, lookups=lookups)
