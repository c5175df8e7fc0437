"""The class of arrays in a pager's memory."""

from __future__ import annotations

import operator
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _overspill

if TYPE_CHECKING:
    from ._pager import Pager


def as_shape(shape: Any) -> tuple[int, ...]:
    """A shape as NumPy's functions take it: numbers, or one number."""
    return tuple(map(operator.index, shape)) if np.iterable(shape) else (operator.index(shape),)


def check_order(order: Any) -> None:
    """Raises if an array that is to be made can have no such order."""
    if order not in ("C", "F"):
        raise ValueError(f"there is no order {order!r} for a new array; choose C or F")


class Array(_overspill.ArrayBase):
    """A `numpy.ndarray` whose memory belongs to a pager.

    Made by `empty`, `zeros`, `full`, `arange`, `array`, `fromfile` and `load`.

    Views are of this class too, and keep the memory until the last of them is gone. What is computed from it (`a + b`, `a.sum()`)
    is an ordinary array or number; use `out=` to put large results into a pager's memory. `a.copy()` and `a[indices]` are in
    ordinary memory, although their class is this one (`a.pager` is None then). A pickle holds a copy, and gives an ordinary
    `numpy.ndarray` back.

    It is a subclass for one reason: with in-thread delivery a system call cannot use pages that are out. So the pages are wired
    while somebody has asked the array for its bytes as `file.write(a)` or `file.readinto(a)` do, and `tofile` goes in pieces.
    """

    __slots__ = ()
    __array_priority__ = -100.0

    @property
    def pager(self) -> Pager | None:
        """The pager whose memory this is, or None for ordinary memory."""
        from ._ranges import pager_of

        return pager_of(self)

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        if array is self:
            return array
        return array[()] if return_scalar else array.view(np.ndarray)

    def tofile(self, fid: Any, /, sep: str = "", format: str = "%s") -> None:
        """As `numpy.ndarray.tofile`; works with every delivery."""
        if sep:
            super().tofile(fid, sep, format)
        else:
            from ._files import tofile

            tofile(self, fid)

    def __reduce_ex__(self, protocol: Any, /) -> Any:
        plain = self.view(np.ndarray).__reduce_ex__(protocol)
        match plain:
            case (make, (pickle.PickleBuffer(), dtype, shape, order), *rest):
                # a buffer of this object, so that its pages are wired while they are written
                mine: Any = self if order == "C" else self.T
                return (make, (pickle.PickleBuffer(mine), dtype, shape, order), *rest)
        return plain
