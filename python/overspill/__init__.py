"""NumPy arrays that may be larger than memory.

A `Pager` has a memory budget and swap files. Arrays that `empty`, `zeros`, `full` and the like make in it are ordinary
`numpy.ndarray`s; of all of them together no more than the budget is in memory. Pages that do not fit lie in swap.

    >>> import overspill
    >>> a = overspill.zeros((100_000, 1000), pager=overspill.Pager("256M"))    # 763 MiB
    >>> a[:, 7] = 1.0
    >>> float(a.sum())
    100000.0

Without a pager the functions use the default one: see `configure`. docs/PYTHON.md in the repository is the manual.
"""

from __future__ import annotations

from ._array import Array
from ._create import arange, array, empty, empty_like, full, full_like, load, ones, zeros, zeros_like
from ._default import configure, default_pager
from ._files import fromfile, readinto, tofile
from ._memmap import memmap, open_npy
from ._overspill import MEMORY_MIN, PAGE_SIZE, POLICIES, Error
from ._pager import Pager
from ._ranges import advise, discard, pager_of, policy_of, prefetch, set_policy, wire

__all__ = [
    "MEMORY_MIN",
    "PAGE_SIZE",
    "POLICIES",
    "Array",
    "Error",
    "Pager",
    "advise",
    "arange",
    "array",
    "configure",
    "default_pager",
    "discard",
    "empty",
    "empty_like",
    "fromfile",
    "full",
    "full_like",
    "load",
    "memmap",
    "ones",
    "open_npy",
    "pager_of",
    "policy_of",
    "prefetch",
    "readinto",
    "set_policy",
    "tofile",
    "wire",
    "zeros",
    "zeros_like",
]
