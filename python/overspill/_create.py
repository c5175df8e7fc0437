"""Makes arrays in a pager's memory."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np

from . import _files
from ._array import Array, as_shape, check_order
from ._default import default_pager
from ._memmap import read_head
from ._pager import Pager

CHUNK_ELEMENTS = 1 << 16
"""Elements that are computed at a time where NumPy would compute all of them in ordinary memory."""


def empty(
    shape: Any, dtype: Any = float, order: Any = "C", *, pager: Pager | None = None, policy: str | None = None
) -> Array:
    """An array in the memory of `pager`, or of the default pager, as `numpy.empty`. All bytes are zero.

    `policy` gives it a replacement policy of its own, such as `"fifo"` for an array that is gone through once: see `set_policy`.
    """
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        raise TypeError(f"an array of {dtype} holds references to Python objects, which cannot be paged: use numpy.empty")
    if dtype.itemsize == 0:
        dtype = np.empty(0, dtype).dtype  # text without a length has one character, as NumPy has it
    check_order(order)
    shape = as_shape(shape)
    if any(n < 0 for n in shape):
        raise ValueError("negative dimensions are not allowed")
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return np.ndarray.__new__(Array, shape, dtype, order=order)
    memory: Any = (default_pager() if pager is None else pager).region(size, policy)
    return np.ndarray.__new__(Array, shape, dtype, buffer=memory, order=order)


def zeros(
    shape: Any, dtype: Any = float, order: Any = "C", *, pager: Pager | None = None, policy: str | None = None
) -> Array:
    """As `numpy.zeros`. Takes memory only where it is touched. `policy` as for `empty`."""
    return empty(shape, dtype, order, pager=pager, policy=policy)


def ones(
    shape: Any, dtype: Any = float, order: Any = "C", *, pager: Pager | None = None, policy: str | None = None
) -> Array:
    """As `numpy.ones`. `policy` as for `empty`."""
    return full(shape, 1, dtype, order, pager=pager, policy=policy)


def full(
    shape: Any,
    fill_value: Any,
    dtype: Any = None,
    order: Any = "C",
    *,
    pager: Pager | None = None,
    policy: str | None = None,
) -> Array:
    """As `numpy.full`. `policy` as for `empty`."""
    made = empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, order, pager=pager, policy=policy)
    made[...] = fill_value
    return made


def empty_like(
    prototype: Any, dtype: Any = None, *, pager: Pager | None = None, policy: str | None = None
) -> Array:
    """As `numpy.empty_like`, in C order unless the prototype is in Fortran's. Without a pager, in the prototype's if it has one.

    `policy` as for `empty`; the prototype's own is not taken over.
    """
    like = np.asarray(prototype)
    order = "F" if like.flags.f_contiguous and not like.flags.c_contiguous else "C"
    pager = pager or getattr(prototype, "pager", None)
    return empty(like.shape, like.dtype if dtype is None else dtype, order, pager=pager, policy=policy)


def zeros_like(
    prototype: Any, dtype: Any = None, *, pager: Pager | None = None, policy: str | None = None
) -> Array:
    """As `empty_like`, which is zero anyway."""
    return empty_like(prototype, dtype, pager=pager, policy=policy)


def full_like(
    prototype: Any, fill_value: Any, dtype: Any = None, *, pager: Pager | None = None, policy: str | None = None
) -> Array:
    """As `empty_like`, filled with a value."""
    made = empty_like(prototype, dtype, pager=pager, policy=policy)
    made[...] = fill_value
    return made


def array(
    source: Any, dtype: Any = None, order: Any = "C", *, pager: Pager | None = None, policy: str | None = None
) -> Array:
    """A copy of an array, or of a sequence, in a pager's memory. `policy` as for `empty`."""
    if dtype is not None and not (_is_array(source) and _is_settled(np.dtype(dtype))):
        source, dtype = np.asarray(source, dtype), None
    source = np.asarray(source)
    made = empty(source.shape, source.dtype if dtype is None else dtype, order, pager=pager, policy=policy)
    np.copyto(made, source, casting="unsafe")
    return made


def _is_array(source: Any) -> bool:
    """Whether a source has its elements already, and need not be converted from Python's objects, on which the dtype has a say."""
    return hasattr(source, "__array__") or hasattr(source, "__array_interface__")


def _is_settled(dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is known by itself. Text without a length and times without a unit take these from what is converted."""
    if dtype.kind in "mM" and np.datetime_data(dtype)[0] == "generic":
        return False
    return dtype.itemsize > 0 and dtype.subdtype is None


def arange(
    start: Any,
    stop: Any = None,
    step: Any = 1,
    dtype: Any = None,
    *,
    pager: Pager | None = None,
    policy: str | None = None,
) -> Array:
    """As `numpy.arange`, computed in pieces. `policy` as for `empty`."""
    if stop is None:
        start, stop = 0, start
    if step == 0:
        raise ValueError("a step of zero leads nowhere")
    # without a dtype at least that of a Python int, as numpy.arange has it
    dtype = np.result_type(int, *map(np.asarray, (start, stop, step))) if dtype is None else np.dtype(dtype)
    if not np.issubdtype(dtype, np.number):
        raise TypeError(f"numbers are needed, not {dtype}")
    count = max(math.ceil((stop - start) / step), 0)
    made = empty(count, dtype, pager=pager, policy=policy)
    made[:2] = np.array([start, start + step][:count], dtype)
    # numpy.arange computes the others from these two, and those of float16 as float32
    exact = np.dtype(np.float32) if dtype.char == "e" else dtype.newbyteorder("=")
    first, second = made[:1].astype(exact), made[1:2].astype(exact)
    for at in range(2, count, CHUNK_ELEMENTS):
        end = min(at + CHUNK_ELEMENTS, count)
        made[at:end] = first + np.arange(at, end).astype(exact) * (second - first)
    return made


def load(file: str | bytes | os.PathLike[Any], *, pager: Pager | None = None, policy: str | None = None) -> Array:
    """The array of a .npy file, read into a pager's memory. `policy` as for `empty`."""
    with open(file, "rb") as opened:
        shape, fortran, dtype = read_head(opened)
        made = empty(shape, dtype, "F" if fortran else "C", pager=pager, policy=policy)
        got = _files.readinto(opened, made)
    if got != made.nbytes:
        raise EOFError(f"{os.fspath(file)} ends {made.nbytes - got} bytes before its array does")
    return made
