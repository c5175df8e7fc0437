"""What the scripts share: running programs, with or without Overspill, and seeing what they really used.

Three things here decide whether a result can be believed:

- each run is a session of its own and is ended as one, so that a hanging program cannot outlive the script;
- the memory a program needs is measured (`ru_maxrss`), never assumed, because it differs between machines;
- a memory cgroup is the only witness that memory was given back. Cgroups, temporary directories and processes
  are removed on every way out: all of them are context managers, and signals become exceptions.

Python's standard library only: this must work from a fresh clone.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import IO

REPOSITORY = Path(__file__).resolve().parent.parent

MIB = 1 << 20

ALLOWANCE_BYTES = 48 * MIB
"""What a run may take beyond its budget: program text, page cache, kernel memory and the pager's own.
The one fixed allowance; a memory cgroup of budget + ALLOWANCE_BYTES must never kill anybody."""

SAMPLE_SECONDS = 0.02
"""How often a cgroup's anonymous memory is looked at; the kernel keeps a peak only of everything together."""

LEFT_OVER_SECONDS = 30.0
"""The last processes of an ended run count as left behind after this time."""

STDERR_TAIL_LINES = 20

KEPT = "kept-on-purpose"
"""Marks a work directory that the next script must not take for a leftover."""


# ---- sizes ----------------------------------------------------------------------------------------------------


def parse_size(text: str) -> int:
    """`64M`, `2G` or a plain number, as Overspill's own command line takes them (powers of 1024)."""
    units = {"K": 10, "M": 20, "G": 30}
    number, shift = (text[:-1], units[text[-1].upper()]) if text[-1:].upper() in units else (text, 0)
    return int(float(number) * (1 << shift))


def mib(size: int) -> str:
    """Bytes for a reader."""
    return f"{size / MIB:.0f} MiB"


# ---- running --------------------------------------------------------------------------------------------------


@dataclass
class Finished:
    """One ended run."""

    command: list[str]
    status: int
    """As a shell shows it: 128+n for signal n."""
    seconds: float
    peak_bytes: int
    """Largest resident size of any one process of the run (`ru_maxrss`). Never below the script's own size, some
    20 MiB, because a process begins as a copy of the one that starts it: see `gen.write`."""
    stderr: str
    timed_out: bool = False
    left_behind: bool = False

    def complaint(self) -> str | None:
        """One line that says what went wrong with the run itself, or nothing."""
        if self.timed_out:
            return f"not done after {self.seconds:.0f} s"
        if self.status:
            return f"exit status {self.status}"
        if self.left_behind:
            return "processes were left behind"
        return None


class Failure(Exception):
    """A run that failed; its text has all that a reader needs to repeat it."""

    def __init__(self, why: str, finished: Finished | None = None) -> None:
        parts = [why]
        if finished:
            parts += [f"command: {shlex.join(finished.command)}", f"exit status: {finished.status}"]
            tail = finished.stderr.splitlines()[-STDERR_TAIL_LINES:]
            parts += ["stderr (its end):", *(f"    {line}" for line in tail)] if tail else ["stderr: empty"]
        super().__init__("\n".join(parts))


@dataclass
class Running:
    """A started program, in a session of its own. Only `wait` may reap it: the peak is known only then."""

    command: list[str]
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]
    started: float = field(default_factory=time.monotonic)
    finished: Finished | None = None

    def wait(self, timeout: float) -> Finished:
        """Wait for the end; after `timeout` seconds end it by force and say so in the result."""
        if self.finished:
            return self.finished
        timed_out = not self.exits_within(timeout)
        if timed_out:
            self.kill()
        _, wait_status, usage = os.wait4(self.process.pid, 0)
        seconds = time.monotonic() - self.started
        status = os.waitstatus_to_exitcode(wait_status)
        self.process.returncode = status
        left_behind = not self._session_ends()
        if left_behind:
            self.kill()
        self.stderr.seek(0)
        self.finished = Finished(
            command=self.command,
            status=128 - status if status < 0 else status,
            seconds=seconds,
            peak_bytes=usage.ru_maxrss * 1024,
            stderr=self.stderr.read().decode(errors="replace"),
            timed_out=timed_out,
            left_behind=left_behind,
        )
        return self.finished

    def exits_within(self, seconds: float) -> bool:
        """Whether the program ends in time; it stays unreaped, because only `wait` can learn its peak."""
        handle = os.pidfd_open(self.process.pid)
        try:
            exited = select.poll()
            exited.register(handle, select.POLLIN)
            return bool(exited.poll(seconds * 1000))
        finally:
            os.close(handle)

    def end(self) -> None:
        """Make sure that it has ended."""
        if not self.finished:
            self.kill()
            self.wait(LEFT_OVER_SECONDS)

    def kill(self) -> None:
        """End every process of this run."""
        for pid in self.members():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def members(self) -> list[int]:
        """The run's processes: those of the session it was started as, whatever process groups they made."""
        found = []
        for entry in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                state, _, _, session, *_ = entry.read_text().rpartition(")")[2].split()
                if int(session) == self.process.pid and state != "Z":
                    found.append(int(entry.parent.name))
        return found

    def _session_ends(self) -> bool:
        deadline = time.monotonic() + LEFT_OVER_SECONDS
        while self.members():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


