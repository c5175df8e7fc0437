"""The kernel's swap, for measurements beside it: a file, or compressed memory (zram).

It is taken away again on every way out. So signals become exceptions, and a swapoff, which may take long, ends before
another signal counts.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from common import MIB, Cgroup, Failure, Hierarchy, end_on_signals, uninterrupted

KERNEL_SWAP_BYTES = 3 << 30
"""Room for the largest program here several times over: the kernel must not fail for want of swap."""

CONTROL = Path("/sys/class/zram-control")
SWAPS = Path("/proc/swaps")


def swap_on(place: Path, *options: str, complaint: str) -> None:
    """Make this file or device the kernel's swap. `complaint` begins the message where that fails."""
    for command in (["mkswap", place], ["swapon", *options, place]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Failure(f"{complaint}: {done.stderr.strip()}")


def swap_off(place: Path) -> None:
    """Take it away again, if it is in use."""
    if str(place) in SWAPS.read_text():
        subprocess.run(["swapoff", place], check=True)


class KernelSwap:
    """A swap file for the kernel: in use within the `with` block, removed afterwards."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "kernel.swap"

    def __enter__(self) -> KernelSwap:
        end_on_signals()
        self._remove()
        try:
            with self._file.open("wb") as file:
                os.fchmod(file.fileno(), 0o600)
                os.posix_fallocate(file.fileno(), 0, KERNEL_SWAP_BYTES)
            swap_on(self._file, complaint="the kernel's swap cannot be used here")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        with uninterrupted():
            swap_off(self._file)
            self._file.unlink(missing_ok=True)


def no_kernel_swap(directory: Path, hierarchy: Hierarchy | str) -> str | None:
    """Why the kernel's swap cannot be measured here, if it cannot."""
    if isinstance(hierarchy, str):
        return hierarchy
    try:
        with KernelSwap(directory):
            return None
    except Failure as failure:
        return str(failure)


class Zram:
    """A zram device of our own, used as the kernel's swap."""

    def __init__(self, size: int, algorithm: str) -> None:
        self._size, self._algorithm = size, algorithm
        self._number = ""

    def __enter__(self) -> Zram:
        end_on_signals()
        if not CONTROL.exists():
            subprocess.run(["modprobe", "zram"], capture_output=True, check=False)
        if not CONTROL.exists():
            raise Failure("this kernel has no zram (no /sys/class/zram-control)")
        self._number = (CONTROL / "hot_add").read_text().strip()
        try:
            offered = self._file("comp_algorithm").read_text().replace("[", "").replace("]", "").split()
            if self._algorithm not in offered:
                raise Failure(f"this kernel's zram has no {self._algorithm}, only {', '.join(offered)}")
            self._file("comp_algorithm").write_text(self._algorithm)
            self._file("disksize").write_text(str(self._size))
            swap_on(self._device, "-p", "100", complaint="zram cannot be used as swap")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with uninterrupted():
            swap_off(self._device)
            self._file("reset").write_text("1")
            (CONTROL / "hot_remove").write_text(self._number)

    @property
    def _device(self) -> Path:
        return Path(f"/dev/zram{self._number}")

    def _file(self, name: str) -> Path:
        return Path(f"/sys/block/zram{self._number}/{name}")

    def memory_peak(self) -> int:
        """The most memory that the device has taken, in bytes."""
        return int(self._file("mm_stat").read_text().split()[4])


@contextlib.contextmanager
def on_zram(hierarchy: Hierarchy | str, limit: int, size: int, algorithm: str) -> Iterator[tuple[Zram, Cgroup]]:
    """Swap on a zram device of `size`, for a cgroup of this limit."""
    if isinstance(hierarchy, str):
        raise Failure(hierarchy)
    with Zram(size, algorithm) as zram, Cgroup(hierarchy, limit, kernel_swap=True) as cgroup:
        yield zram, cgroup


def no_zram() -> str | None:
    """Why zram cannot be measured here, if it cannot."""
    try:
        with Zram(MIB, "lz4"):
            return None
    except (Failure, OSError) as failure:
        return str(failure)
