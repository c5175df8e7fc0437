"""How much memory there is for this process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def available_bytes() -> int:
    """The least of what the machine has available and what the limits of this process's memory cgroups leave."""
    return min(_of_the_machine(), *_of_cgroups())


def _of_the_machine() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 1 << 62


def _of_cgroups(own: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    yield 1 << 62
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                root, limit, used, cache = mounted, "memory.max", "memory.current", ""
            elif "memory" in controllers.split(","):
                root, limit, used, cache = mounted / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
            else:
                continue
            group = root / path.lstrip("/")
            while True:
                # a group that is not mounted here has no files; `max` is no limit
                with contextlib.suppress(OSError, ValueError):
                    most, in_use = int((group / limit).read_text()), int((group / used).read_text())
                    yield max(most - in_use + _file_cache(group, cache), 0)
                if group == root:
                    break
                group = group.parent


def _file_cache(group: Path, prefix: str) -> int:
    """What counts as used by a group and is given up when it needs memory. MemAvailable of a machine has that, too."""
    figures = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return sum(int(figures.get(f"{prefix}{name}_file", 0)) for name in ("active", "inactive"))
