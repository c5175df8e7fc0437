"""A forked child confines itself: by a user namespace (`namespace`), or by a seccomp filter that allows everything (`filter`).
Prints whether it has memory that it shares with its parent, before and after."""

import ctypes
import os
import sys

CLONE_NEWUSER = 0x10000000
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
RETURN, ALLOW = 0x06, 0x7FFF0000
LEAST = 1 << 20
"""The pager shares a few small pieces besides the cache."""


def shares() -> bool:
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps if "rw-s" in line and "/dev/zero" in line]
    return any(int(end, 16) - int(start, 16) >= LEAST for start, end in ranges)


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def confine(how: str) -> int:
    libc = ctypes.CDLL(None)
    if how == "namespace":
        return libc.unshare(CLONE_NEWUSER)
    instruction = ctypes.create_string_buffer(RETURN.to_bytes(4, "little") + ALLOW.to_bytes(4, "little"))
    return libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Filter(1, ctypes.addressof(instruction))))


if (child := os.fork()) == 0:
    before, result, after = shares(), confine(sys.argv[1]), shares()
    print(before, result, after, flush=True)
    os._exit(0)
os.waitpid(child, 0)
