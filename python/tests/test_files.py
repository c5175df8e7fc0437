"""Arrays over files, compared with `numpy.memmap`."""

from __future__ import annotations

import gc
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
from conftest import BUDGET, Program, push_out

import overspill
from overspill import Pager


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    np.arange(2 * BUDGET // 8).tofile(path)
    return path


@pytest.mark.parametrize("mode", ["r", "r+", "c", "readonly", "readwrite", "copyonwrite"])
@pytest.mark.parametrize("offset, shape, order", [(0, None, "C"), (4096, (100, 50), "F"), (800, (1000,), "C"), (24, 7, "C")])
def test_as_numpys(pager: Pager, path: Path, mode: str, offset: int, shape: object, order: str) -> None:
    model = np.memmap(path, np.int64, mode, offset, shape, order)
    array = overspill.memmap(path, np.int64, mode, offset, shape, order, pager=pager)
    assert array.pager is pager and isinstance(array, overspill.Array)
    assert np.array_equal(array, model)
    for name in ("shape", "strides", "dtype", "mode", "offset"):
        assert getattr(array, name) == getattr(model, name), name
    assert array.flags.writeable == model.flags.writeable and Path(array.filename) == path
    assert array[1:].filename == array.filename and array.copy().filename is None and array.sum() == model.sum()


def test_dtypes_with_a_shape_and_files_without_a_name(pager: Pager, path: Path) -> None:
    """Such dtypes were refused: their array has more dimensions than were asked for. Descriptors have numbers for names."""
    dtype = np.dtype(("<i8", (2, 3)))
    assert path.stat().st_size % dtype.itemsize == 16
    descriptor = os.open(path, os.O_RDONLY)
    with open(descriptor, "rb") as opened:
        for shape in (None, 7, (4, 5)):
            model = np.memmap(opened, dtype, "r", 16, shape)
            array = overspill.memmap(opened, dtype, "r", 16, shape, pager=pager)
            assert array.shape == model.shape and np.array_equal(array, model)
            assert array.filename is None is model.filename
        with pytest.raises(overspill.Error, match="descriptor"):
            overspill.memmap(opened, "u1", "r", 0, path.stat().st_size + 1, pager=pager)


def test_changes_reach_the_file(pager: Pager, path: Path) -> None:
    size = path.stat().st_size
    array = overspill.memmap(path, np.int64, pager=pager)
    model = np.fromfile(path, np.int64)
    for a in (array, model):
        a[::1000] = -1
        a[-1] = 77
    array.flush()
    assert np.array_equal(np.fromfile(path, np.int64), model)
    array[5] = model[5] = 12
    array[:100].flush()
    assert np.fromfile(path, np.int64, 10)[5] == 12
    array[6] = model[6] = 13
    row = array[3:]
    del array
    row[0] = model[3] = 14
    del row
    gc.collect()
    assert np.array_equal(np.fromfile(path, np.int64), model) and path.stat().st_size == size


def test_private_changes_and_read_only(pager: Pager, path: Path) -> None:
    before = path.read_bytes()
    private = overspill.memmap(path, np.int64, "c", pager=pager)
    private[:] = 5
    push_out(pager)
    assert (private == 5).all()
    private.flush()
    assert path.read_bytes() == before
    array = overspill.memmap(path, np.int64, "r", pager=pager)
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        overspill.discard(array)
    with pytest.raises(ValueError, match="a file"):
        overspill.discard(private)


def test_new_files(pager: Pager, tmp_path: Path) -> None:
    array = overspill.memmap(tmp_path / "new", "f4", "w+", 100, (1000, 1000), pager=pager)
    assert not array.any()
    array[7] = 3
    array.flush()
    assert (np.memmap(tmp_path / "new", "f4", "r", 100, (1000, 1000))[7] == 3).all()
    del array
    gc.collect()
    longer = overspill.memmap(tmp_path / "new", "u1", "r+", 0, 5_000_000, pager=pager)
    assert longer.size == 5_000_000 == (tmp_path / "new").stat().st_size and not longer[4_100_000:].any()
    del longer
    gc.collect()
    with open(tmp_path / "new", "rb") as opened:
        assert overspill.memmap(opened, "u1", "c", pager=pager).size == 5_000_000


def test_a_refused_array_leaves_the_file(pager: Pager, path: Path, tmp_path: Path) -> None:
    """`w+` emptied the file before it was refused: the array that had it lost its changes, and a touch was a SIGBUS."""
    before = path.read_bytes()
    array = overspill.memmap(path, "u1", "r+", pager=pager)
    push_out(pager)
    for again in (
        lambda: overspill.memmap(path, "u1", "w+", 0, 1000, pager=pager),
        lambda: overspill.open_npy(path, "w+", "u1", 1000, pager=pager),
        lambda: overspill.open_npy(path, "w+", object, 1000, pager=pager),
        lambda: overspill.open_npy(path, "w+", "u1", 0, pager=pager),
        lambda: overspill.memmap(path, "u1", "w+", 0, (-1, -5), pager=pager),
        lambda: overspill.memmap(path, "u1", "w+", 0, 1000, "X", pager=pager),
    ):
        with pytest.raises((overspill.Error, TypeError, ValueError)):
            again()
    assert array.tobytes() == before == path.read_bytes()
    del array
    gc.collect()
    later = overspill.memmap(path, "u1", "r", 8192, pager=pager)
    for shape, order in (((-1, -5), "C"), ((1000,), "X"), ((1000,), "C")):  # (the last would take the pages of the other array)
        with pytest.raises((overspill.Error, ValueError)):
            overspill.memmap(path, "u1", "w+", 0, shape, order, pager=pager)
    assert later.tobytes() == before[8192:] and path.read_bytes() == before
    np.save(tmp_path / "x.npy", np.ones(3))
    with pytest.raises(overspill.Error, match="policy"):
        overspill.open_npy(tmp_path / "x.npy", "w+", "f8", 5, pager=pager, policy="none such")
    assert np.load(tmp_path / "x.npy").sum() == 3
    assert overspill.open_npy(tmp_path / "x.npy", "w+", "f8", 5, pager=pager).sum() == 0


def test_npy(pager: Pager, tmp_path: Path) -> None:
    for order in "CF":
        model = np.arange(BUDGET // 4).reshape(4, -1, order=order).astype("<i4", order=order)
        np.save(tmp_path / "a.npy", model)
        for mode in ("r", "r+", "c"):
            array = overspill.open_npy(tmp_path / "a.npy", mode, pager=pager)
            assert array.dtype == model.dtype and array.strides == model.strides and np.array_equal(array, model)
            del array
            gc.collect()
    made = overspill.open_npy(tmp_path / "b.npy", "w+", "f8", (300, 4000), True, pager=pager)
    made[:, 5] = np.arange(300)
    made.flush()
    back = np.load(tmp_path / "b.npy")
    assert back.shape == (300, 4000) and back.flags.f_contiguous and np.array_equal(back, made)


def test_names_of_fields_in_npy_files(pager: Pager, tmp_path: Path) -> None:
    """Names that are not in Latin-1 came back as other ones, since NumPy writes them in version 3.0; no file could be made."""
    for name in ("x", "ä", "Ω'\\"):
        dtype = np.dtype([(name, "<f8"), ("y", "<i4")])
        model = np.ones(1000, dtype)
        with warnings.catch_warnings(action="ignore"):  # of NumPy's, that old ones cannot read it
            np.save(tmp_path / "a.npy", model)
        for array in (overspill.load(tmp_path / "a.npy", pager=pager), overspill.open_npy(tmp_path / "a.npy", pager=pager)):
            assert array.dtype == dtype and np.array_equal(array, model)
        made = overspill.open_npy(tmp_path / "b.npy", "w+", dtype, 1000, pager=pager)
        made[:] = model
        made.flush()
        assert made.offset % 64 == 0 and np.load(tmp_path / "b.npy").dtype == dtype
        assert np.array_equal(np.load(tmp_path / "b.npy", mmap_mode="r"), model)
        del made
        gc.collect()
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x04\x00" + bytes(100))
    with pytest.raises(ValueError, match="version"):
        overspill.load(tmp_path / "a.npy", pager=pager)


def test_system_calls(pager: Pager, path: Path, tmp_path: Path) -> None:
    array = overspill.memmap(path, "u1", "r+", pager=pager)
    push_out(pager)
    array.tofile(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == path.read_bytes()
    push_out(pager)
    with overspill.wire(array[1000:300_000]) as outer:
        with overspill.wire(array[100_000:200_000]):
            pass
        push_out(pager)
        with open("/dev/zero", "rb", buffering=0) as zero:
            assert zero.readinto(memoryview(outer)) == outer.size
    assert not array[1000:300_000].any() and array[304_000:].any()
    overspill.prefetch(array)


def test_refusals(pager: Pager, path: Path, tmp_path: Path) -> None:
    for arguments, error in [
        (("x",), ValueError), (("w+",), ValueError), (("r", 3), ValueError), (("r", 0, 10**9), overspill.Error), (("r", 0, 0), ValueError),
    ]:
        with pytest.raises(error):
            overspill.memmap(path, np.int64, *arguments, pager=pager)
    with pytest.raises(FileNotFoundError):
        overspill.memmap(tmp_path / "none", pager=pager)
    with pytest.raises(TypeError, match="cannot lie in a file"):
        overspill.memmap(path, object, pager=pager)
    one = overspill.memmap(path, pager=pager)
    with pytest.raises(overspill.Error, match="another region"):
        overspill.memmap(path, pager=pager)
    assert one.size == path.stat().st_size


def test_a_forked_child_is_told(program: Program, path: Path, delivery: str) -> None:
    text = """
        import os, signal, sys, overspill
        pager = overspill.Pager("8M", delivery=sys.argv[1])
        array = overspill.memmap(sys.argv[2], pager=pager)
        for touch in [array.flush, lambda: overspill.memmap(sys.argv[2], mode="r", pager=pager), lambda: overspill.prefetch(array)]:
            child = os.fork()
            if child == 0:
                try:
                    touch()
                except overspill.Error as e:
                    assert "spawn or forkserver" in str(e), e
                    os._exit(7)
                os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    """
    ran = program(text, delivery, str(path))
    assert ran.returncode == 0, ran


def test_changes_reach_the_file_at_the_exit(program: Program, path: Path, delivery: str) -> None:
    text = """
        import os, sys, overspill
        pager = overspill.Pager("8M", delivery=sys.argv[1])
        circle = [overspill.memmap(sys.argv[2], pager=pager)]
        circle.append(circle)
        circle[0][::4096] = 99
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
    """
    ran = program(text, delivery, str(path))
    assert ran.returncode == 0 and ran.stderr == "", ran
    assert (np.fromfile(path, "u1")[::4096] == 99).all()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_changes_of_a_worker_reach_the_file(program: Program, path: Path, tmp_path: Path, delivery: str, method: str) -> None:
    """A worker of multiprocessing ends by os._exit unless it was spawned. What it had not flushed was lost."""
    (tmp_path / "worker.py").write_text(
        "import overspill\n"
        "def change(path, delivery):\n"
        "    global kept\n"
        "    kept = overspill.memmap(path, pager=overspill.Pager('8M', delivery=delivery))\n"
        "    kept[::4096] = 99\n"
    )
    text = """
        import multiprocessing, sys
        sys.path.append(sys.argv[1])
        import worker
        process = multiprocessing.get_context(sys.argv[4]).Process(target=worker.change, args=sys.argv[2:4])
        process.start()
        process.join()
        assert process.exitcode == 0, process
    """
    ran = program(text, str(tmp_path), str(path), delivery, method)
    assert ran.returncode == 0 and ran.stderr == "", ran
    assert (np.fromfile(path, "u1")[::4096] == 99).all()
