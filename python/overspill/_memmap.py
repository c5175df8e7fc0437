"""Arrays over files, with the arguments of `numpy.memmap`."""

from __future__ import annotations

import atexit
import io
import math
import os
import sys
import weakref
from typing import Any

import numpy as np

from . import _overspill, _ranges
from ._array import Array, as_shape, check_order
from ._default import default_pager
from ._pager import Pager

MODES = {"readonly": "r", "copyonwrite": "c", "readwrite": "r+", "write": "w+"}
OPEN = {"r": "rb", "c": "rb", "r+": "r+b", "w+": "r+b"}


def _made(path: str, _flags: int) -> int:
    """Opens a file for `w+` as it is: it becomes empty only if there can be an array."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


_changing: weakref.WeakSet[_overspill.Region] = weakref.WeakSet()
"""The memory of arrays that may change their file."""


@atexit.register
def _flush_all() -> None:
    """numpy.memmap leaves changes with the kernel at the end. Here they would be gone with the process."""
    memory: Any
    for memory in list(_changing):
        try:
            _overspill.flush(*_ranges._addresses(np.frombuffer(memory, np.uint8)))
        except _overspill.Error as e:
            print(f"overspill: changes may not have reached their file: {e}", file=sys.stderr)


os.register_at_fork(after_in_child=_changing.clear)

_worker = 0
"""The process, if it is a worker of multiprocessing's in which `_flush_all` runs at the end."""


def _flush_in_worker() -> None:
    """A worker that multiprocessing has forked ends by `os._exit`, after finalizers of multiprocessing's own."""
    global _worker
    process = sys.modules.get("multiprocessing.process")
    if _worker == os.getpid() or process is None or process.parent_process() is None:
        return
    from multiprocessing import util

    util.Finalize(None, _flush_all, exitpriority=-100)  # a negative one: when its own children have ended, too
    _worker = os.getpid()


