"""Transfers between arrays and files or sockets, in pieces that are wired. They work with every delivery."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _ranges
from ._array import Array

if TYPE_CHECKING:
    from ._pager import Pager

PIECE_BYTES = 1 << 20
"""What is wired at a time: enough for a disk, and an eighth of the smallest budget."""


def _bytes(array: Any) -> Array:
    """All bytes of a contiguous array, in the order in which they lie in memory."""
    array = np.asarray(array)
    if array.flags.f_contiguous and not array.flags.c_contiguous:
        array = array.T
    flat: Array = array.reshape(-1).view(np.uint8).view(Array)
    return flat


@contextlib.contextmanager
def _wired(piece: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Wires a piece, unless it lies in ordinary memory.

    It is given as an ordinary array. An `Array` would wire itself once more when a method asks for its bytes, and Python's methods
    turn what is raised there, such as a KeyboardInterrupt, into a TypeError about the argument.
    """
    with contextlib.nullcontext() if _ranges.pager_of(piece) is None else _ranges.wire(piece):
        yield piece.view(np.ndarray)


def readinto(file: Any, array: Any) -> int:
    """Fills a contiguous array from a file or a socket, until it is full or the input ends. Returns the number of bytes.

    `file` has a method `readinto` or `recv_into`. Unlike those, this reads less than the array holds only if there is no more.
    """
    array = np.asarray(array if hasattr(array, "__array__") else memoryview(array))  # (of a list it would be a copy)
    if not array.flags.c_contiguous and not array.flags.f_contiguous:
        raise ValueError("only a contiguous array can be read into: read into a contiguous one, and assign it")
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} holds references to Python objects, which cannot be read")
    if not array.flags.writeable:
        raise ValueError("this array is read-only")
    read = file.readinto if hasattr(file, "readinto") else file.recv_into
    into, done = _bytes(array), 0
    while done < into.size:
        with _wired(into[done : done + PIECE_BYTES]) as piece:
            got = read(piece)
        if got is None:
            raise BlockingIOError(f"the file would block after {done} bytes: make it blocking")
        if got == 0:
            break
        done += got
    return done


def tofile(array: Any, file: Any) -> None:
    """Writes an array in C order, as `numpy.ndarray.tofile`. `file` is a path, or has a method `write` or `sendall`."""
    if isinstance(file, str | bytes | os.PathLike):
        with open(file, "wb") as opened:
            return tofile(array, opened)
    if isinstance(file, io.TextIOWrapper):
        file.flush()
        return tofile(array, file.buffer)
    array = np.asarray(array)
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} holds references to Python objects, which cannot be written")
    write = file.write if hasattr(file, "write") else file.sendall
    for piece in _pieces(array):
        with _wired(piece) as rest:
            while rest.size:
                done = write(rest)
                if done is None and isinstance(file, io.RawIOBase):
                    raise BlockingIOError("the file would block: make it blocking")
                if done is None:
                    break  # `sendall`, and files that take everything
                rest = rest[done:]
    return None


def _pieces(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """The bytes of an array in C order."""
    if array.flags.c_contiguous:
        whole = _bytes(array)
        for at in range(0, whole.size, PIECE_BYTES):
            yield whole[at : at + PIECE_BYTES]
    elif array.size:
        flags = ["external_loop", "buffered", "zerosize_ok"]
        count = max(PIECE_BYTES // array.itemsize, 1)
        for chunk in np.nditer(array, flags=flags, buffersize=count, order="C"):  # type: ignore[call-overload]
            yield _bytes(np.ascontiguousarray(chunk))


def fromfile(
    file: Any,
    dtype: Any = float,
    count: int = -1,
    sep: str = "",
    offset: int = 0,
    *,
    pager: Pager | None = None,
    policy: str | None = None,
) -> np.ndarray[Any, Any]:
    """As `numpy.fromfile`, into a pager's memory. Reads binary files only. `file` is a path or an open file that knows its place.

    `policy` as for `overspill.empty`.
    """
    from ._create import empty

    if sep:
        raise ValueError("fromfile reads binary files: use overspill.array(numpy.fromfile(file, sep=...)) for text")
    if isinstance(file, str | bytes | os.PathLike):
        with open(file, "rb") as opened:
            return fromfile(opened, dtype, count, offset=offset, pager=pager, policy=policy)
    dtype = np.dtype(dtype)
    file.seek(offset, os.SEEK_CUR)
    here = file.tell()
    there = max((file.seek(0, os.SEEK_END) - here) // dtype.itemsize, 0)
    file.seek(here)
    made = empty(there if count < 0 else min(count, there), dtype, pager=pager, policy=policy)
    got = readinto(file, made)
    return made[: got // dtype.itemsize]
