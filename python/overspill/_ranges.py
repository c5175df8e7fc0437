"""What can be said of an array, or of a slice of one, to its pager."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from . import _overspill

if TYPE_CHECKING:
    from ._pager import Pager

_A = TypeVar("_A")


def _addresses(array: Any) -> tuple[int, int]:
    """Where the bytes of an array begin and end; for a view with strides, including what lies between them."""
    return np.lib.array_utils.byte_bounds(np.asarray(array))


def pager_of(array: Any) -> Pager | None:
    """The pager whose memory this array or view uses, or None for ordinary memory."""
    array = np.asarray(array)
    return cast("Pager | None", _overspill.pager_of(_addresses(array)[0])) if array.size else None


@contextlib.contextmanager
def wire(array: _A) -> Iterator[_A]:
    """Keeps an array, or a slice of one, in memory within a `with` block, for example for a system call.

    At most half of the budget can be wired. A view with strides is wired with all that lies between its elements. Gives the array
    back: `with overspill.wire(a[:1000]) as piece: sock.recv_into(memoryview(piece))`.
    """
    held = _overspill.wire(*_addresses(array)) if np.asarray(array).size else None
    try:
        yield array
    finally:
        if held is not None:
            held.release()


def prefetch(array: Any) -> None:
    """Begins to read what is out of an array, or of a slice: at most half of the budget, and no more than finds room soon."""
    if np.asarray(array).size:
        _overspill.prefetch(*_addresses(array))


def policy_of(array: Any) -> str:
    """The replacement policy of the memory that an array or view uses: its own, or else its pager's."""
    return _overspill.policy_of(_addresses(array)[0])


def set_policy(array: Any, policy: str | None) -> None:
    """Gives the memory that an array or view uses a replacement policy of its own, or changes that, while it is in use.

    `policy` is one of `POLICIES`, with parameters if you like, or None for the pager's again. It is for the whole array that was
    made, whatever part of it is given here, and ends with it. The pager's budget stays one for all: policies with the most pages
    for their share give them up, and shares follow use. `Pager.stats()["policies"]` has what became of the pages of each, and
    which array it is for: the name of its file, or its size and place. At most 254 arrays of a pager have one.
    """
    _overspill.set_policy(_addresses(array)[0], policy)


def discard(array: Any) -> None:
    """Gives up the content of an array, or of a contiguous slice: it is zero afterwards, and takes neither memory nor swap.

    No other thread may use it meanwhile.
    """
    array = np.asarray(array)
    if not array.flags.c_contiguous and not array.flags.f_contiguous:
        raise ValueError("only a contiguous array or slice can be discarded: this one has other elements between its own")
    if not array.flags.writeable:
        raise ValueError("this array is read-only")
    if array.size:
        _overspill.discard(*_addresses(array))


def advise(array: Any, advice: str) -> None:
    """`"willneed"`: as `prefetch`. `"dontneed"`: as `discard`."""
    match advice:
        case "willneed":
            prefetch(array)
        case "dontneed":
            discard(array)
        case _:
            raise ValueError(f"there is no advice {advice!r}; choose willneed or dontneed")
