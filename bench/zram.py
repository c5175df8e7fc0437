"""The kernel's compressed memory."""

from __future__ import annotations

import subprocess
from pathlib import Path

from common import Failure

CONTROL = Path("/sys/class/zram-control")


class Zram:
    """A zram device of our own, used as the kernel's swap."""

    def __init__(self, size: int, algorithm: str) -> None:
        self._size, self._algorithm = size, algorithm
        self._number = ""

    def __enter__(self) -> Zram:
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
            for command in (["mkswap", self._device], ["swapon", "-p", "100", self._device]):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise Failure(f"zram cannot be used as swap: {done.stderr.strip()}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._device in Path("/proc/swaps").read_text():
            subprocess.run(["swapoff", self._device], check=True)
        self._file("reset").write_text("1")
        (CONTROL / "hot_remove").write_text(self._number)

    @property
    def _device(self) -> str:
        return f"/dev/zram{self._number}"

    def _file(self, name: str) -> Path:
        return Path(f"/sys/block/zram{self._number}/{name}")

    def memory_peak(self) -> int:
        """The most memory that the device has taken, in bytes."""
        return int(self._file("mm_stat").read_text().split()[4])
