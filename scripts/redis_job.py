"""Redis under load: it forks while its pages are out, and the dumps of its children are checked.

A server is not a filter: it has no single output to compare. So these are compared, for the same keys with and without
Overspill:

- every value, read back through the socket in another order than it was written in;
- a dump saved **under load** and loaded by a second, unpaged server: it must hold each value as it was at the
  moment of the fork, although all of one group was overwritten straight after it (so the child's copy-on-write
  pages are what is tested, parked and paged-out ones too);
- a dump saved when quiet: `DEBUG DIGEST` of the server that wrote it and of the one that loaded it must agree,
  over all keys, also those of redis-benchmark.
"""

from __future__ import annotations

import hashlib
import random
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from common import Failure, Finished, Launcher, Running, started

VALUE_BYTES = 1000

MOVING_SHARE = 8
"""Every eighth key is overwritten right after the fork of the first dump."""

PIPELINE = 500
"""Requests in flight: enough to keep the server busy, few enough for its output buffers."""

ANSWER_SECONDS = 120.0
"""Longest wait for one answer. A server that thrashes is slow; a server that takes longer than this hangs."""

LOG_TAIL_LINES = 12

Reply = bytes | int | None


class Client:
    """As much of the Redis protocol as this needs: pipelined commands, their replies in order."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS)
        self._replies = self._socket.makefile("rb", buffering=1 << 16)

    def close(self) -> None:
        """Hang up."""
        self._replies.close()
        self._socket.close()

    def call(self, *words: str | bytes) -> Reply:
        """One command, one reply."""
        return self.pipeline([words])[0]

    def pipeline(self, commands: list[tuple[str | bytes, ...]]) -> list[Reply]:
        """Send all of `commands`, then read all replies."""
        request = bytearray()
        for words in commands:
            request += b"*%d\r\n" % len(words)
            for word in words:
                data = word.encode() if isinstance(word, str) else word
                request += b"$%d\r\n%b\r\n" % (len(data), data)
        self._socket.sendall(request)
        return [self._reply() for _ in commands]

    def _reply(self) -> Reply:
        line = self._replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$" and rest == b"-1":
            return None
        if kind == b"$":
            bulk: bytes = self._replies.read(int(rest) + 2)
            return bulk[:-2]
        raise Failure(f"redis answered {line!r}" if line else "redis hung up")


NOISE = random.Random(3).randbytes(1 << 20)


def value(key: int, version: int) -> bytes:
    """The value that belongs to a key: its name, then a window of noise; so it is cheap to make and to compare."""
    start = (key * 7919 + version * 104_729) % (len(NOISE) - VALUE_BYTES)
    return b"%d/%d:" % (key, version) + NOISE[start : start + VALUE_BYTES]


def write_values(client: Client, keys: list[int], version: int) -> None:
    """Set all of `keys` to their value of `version`."""
    for start in range(0, len(keys), PIPELINE):
        commands: list[tuple[str | bytes, ...]] = [
            ("SET", f"own:{key}", value(key, version)) for key in keys[start : start + PIPELINE]
        ]
        client.pipeline(commands)


def check_values(client: Client, keys: int, moved: int) -> str:
    """Read all keys in a shuffled order, check each, and return one digest over them.

    `moved` is the version that the moving keys must have.
    """
    order = list(range(keys))
    random.Random(keys).shuffle(order)
    digest = hashlib.sha256()
    for start in range(0, keys, PIPELINE):
        batch = order[start : start + PIPELINE]
        for key, found in zip(batch, client.pipeline([("GET", f"own:{key}") for key in batch]), strict=True):
            if found != value(key, moved if key % MOVING_SHARE == 0 else 1):
                raise Failure(f"redis returned a wrong value for own:{key}: {str(found)[:80]}")
            digest.update(found)
    return digest.hexdigest()


def info(client: Client, key: str) -> str:
    """One field of INFO."""
    text = client.call("INFO")
    assert isinstance(text, bytes)
    fields: dict[str, str] = dict(re.findall(r"^(\w+):(.*?)\r?$", text.decode(), re.MULTILINE))
    return fields[key]


def save(client: Client, timeout: float) -> None:
    """Wait for the BGSAVE that is under way, and see that it worked."""
    deadline = time.monotonic() + timeout
    while info(client, "rdb_bgsave_in_progress") != "0":
        if time.monotonic() > deadline:
            raise Failure(f"BGSAVE is not done after {timeout:.0f} s")
        time.sleep(0.05)
    if (status := info(client, "rdb_last_bgsave_status")) != "ok":
        raise Failure(f"BGSAVE ended with {status!r}")


def free_port() -> int:
    """A loopback port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def debug_option() -> list[str]:
    """DEBUG must be allowed by name since version 7; earlier ones do not know the option."""
    version = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    major = re.search(r"v=(\d+)", version)
    return ["--enable-debug-command", "local"] if major and int(major[1]) >= 7 else []


