"""Pagers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import numpy as np

from . import _overspill, _ranges, _signals
from ._memory import available_bytes

Place = str | os.PathLike[Any]


def device_of(place: Place) -> str:
    """The specification of a swap device: a text as it is, a path as that of a file, whatever is in its name."""
    if isinstance(place, str):
        return place
    name = os.fsdecode(place)
    return "file:" + "".join(f"\\{c}" if c in "\\," else c for c in name)


class Pager(_overspill.Pager):
    """A memory budget, swap devices, and a replacement policy, for arrays that may be larger than memory.

    memory
        The most that all arrays of this pager have in memory: bytes, or a text such as `"4G"`, or `"50%"` of the memory that is
        available now.
    swap
        Where pages go that do not fit: a directory (or several, in a list), or a device as `overspill run --swap` takes it, such
        as `"file:/mnt/nvme,size=100G"` or `"compressed:size=1G"`. The default is the directory for temporary files.
    policy
        One of `overspill.POLICIES`, with parameters if you like (`"2q:kin=0.25"`).
    delivery
        `"threads"`: handler threads bring pages in; every system call works on every array; needs privileges. `"in-thread"`: the
        thread that touches a page brings it in, in a handler for SIGBUS; needs no privileges. `"auto"`: threads where that is
        allowed, else in-thread.
    encrypt
        Whether swap is encrypted with a key that never leaves the process.

    A pager is a context manager. At the end of the block it is closed: it makes no more arrays, and its swap is gone with the last
    array that is left.
    """

    def __new__(
        cls,
        memory: int | str,
        swap: Place | Iterable[Place] | None = None,
        *,
        policy: str = "use-once",
        delivery: str = "auto",
        encrypt: bool = True,
    ) -> Pager:
        size = _overspill.size(memory, available_bytes()) if isinstance(memory, str) else int(memory)
        if size < 0:
            raise ValueError(f"memory={memory!r} is negative")
        if swap is None:
            places: list[Place] = [_path(tempfile.gettempdir())]
        elif isinstance(swap, str | os.PathLike):
            places = [swap]
        else:
            places = list(swap)
        devices = [device_of(place) for place in places]
        return super().__new__(cls, size, devices, policy, delivery, encrypt, _signals.before_the_handler)

    def __enter__(self) -> Pager:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        if self.forked:
            return "<overspill.Pager of the process that forked>"
        if self.closed:
            return "<overspill.Pager, closed>"
        c = self.counters()
        return (
            f"<overspill.Pager: {_mib(c['memory_used_bytes'])} of {_mib(c['memory_limit_bytes'])} in memory, "
            f"{_mib(c['swap_used_bytes'])} in swap, policy {self.policy}, delivery {self.delivery}>"
        )

    def __reduce_ex__(self, protocol: Any, /) -> Any:
        raise TypeError("a pager cannot be pickled or copied: make one in the process that needs it")

    # ---- what it does ----

    def stats(self) -> dict[str, Any]:
        """All counters by name (`counters_help` says what they count), and `policy`, `delivery`, `metadata_bytes`, `swaps`,
        `policies` (each policy in use, the array or file that has it for itself, and what became of its pages; the pager's first),
        `first_loss` (what is known of the first page that could not be read back, or None)."""
        return self.counters() | {
            "policy": self.policy,
            "policies": self.policies(),
            "delivery": self.delivery,
            "metadata_bytes": self.metadata_bytes(),
            "swaps": self.swaps(),
            "first_loss": self.first_loss(),
        }

    # ---- swap ----

    def swapon(self, device: Place) -> None:
        """Adds a swap device while arrays are in use, written as for `swap` of the constructor."""
        self.swap_on(device_of(device))

    def swapoff(self, name: Place, progress: Callable[[int, int], object] | None = None) -> int:
        """Removes a swap device: its pages go to other devices, or into memory within the budget. Arrays stay in use meanwhile.

        `name` is the device's name in `swaps`. `progress` is called ten times a second with the pages moved and the pages left.
        If it raises, or at Ctrl-C, the swapoff ends, and the device is in use as before. Returns the number of pages moved.
        """
        return self.swap_off(os.fsdecode(name), progress)[0]

    # ---- ranges of arrays; the functions of the module do the same, and find the pager themselves ----

    def _own(self, array: Any) -> Any:
        if _ranges.pager_of(array) is not self:
            raise ValueError("this array is not in the memory of this pager")
        return array

    def wire(self, array: Any) -> AbstractContextManager[Any]:
        """See `overspill.wire`."""
        return _ranges.wire(self._own(array))

    def prefetch(self, array: Any) -> None:
        """See `overspill.prefetch`."""
        _ranges.prefetch(self._own(array))

    def discard(self, array: Any) -> None:
        """See `overspill.discard`."""
        _ranges.discard(self._own(array))

    def advise(self, array: Any, advice: str) -> None:
        """See `overspill.advise`."""
        _ranges.advise(self._own(array), advice)

    # ---- arrays; the functions of the module do the same with the default pager ----

    def empty(
        self, shape: Any, dtype: Any = float, order: Any = "C", *, policy: str | None = None
    ) -> np.ndarray[Any, Any]:
        """See `overspill.empty`."""
        from ._create import empty

        return empty(shape, dtype, order, pager=self, policy=policy)

    def zeros(
        self, shape: Any, dtype: Any = float, order: Any = "C", *, policy: str | None = None
    ) -> np.ndarray[Any, Any]:
        """See `overspill.zeros`."""
        return self.empty(shape, dtype, order, policy=policy)

    def full(
        self, shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", *, policy: str | None = None
    ) -> np.ndarray[Any, Any]:
        """See `overspill.full`."""
        from ._create import full

        return full(shape, fill_value, dtype, order, pager=self, policy=policy)


def _path(name: str) -> os.PathLike[str]:
    from pathlib import Path

    return Path(name)


def _mib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.1f} MiB"
