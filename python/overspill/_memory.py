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


def _of_cgroups() -> Iterator[int]:
    yield 1 << 62
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                root, limit, used = Path("/sys/fs/cgroup"), "memory.max", "memory.current"
            elif "memory" in controllers.split(","):
                root, limit, used = Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
            else:
                continue
            group = root / path.lstrip("/")
            while True:
                # a group that is not mounted here has no files; `max` is no limit
                with contextlib.suppress(OSError, ValueError):
                    yield max(int((group / limit).read_text()) - int((group / used).read_text()), 0)
                if group == root:
                    break
                group = group.parent