@contextmanager
def server(work: Path, launcher: Launcher, timeout: float) -> Iterator[tuple[Client, Running, int]]:
    """A server on a free port that answers, with its client; loads dump.rdb from `work` when that exists."""
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(work)]
    command += ["--dbfilename", "dump.rdb", "--save", "", "--appendonly", "no", *debug_option()]
    log = work / "redis.log"
    with started(launcher.wrap(command), work, stdout=log) as running:
        deadline = time.monotonic() + timeout
        client = None
        try:
            while client is None:
                try:
                    client = Client(port)
                    client.call("PING")
                except (OSError, Failure) as error:
                    # Refused while it starts, "-LOADING" while it reads its dump.
                    client = None
                    if running.exits_within(0) or time.monotonic() > deadline:
                        raise Failure(f"redis-server does not answer: {error}", running.wait(0)) from error
                    time.sleep(0.05)
            try:
                yield client, running, port
            except (OSError, Failure) as error:
                ended = running.wait(0) if running.exits_within(1) else None
                last = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
                raise Failure(f"{error}\nredis-server's log (its end):\n{last}", ended) from error
        finally:
            if client:
                client.close()


def stop(client: Client, running: Running, timeout: float) -> Finished:
    """SHUTDOWN without saving; the server hangs up instead of answering."""
    with suppress(Failure, OSError):
        client.call("SHUTDOWN", "NOSAVE")
    return running.wait(timeout)


def scenario(launcher: Launcher, work: Path, keys: int, output: Path, timeout: float) -> Finished:
    """Load `keys` keys, save under load and when quiet, load both dumps elsewhere; what was seen goes to `output`."""
    everything = list(range(keys))
    moving = everything[::MOVING_SHARE]
    dump = work / "dump.rdb"
    dump.unlink(missing_ok=True)

    with server(work, launcher, timeout) as (client, running, port):
        write_values(client, everything, version=1)
        load = ["redis-benchmark", "-p", str(port), "-t", "set,get,incr,hset", "-c", "8", "-P", "8"]
        load += ["-n", str(keys), "-r", str(keys // 4), "-d", "200", "-q"]
        with started(load, work) as benchmark:
            client.call("BGSAVE")
            write_values(client, moving, version=2)
            save(client, timeout)
            benchmarked = benchmark.wait(timeout)
        if why := benchmarked.complaint():
            raise Failure(f"redis-benchmark: {why}", benchmarked)
        read_back = check_values(client, keys, moved=2)
        dump.rename(work / "under-load.rdb")
        client.call("BGSAVE")
        save(client, timeout)
        dump.rename(work / "quiet.rdb")
        digest = client.call("DEBUG", "DIGEST")
        finished = stop(client, running, timeout)

    plain = Launcher(swap=launcher.swap)
    (work / "under-load.rdb").rename(dump)
    with server(work, plain, timeout) as (client, running, _):
        at_fork = check_values(client, keys, moved=1)
        stop(client, running, timeout)
    (work / "quiet.rdb").rename(dump)
    with server(work, plain, timeout) as (client, running, _):
        if (loaded := client.call("DEBUG", "DIGEST")) != digest:
            raise Failure(f"DEBUG DIGEST of the server is {digest!r}, of its dump loaded elsewhere {loaded!r}")
        stop(client, running, timeout)
    dump.unlink()
    output.write_text(f"read back {read_back}\nas of the fork {at_fork}\n")
    return finished
