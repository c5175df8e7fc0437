"""What becomes of a system call into memory that is out: the table of docs/PYTHON.md, row by row.

With handler threads everything works. With in-thread delivery an `overspill.Array` works or is refused with a message
that names the helper. A plain view fails with EFAULT, or the call returns that it did less.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import BUDGET, push_out

import overspill
from overspill import Pager

SMALL, LARGE = BUDGET // 8, BUDGET * 3 // 2
"""Bytes of an array that may be wired, and of one that may not."""


@pytest.fixture
def content() -> bytes:
    return np.random.default_rng(0).integers(0, 256, LARGE, np.uint8).tobytes()


@pytest.fixture
def path(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "content"
    path.write_bytes(content)
    return path


def out(pager: Pager, content: bytes) -> overspill.Array:
    """An array with that content, whose pages are out."""
    array = overspill.array(np.frombuffer(content, np.uint8), pager=pager)
    push_out(pager)
    return array


@contextlib.contextmanager
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@contextlib.contextmanager
def sender(content: bytes) -> Iterator[socket.socket]:
    """A socket from which the content comes, and then its end."""
    with sockets() as (left, right):

        def send() -> None:
            with contextlib.suppress(OSError), left:
                left.sendall(content)

        thread = threading.Thread(target=send)
        thread.start()
        yield right
        right.close()
        thread.join()


@contextlib.contextmanager
def receiver() -> Iterator[tuple[socket.socket, Callable[[], bytes]]]:
    """A socket to send to, and what came."""
    with sockets() as (left, right):
        parts: list[bytes] = []

        def receive() -> None:
            while part := right.recv(1 << 20):
                parts.append(part)

        thread = threading.Thread(target=receive)
        thread.start()

        def got() -> bytes:
            left.shutdown(socket.SHUT_WR)
            thread.join()
            return b"".join(parts)

        yield left, got
        with contextlib.suppress(OSError):
            left.shutdown(socket.SHUT_WR)
        thread.join()


# ---- arrays, as people have them ----


@pytest.mark.parametrize("buffering", [0, -1], ids=["raw", "buffered"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_readinto(pager: Pager, path: Path, content: bytes, size: int, buffering: int) -> None:
    array = out(pager, bytes(size))
    with open(path, "rb", buffering=buffering) as file:
        if size == SMALL or pager.delivery == "threads":
            assert file.readinto(array) == size
            assert array.tobytes() == content[:size]
        else:
            with pytest.warns(UserWarning, match=r"use overspill.readinto\(file, array\)"), pytest.raises(TypeError):
                file.readinto(array)
            assert file.tell() == 0 and not array.any()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_recv_into(pager: Pager, content: bytes, size: int) -> None:
    array = out(pager, bytes(size))
    with sender(content) as source:
        if size == SMALL or pager.delivery == "threads":
            got = source.recv_into(array)
            assert got > 0 and array[:got].tobytes() == content[:got] and not array[got:].any()
        else:
            with pytest.warns(UserWarning, match=r"use overspill.readinto\(file, array\)"), pytest.raises(TypeError):
                source.recv_into(array)


def test_fromfile(pager: Pager, path: Path, content: bytes) -> None:
    """NumPy's makes an ordinary array, so there is nothing to go wrong."""
    assert np.fromfile(path, np.uint8).tobytes() == content
    array = overspill.fromfile(path, "<u4", pager=pager)
    assert array.pager is pager and array.tobytes() == content
    with open(path, "rb") as file:
        file.seek(3)
        assert overspill.fromfile(file, "u1", 1000, offset=2, pager=pager).tobytes() == content[5:1005]
        assert file.tell() == 1005


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_writes(pager: Pager, tmp_path: Path, content: bytes, size: int) -> None:
    array = out(pager, content[:size])
    refused = size == LARGE and pager.delivery == "in-thread"

    def check(write: Callable[[], object], written: Callable[[], bytes]) -> None:
        if refused:
            with pytest.raises(overspill.Error, match=r"use overspill.tofile\(array, file\)") as raised:
                write()
            assert raised.value.errno == errno.ENOMEM and written() == b""
        else:
            write()
            assert written() == content[:size]
        push_out(pager)

    for name, buffering in [("raw", 0), ("buffered", -1)]:
        with open(tmp_path / name, "wb", buffering=buffering) as file:
            check(lambda: file.write(array) and file.flush(), (tmp_path / name).read_bytes)
    with open(tmp_path / "os", "wb") as file:
        check(lambda: os.write(file.fileno(), array), (tmp_path / "os").read_bytes)
    with open(tmp_path / "pickle", "wb", buffering=0) as file:
        check(lambda: pickle.dump(array, file, 5), lambda: b"" if refused else pickle.loads((tmp_path / "pickle").read_bytes()).tobytes())
    with receiver() as (sink, got):
        check(lambda: sink.sendall(array), got)
    check(lambda: hashlib.sha256(array), lambda: b"" if refused else content[:size])
    assert hashlib.sha256(memoryview(array)).digest() == hashlib.sha256(content[:size]).digest()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_tofile(pager: Pager, tmp_path: Path, content: bytes, size: int) -> None:
    array = out(pager, content[:size])
    array.tofile(tmp_path / "path")
    with open(tmp_path / "file", "wb") as file:
        array.reshape(4, -1)[1:].tofile(file)
        array[:: 1 << 16].tofile(file)
    with open(tmp_path / "text", "w") as text:
        array[:10].tofile(text, ",")
    assert (tmp_path / "path").read_bytes() == content[:size]
    assert (tmp_path / "file").read_bytes() == content[size // 4 : size] + content[: size : 1 << 16]
    assert (tmp_path / "text").read_text() == ",".join(map(str, content[:10]))
    fortran = array.reshape(4, -1, order="F")
    fortran.tofile(tmp_path / "fortran")
    assert (tmp_path / "fortran").read_bytes() == np.frombuffer(content[:size], "u1").reshape(4, -1, order="F").tobytes()


def test_names_and_text_files(pager: Pager, tmp_path: Path, content: bytes) -> None:
    """NumPy takes names of bytes, and writes bytes to files that are open for text."""
    array, name = out(pager, content[:SMALL]), os.fsencode(tmp_path / "bytes")
    array.tofile(name)
    assert overspill.fromfile(name, "u1", pager=pager).tobytes() == content[:SMALL]
    with open(tmp_path / "text", "w") as text:
        text.write("head\n")
        array.tofile(text)
        text.write("end\n")
    assert (tmp_path / "text").read_bytes() == b"head\n" + content[:SMALL] + b"end\n"


# ---- the helpers ----


@pytest.mark.parametrize("view", [lambda a: a, np.asarray], ids=["array", "plain"])
def test_helpers(pager: Pager, path: Path, tmp_path: Path, content: bytes, view: Callable) -> None:
    array = out(pager, bytes(LARGE))
    for buffering in (0, -1):
        with open(path, "rb", buffering=buffering) as file:
            assert overspill.readinto(file, view(array)) == LARGE
        assert array.tobytes() == content
        array[:] = 0
        push_out(pager)
    with sender(content) as source:
        assert overspill.readinto(source, view(array)) == LARGE
    assert array.tobytes() == content
    with receiver() as (sink, got):
        overspill.tofile(view(array), sink)
        assert got() == content
    overspill.tofile(view(array), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    with open(path, "rb") as file:  # the input ends
        file.seek(-1000, os.SEEK_END)
        assert overspill.readinto(file, view(array)) == 1000
    assert array[:1000].tobytes() == content[-1000:]


def test_what_helpers_refuse(pager: Pager, path: Path, content: bytes) -> None:
    array = pager.zeros((10, 10))
    with open(path, "rb") as file:
        with pytest.raises(ValueError, match="contiguous"):
            overspill.readinto(file, array[:, :5])
        array.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            overspill.readinto(file, array)
    ordinary = np.zeros(1000, "u1")
    with open(path, "rb") as file:
        assert overspill.readinto(file, ordinary) == 1000
        with pytest.raises(TypeError):  # a copy of it was filled
            overspill.readinto(file, [1, 2, 3])
        file.seek(0)
        assert overspill.readinto(file, into := bytearray(10)) == 10 and into == content[:10]


def test_wired_memory_works(pager: Pager, path: Path, content: bytes) -> None:
    array = out(pager, bytes(LARGE))
    piece = array[SMALL : 3 * SMALL]
    with overspill.wire(piece), open(path, "rb", buffering=0) as file:
        push_out(pager)
        assert file.readinto(memoryview(piece)) == 2 * SMALL
    assert piece.tobytes() == content[: 2 * SMALL] and not array[:SMALL].any() and not array[3 * SMALL :].any()


# ---- plain views ----


def told(call: Callable[[], int | None]) -> int:
    """The bytes that a system call says it has transferred; none if it says EFAULT."""
    try:
        return call() or 0
    except OSError as e:
        assert e.errno == errno.EFAULT
        return 0


@pytest.mark.parametrize("plain", [np.asarray, memoryview])
def test_plain_views(pager: Pager, path: Path, tmp_path: Path, content: bytes, plain: Callable) -> None:
    array = out(pager, content)
    threads = pager.delivery == "threads"
    target = out(pager, bytes(LARGE))
    with open(path, "rb", buffering=0) as file:
        if threads:
            assert file.readinto(plain(target)) == LARGE
        else:
            for there in (0, SMALL):  # bytes whose pages are in memory
                file.seek(0)
                target[:there] = 1
                done = told(lambda: file.readinto(plain(target)))
                assert there <= done < LARGE and target[:done].tobytes() == content[:done] and not target[done:].any()
            target[:] = 0
            push_out(pager)
    with open(path, "rb") as file:
        if threads:
            assert file.readinto(plain(target)) == LARGE
        else:
            with pytest.raises(OSError) as raised:  # also in part
                target[: SMALL] = 1
                file.readinto(plain(target))
            assert raised.value.errno == errno.EFAULT
    push_out(pager)
    with open(tmp_path / "plain", "wb", buffering=0) as file:
        if threads:
            assert os.write(file.fileno(), plain(array)) == LARGE
        else:
            done = told(lambda: os.write(file.fileno(), plain(array)))
            assert done < LARGE and (tmp_path / "plain").read_bytes() == content[:done]
    with receiver() as (sink, got):
        if threads:
            sink.sendall(plain(array))
            assert got() == content
        else:
            with pytest.raises(OSError) as raised:
                sink.sendall(plain(array))
            assert raised.value.errno == errno.EFAULT
    push_out(pager)
    if plain is np.asarray:
        if threads:
            plain(array).tofile(tmp_path / "plain")
            assert (tmp_path / "plain").read_bytes() == content
        else:
            with pytest.raises(OSError):
                plain(array).tofile(tmp_path / "plain")