DIE_WITH_SCRIPT = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""So that a script ended by SIGKILL leaves no program that pages for ever."""


def environment(temporary: Path) -> dict[str, str]:
    """The caller's environment, less what would make two runs differ or write outside `temporary`."""
    return os.environ | {
        "LC_ALL": "C",
        "TMPDIR": str(temporary),
        "HOME": str(temporary),
        "PYTHONHASHSEED": "0",
    }


@contextlib.contextmanager
def started(
    command: Sequence[str | Path],
    work: Path,
    *,
    stdin: Path | None = None,
    stdout: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """Start `command` in `work`; whatever is still running at the end of the block is killed.
    `extra` goes into the environment."""
    with (
        open(stdin or os.devnull, "rb") as source,
        open(stdout or os.devnull, "wb") as sink,
        contextlib.ExitStack() as undo,
    ):
        stderr = undo.enter_context(tempfile.TemporaryFile())
        arguments = [str(word) for word in command]
        process = subprocess.Popen(
            [*DIE_WITH_SCRIPT, *arguments],
            cwd=work,
            env=environment(work) | dict(extra or {}),
            stdin=source,
            stdout=sink,
            stderr=stderr,
            start_new_session=True,
        )
        running = Running(arguments, process, stderr)
        undo.callback(running.end)
        yield running


def run(
    command: Sequence[str | Path],
    work: Path,
    timeout: float,
    *,
    stdin: Path | None = None,
    stdout: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> Finished:
    """Run `command` in `work` to its end."""
    with started(command, work, stdin=stdin, stdout=stdout, extra=extra) as running:
        return running.wait(timeout)


def strays(work: Path) -> list[int]:
    """Processes that were started with `work` as their $TMPDIR, as `run` does it, in whatever session they are by now."""
    mark = f"TMPDIR={work}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def first_difference(left: Path, right: Path) -> int | None:
    """Offset of the first byte in which two files differ, or nothing when they are the same.

    An offset says more than two digests would: a wrong page shows as a difference at a page's border.
    """
    offset = 0
    with left.open("rb") as one, right.open("rb") as other:
        while True:
            a, b = one.read(MIB), other.read(MIB)
            if a != b:
                same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                return offset + same
            if not a:
                return None
            offset += len(a)


def end_on_signals() -> None:
    """Turn TERM and HUP into an exception, as INT already is, so that every `with` block cleans up."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that end the script, also a second Ctrl-C, wait for the end of the block, here and in the commands it runs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def own_name() -> str:
    """The start of the name of everything that must not outlive this script; from it `stale` tells which script made it."""
    return f"overspill-{os.getpid()}-"


def stale(directory: Path) -> Iterator[Path]:
    """What earlier scripts left in `directory` when SIGKILL ended them."""
    for path in directory.glob("overspill-[0-9]*-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            yield path


@contextlib.contextmanager
def work_directory(keep: bool = False) -> Iterator[Path]:
    """A directory under $TMPDIR (else /tmp) for inputs, outputs and swap; removed at the end unless `keep`."""
    for path in stale(Path(tempfile.gettempdir())):
        if not (path / KEPT).exists():
            shutil.rmtree(path, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=own_name()))
    try:
        yield path
    finally:
        if keep:
            (path / KEPT).touch()
            print(f"kept: {path}")
        else:
            shutil.rmtree(path, ignore_errors=True)


# ---- what a script says -------------------------------------------------------------------------------------


class Tally:
    """Counts the cases of a script, and tells of each in a line, at once."""

    def __init__(self, width: int) -> None:
        """`width` is what the longest name takes."""
        self.passed = self.failed = self.skipped = 0
        self._width = width

    def say(self, mark: str, name: str, text: str) -> None:
        """One line of progress."""
        print(f"{mark:<5} {name:<{self._width}} {text}", flush=True)

    def ok(self, name: str, text: str) -> None:
        """A case that passed."""
        self.passed += 1
        self.say("ok", name, text)

    def fail(self, name: str, why: str, again: str) -> None:
        """A case that failed: `why` may have several lines, `again` is the command that repeats it."""
        self.failed += 1
        first, *rest = why.splitlines()
        self.say("FAIL", name, first)
        for line in [*rest, f"again: {again}"]:
            print(f"      {line}", flush=True)

    def skip(self, name: str, why: str) -> None:
        """A case that cannot be tried here."""
        self.skipped += 1
        self.say("skip", name, why)

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


# ---- Overspill ------------------------------------------------------------------------------------------------


def release_directory() -> Path:
    """Where cargo puts release builds."""
    return Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve() / "release"


def overspill_binary() -> Path:
    """The `overspill` under test: $OVERSPILL, else this workspace's release build."""
    binary = Path(os.environ.get("OVERSPILL", release_directory() / "overspill")).resolve()
    if not binary.exists():
        sys.exit(f"{binary} is missing: build it with `cargo build --release --workspace`, or set OVERSPILL")
    return binary


def cannot_page() -> str | None:
    """Why programs cannot be paged on this machine, in `overspill check`'s own words."""
    check = subprocess.run([overspill_binary(), "check"], capture_output=True, text=True)
    return f"{check.stdout}{check.stderr}".strip() if check.returncode else None


STATS_KEYS = (
    "policy",
    "memory_limit_bytes",
    "memory_peak_bytes",
    "metadata_bytes",
    "zero_fills",
    "soft_faults",
    "hard_faults",
    "pages_in",
    "page_in_ops",
    "pages_out",
    "page_out_ops",
    "swap_used_bytes",
    "swap_peak_bytes",
    "readahead_pages",
    "readahead_used",
    "wall_seconds",
)
"""What `--stats-file` promises to hold at least."""


@dataclass
class Launcher:
    """How a program is started: alone, under Overspill, in a memory cgroup, or both."""

    swap: Path
    """Directory for Overspill's swap file; must be empty again at the end."""
    memory: int | None = None
    """Overspill's budget in bytes, in whole MiB; None: without Overspill."""
    cgroup: Cgroup | None = None
    options: tuple[str, ...] = ()
    """Further options of `overspill run`, such as a policy."""

    @property
    def stats_file(self) -> Path:
        """Next to the swap directory, not in it: the swap directory must end up empty."""
        return self.swap.with_name(self.swap.name + "-stats.json")

    def wrap(self, command: Sequence[str | Path]) -> list[str | Path]:
        """The command line that starts `command` this way."""
        wrapped: list[str | Path] = list(command)
        if self.memory is not None:
            self.swap.mkdir(exist_ok=True)
            self.stats_file.unlink(missing_ok=True)
            wrapped = [
                overspill_binary(),
                "run",
                "--memory",
                f"{self.memory // MIB}M",
                "--swap",
                self.swap,
                "--stats-file",
                self.stats_file,
                *self.options,
                "--",
                *wrapped,
            ]
        return self.cgroup.wrap(wrapped) if self.cgroup else wrapped

    def stats(self) -> dict[str, int | float | str]:
        """Overspill's counters of the run, checked for what they promise."""
        try:
            counters: dict[str, int | float | str] = json.loads(self.stats_file.read_text())
        except (OSError, ValueError) as error:
            raise Failure(f"--stats-file gave no readable counters: {error}") from error
        missing = [key for key in STATS_KEYS if key not in counters]
        if missing:
            raise Failure(f"--stats-file lacks {', '.join(missing)}")
        if left := sorted(path.name for path in self.swap.iterdir()):
            raise Failure(f"the swap directory still holds {', '.join(left)}")
        return counters


# ---- memory cgroups -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hierarchy:
    """A mounted cgroup hierarchy with the memory controller, and what its files are called."""

    root: Path
    limit: str
    peak: str
    failures: tuple[str, str | None]
    """File and, where it has several, key: how often the limit was hit."""
    oom_kills: tuple[str, str]
    anonymous: str
    """Key in memory.stat for anonymous memory, that of descendants included."""
    no_swap: tuple[tuple[str, str | None], ...]
    """The value, and its file, that keep the group from using the kernel's swap; None as value: the limit itself."""


def memory_hierarchy() -> Hierarchy | str:
    """The machine's memory cgroups, version 1 or 2, or one sentence that says why none can be used."""
    if os.geteuid() != 0:
        return "memory cgroups need root"
    found = _mounted_hierarchy()
    if isinstance(found, Hierarchy):
        for path in stale(found.root):
            with contextlib.suppress(OSError):
                path.rmdir()
        # In containers they are often mounted read-only.
        try:
            with Cgroup(found, ALLOWANCE_BYTES):
                pass
        except OSError as error:
            return f"no memory cgroup can be made below {found.root}: {error.strerror}"
    return found


def _mounted_hierarchy() -> Hierarchy | str:
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, kind, options, *_ = line.split()
        root = Path(mount.encode().decode("unicode_escape"))
        if kind == "cgroup" and "memory" in options.split(","):
            return Hierarchy(
                root=root,
                limit="memory.limit_in_bytes",
                peak="memory.max_usage_in_bytes",
                failures=("memory.failcnt", None),
                oom_kills=("memory.oom_control", "oom_kill"),
                anonymous="total_rss",
                no_swap=(("memory.swappiness", "0"), ("memory.memsw.limit_in_bytes", None)),
            )
        if kind == "cgroup2" and "memory" in (root / "cgroup.controllers").read_text().split():
            try:
                (root / "cgroup.subtree_control").write_text("+memory")
            except OSError as error:
                return f"the memory controller cannot be switched on below {root}: {error.strerror}"
            return Hierarchy(
                root=root,
                limit="memory.max",
                peak="memory.peak",
                failures=("memory.events", "max"),
                oom_kills=("memory.events", "oom_kill"),
                anonymous="anon",
                no_swap=(("memory.swap.max", "0"),),
            )
    return "no cgroup hierarchy with the memory controller is mounted"


class Cgroup:
    """A memory cgroup with a hard limit, made on entry and removed on exit with everything in it."""

    def __init__(self, hierarchy: Hierarchy, limit: int, *, kernel_swap: bool = False) -> None:
        self.limit = limit
        self.anonymous_peak = 0
        self._hierarchy = hierarchy
        self._path = hierarchy.root / f"{own_name()}{time.monotonic_ns()}"
        self._kernel_swap = kernel_swap
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Cgroup:
        self._path.mkdir()
        try:
            (self._path / self._hierarchy.limit).write_text(str(self.limit))
            if not self._kernel_swap:
                for name, value in self._hierarchy.no_swap:
                    # A kernel without swap accounting lacks these files, and then has no swap to keep away.
                    if (self._path / name).exists():
                        (self._path / name).write_text(value or str(self.limit))
        except BaseException:
            self._path.rmdir()
            raise
        with uninterrupted():  # so that no signal goes to that thread, either
            self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with uninterrupted():
            self._ended.set()
            self._sampler.join()
            self._remove()

    def _remove(self) -> None:
        deadline = time.monotonic() + 10
        while True:
            for pid in self.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            try:
                self._path.rmdir()
                return
            except OSError as busy:
                # The kernel lets go of a dead member a moment after its parent has reaped it.
                if time.monotonic() > deadline:
                    print(f"cannot remove {self._path}: {busy.strerror}", file=sys.stderr)
                    return
                time.sleep(0.02)

    def wrap(self, command: Sequence[str | Path]) -> list[str | Path]:
        """A command that joins the group before it becomes `command`, so that its first page counts."""
        return ["sh", "-c", 'echo $$ >"$0" && exec "$@"', self._path / "cgroup.procs", *command]

    def members(self) -> list[int]:
        """The processes in the group."""
        return [int(pid) for pid in (self._path / "cgroup.procs").read_text().split()]

    def peak(self) -> int:
        """The most that was ever charged at once, page cache and kernel memory included."""
        return int((self._path / self._hierarchy.peak).read_text())

    def limit_hits(self) -> int:
        """How often an allocation met the limit and had to reclaim first."""
        return self._value(*self._hierarchy.failures)

    def oom_kills(self) -> int:
        """How many members the kernel has killed for want of memory."""
        return self._value(*self._hierarchy.oom_kills)

    def _value(self, name: str, key: str | None) -> int:
        text = (self._path / name).read_text()
        if key is None:
            return int(text)
        return next((int(words[1]) for words in map(str.split, text.splitlines()) if words[0] == key), 0)

    def _sample(self) -> None:
        while not self._ended.wait(SAMPLE_SECONDS):
            anonymous = self._value("memory.stat", self._hierarchy.anonymous)
            self.anonymous_peak = max(self.anonymous_peak, anonymous)


# ---- the machine ----------------------------------------------------------------------------------------------


def cpu_model() -> str:
    """The processor's name and number, for the head of a table of figures."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} CPUs"
    return f"{platform.machine()}, {os.cpu_count()} CPUs"