class memmap(Array):
    """An array over a file, as `numpy.memmap`, in the memory of `pager` or of the default pager.

    `"r"` only reads, `"r+"` changes the file, `"w+"` makes or overwrites it, `"c"` keeps changes to itself. Pages come from the
    file when they are touched, and share the pager's budget, policy and readahead. Changed pages are written when they are evicted,
    after a while, by `flush`, when the last view is gone, and when Python exits. `flush` returns when the device has them, and
    raises `overspill.Error` if that failed. What is not written when the process is killed is lost.

    `policy` gives it a replacement policy of its own, such as `"drop-behind"` for a file that is read once: see `set_policy`.
    """

    filename: str | None
    offset: int
    mode: str | None

    def __new__(
        cls,
        filename: Any,
        dtype: Any = np.uint8,
        mode: str = "r+",
        offset: int = 0,
        shape: Any = None,
        order: Any = "C",
        *,
        pager: Pager | None = None,
        policy: str | None = None,
    ) -> memmap:
        mode = MODES.get(mode, mode)
        if mode not in OPEN:
            raise ValueError(f"there is no mode {mode!r}; choose one of {[*OPEN, *MODES]}")
        dtype = np.dtype(dtype)
        if dtype.hasobject:
            raise TypeError(f"an array of {dtype} holds references to Python objects, which cannot lie in a file")
        if mode == "w+" and shape is None:
            raise ValueError("mode w+ needs a shape")
        if hasattr(filename, "fileno"):
            return cls._over(filename, dtype, mode, offset, shape, order, pager, policy)
        with open(filename, OPEN[mode], opener=_made if mode == "w+" else None) as opened:
            return cls._over(opened, dtype, mode, offset, shape, order, pager, policy, truncate=mode == "w+")

    @classmethod
    def _over(
        cls,
        opened: Any,
        dtype: np.dtype[Any],
        mode: str,
        offset: int,
        shape: Any,
        order: Any,
        pager: Pager | None,
        policy: str | None,
        truncate: bool = False,
    ) -> memmap:
        name = getattr(opened, "name", None)  # a number where the file was opened by its descriptor
        path = os.path.abspath(os.fsdecode(name)) if isinstance(name, str | bytes | os.PathLike) else None
        if shape is None:
            left = os.fstat(opened.fileno()).st_size - offset
            if left % dtype.itemsize:
                raise ValueError(f"the file has {left} bytes from {offset} on, which is no multiple of {dtype.itemsize}")
            shape = (left // dtype.itemsize,)
        else:
            shape = as_shape(shape)
        size = math.prod(shape) * dtype.itemsize
        if size <= 0:
            raise ValueError("an array over a file has at least one element")
        check_order(order)
        one = np.empty((), dtype)
        np.broadcast_to(one, shape + one.shape)  # (what can be no array empties no file)
        if hasattr(opened, "flush"):
            opened.flush()
        pager = default_pager() if pager is None else pager
        memory: Any = pager.file_region(opened.fileno(), path or "<descriptor>", mode, offset, size, policy, truncate)
        if mode in ("r+", "w+"):
            _flush_in_worker()
            _changing.add(memory)
        made = super().__new__(cls, shape, dtype, memory, 0, None, order)
        made.filename, made.offset, made.mode = path, offset, mode
        return made

    def __array_finalize__(self, other: Any) -> None:
        # as numpy.memmap: views know their file, and copies do not
        mine = isinstance(other, memmap) and np.may_share_memory(self, other)
        self.filename = other.filename if mine else None
        self.offset = other.offset if mine else 0
        self.mode = other.mode if mine else None

    def flush(self) -> None:
        """Writes the changes in this array, or slice, to the file, and returns when the device has them.

        Other modes have nothing to do.
        """
        if self.mode in ("r+", "w+") and self.size:
            _overspill.flush(*_ranges._addresses(self))


def open_npy(
    path: str | bytes | os.PathLike[Any],
    mode: str = "r",
    dtype: Any = None,
    shape: Any = None,
    fortran_order: bool = False,
    *,
    pager: Pager | None = None,
    policy: str | None = None,
) -> memmap:
    """A .npy file as an array over it: `numpy.load(path, mmap_mode=mode)`, and with `"w+"` a new file of that dtype and shape.

    `policy` as for `memmap`.
    """
    mode = MODES.get(mode, mode)
    if mode == "w+":
        if shape is None:
            raise ValueError("mode w+ needs a shape")
        dtype = np.dtype(dtype)  # as in numpy.lib.format.open_memmap, None is float
        shape = as_shape(shape)
        written = head_of(shape, fortran_order, dtype)
        offset = len(written)
    else:
        with open(path, "rb") as opened:
            shape, fortran_order, dtype = read_head(opened)
            offset = opened.tell()
    array = memmap(path, dtype, mode, offset, shape, "F" if fortran_order else "C", pager=pager, policy=policy)
    if mode == "w+":
        with open(path, "r+b") as opened:  # no page is in memory yet that has these bytes
            opened.write(written)
        array.mode = "r+"
    return array


def read_head(opened: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """The head of a .npy file: shape, whether it is in Fortran's order, dtype."""
    version = np.lib.format.read_magic(opened)
    if version == (3, 0):
        # 2.0 in UTF-8, for names of fields. NumPy has no public function for it, but 2.0 may have such names as escapes.
        text = opened.read(int.from_bytes(opened.read(4), "little")).decode().encode("ascii", "backslashreplace")
        opened, version = io.BytesIO(len(text).to_bytes(4, "little") + text), (2, 0)
    elif version not in ((1, 0), (2, 0)):
        raise ValueError(f"this .npy file is of version {version}, and there are (1, 0), (2, 0) and (3, 0)")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    head: tuple[tuple[int, ...], bool, np.dtype[Any]] = read(opened)
    return head


def head_of(shape: tuple[int, ...], fortran_order: bool, dtype: np.dtype[Any]) -> bytes:
    """The head of a new .npy file, of version 2.0. Names of fields that are not in Latin-1 are escaped."""
    descr = np.lib.format.dtype_to_descr(dtype)
    text = ascii({"descr": descr, "fortran_order": bool(fortran_order), "shape": shape}).encode()
    text += b" " * (-(12 + len(text) + 1) % np.lib.format.ARRAY_ALIGN) + b"\n"
    head: bytes = np.lib.format.magic(2, 0) + len(text).to_bytes(4, "little") + text
    return head
