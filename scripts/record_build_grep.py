#!/usr/bin/env python3
"""Records a build of a C program and a `grep -r` of a large tree at the same time as one reference string of file pages: the
experiment of the mailing-list thread about use-once.

Both programs run, each under strace; their system calls are merged by time and given to `overspill trace convert`. In the
experiment the disk of 2001 kept the two in step. Here everything is in the page cache, and grep would end before the second file is
compiled. So strace delays each of grep's reads (fault injection), by 2 ms unless an option says otherwise: about 50 MB/s in large
files, 250 small files a second. The recording ends with the build, as the experiment timed make.

    scripts/record_build_grep.py --source redis-7.2.6 --tree /usr/share --out bench/traces/build_grep.ovt.zst \\
        -- make -j1 MALLOC=libc OPTIMIZATION=-O2 AR=gcc-ar RANLIB=gcc-ranlib
"""

import argparse
import heapq
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
# The system calls that the reader of strace traces follows: see crates/trace/src/format/strace.rs.
CALLS = (
    "open,openat,openat2,creat,memfd_create,close,close_range,dup,dup2,dup3,fcntl,pipe,pipe2,socketpair,read,readv,write,writev,"
    "pread64,preadv,preadv2,pwrite64,pwritev,pwritev2,sendfile,copy_file_range,splice,lseek,fstat,newfstatat,ftruncate,mmap,chdir,"
    "fchdir,unshare,execve,execveat,clone,clone3,fork,vfork"
)


def strace(log: Path, *options: str) -> list[str]:
    return ["strace", "-f", "-y", "-ttt", "-s", "0", "-o", str(log), "-e", f"trace={CALLS}", *options, "--"]


def lines_by_time(log: Path):
    """(time, line) of a log. strace writes them in order, up to the clock's resolution."""
    with log.open(errors="surrogateescape") as file:
        for line in file:
            yield float(line.split(None, 2)[1]), line


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True, help="directory of a C program that has not been built")
    parser.add_argument("--tree", type=Path, required=True, help="large tree for grep -r")
    parser.add_argument("--out", type=Path, required=True, help="trace to write, NAME.ovt.zst; must not exist")
    parser.add_argument("--delay-us", type=int, default=2000, help="delay of each of grep's reads, in microseconds [2000]")
    parser.add_argument("--overspill", default=str(REPOSITORY / "target/release/overspill"), help="the command")
    parser.add_argument("--keep", type=Path, help="directory to leave the merged strace log in")
    parser.add_argument("build", nargs="+", help="the build command, run in --source")
    args = parser.parse_args()
    for program in ["strace", "grep", args.build[0], args.overspill]:
        if shutil.which(program) is None:
            sys.exit(f"{program} was not found; install it, or build Overspill, and try again")
    if args.out.exists():
        sys.exit(f"{args.out} exists already; remove it or name another file")

    with tempfile.TemporaryDirectory(prefix="overspill-record-") as directory:
        logs = [Path(directory, "build.strace"), Path(directory, "grep.strace")]
        # A literal that files hardly ever contain, so that grep reads each file to its end.
        slow_grep = strace(logs[1], "-e", f"inject=read:delay_exit={args.delay_us}")
        grep = subprocess.Popen(
            [*slow_grep, "grep", "-r", "-a", "use_once_pages_of_2001", str(args.tree)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        begin = time.monotonic()
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        build = subprocess.run([*strace(logs[0]), *args.build], cwd=args.source, stdout=subprocess.DEVNULL, env=environment)
        seconds = time.monotonic() - begin
        early = grep.poll() is not None
        if not early:
            os.killpg(grep.pid, signal.SIGTERM)
            grep.wait()
        if build.returncode != 0:
            sys.exit(f"the build failed with status {build.returncode}; nothing was written")
        if early:
            print("note: grep was through before the build; take a larger tree", file=sys.stderr)

        merged = Path(args.keep or directory, "merged.strace")
        with merged.open("w", errors="surrogateescape") as file:
            file.writelines(line for _, line in heapq.merge(*map(lines_by_time, logs)))
        print(f"build: {seconds:.0f} s; grep: {'all' if early else 'part'} of {args.tree}", file=sys.stderr)
        convert = [args.overspill, "trace", "convert", "--trace-format", "strace", str(merged), str(args.out)]
        return subprocess.run(convert).returncode


if __name__ == "__main__":
    sys.exit(main())
