"""Arrays in a pager's memory are numpy arrays: everything that NumPy does with them gives what it gives elsewhere."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading

import numpy as np
import pytest
from conftest import BUDGET, push_out

import overspill
from overspill import Pager

MIB = 1 << 20


def numbers(pager: Pager, size: int = 2 * BUDGET // 8) -> tuple[overspill.Array, np.ndarray]:
    """The same random numbers in a pager's memory, of which most are out, and in ordinary memory."""
    model = np.random.default_rng(1).random(size)
    return overspill.array(model, pager=pager), model


DTYPES = ["?", "i1", "u2", "<i4", ">i8", "f2", "f4", "f8", "c16", "S7", "U3", "M8[s]", "m8[ms]", [("a", "i4"), ("b", "f8", (2,))]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(pager: Pager, dtype: object) -> None:
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(2).integers(0, 2 if dtype == "?" else 100, 200_000 * dtype.itemsize, np.uint8)
    model = raw.view(dtype) if dtype.kind != "U" else np.arange(200_000).astype(dtype)
    array = overspill.array(model, pager=pager)
    push_out(pager)
    assert isinstance(array, np.ndarray) and array.dtype == dtype
    assert array.tobytes() == model.tobytes()
    assert not overspill.zeros(100_000, dtype, pager=pager).tobytes().strip(b"\0")


def test_objects_are_refused(pager: Pager) -> None:
    with pytest.raises(TypeError, match="cannot be paged"):
        pager.zeros(3, object)


def test_shapes_and_orders(pager: Pager) -> None:
    for shape in [(), 0, (3, 0), 5, (4, 5), (2, 3, 4)]:
        for order in "CF":
            array, model = pager.zeros(shape, "i4", order), np.zeros(shape, "i4", order)
            assert (array.shape, array.strides, array.flags.f_contiguous) == (model.shape, model.strides, model.flags.f_contiguous)
    assert pager.full((2, 2), 7).dtype == np.dtype(int)
    assert overspill.ones(3, pager=pager).tolist() == [1, 1, 1]
    assert overspill.zeros_like(np.ones((2, 3), "f4", "F"), pager=pager).strides == (4, 8)
    assert overspill.empty_like(pager.zeros(3)).pager is pager
    for arguments in [(10,), (3, 1_000_000, 7), (0.5, 9.0, 0.25), (5, 0, -2)]:
        assert np.array_equal(overspill.arange(*arguments, pager=pager), np.arange(*arguments))
    for wrong in [lambda: pager.zeros(-1), lambda: pager.zeros(3, order="X"), lambda: overspill.arange(0, 3, 0, pager=pager)]:
        with pytest.raises(ValueError):
            wrong()


RANGES = [
    ((0, 7000, 0.1), "f2"), ((254, 256, 5), "u1"), ((300, 5), "u1"), ((5, 0, -1), "u8"), ((0, 200_000, 3), ">i4"), ((0, 1, 0.1), int),
    ((0, 130), "i1"), ((0, 3), complex), ((np.uint8(3), 10), None), ((0, 10, np.float32(0.1)), None), ((2**63, 2**63 + 5), None),
]


@pytest.mark.parametrize("arguments, dtype", RANGES, ids=str)
@pytest.mark.filterwarnings("error")
def test_ranges_of_all_dtypes(pager: Pager, arguments: tuple, dtype: object) -> None:
    """Those of float16 became infinite, as their positions did. Bytes were not swapped, and steps down wrapped with a warning."""
    array, model = overspill.arange(*arguments, dtype=dtype, pager=pager), np.arange(*arguments, dtype=dtype)
    assert array.dtype == model.dtype and array.tobytes() == model.tobytes()


SOURCES = [
    (["abc", "de"], str), ([b"abc", b"de"], "S"), (np.array(["abc", "de"]), "S"), (np.arange(3), "U"), ([True, False], "S"),
    (["2020-01-02"], "M8"), ([(1, 2.0), (3, 4.0)], [("a", "i4"), ("b", "f8")]), ([1, 2], ("f4", 2)), (np.arange(3), ("f4", (2,))),
    ([2**60 + 1, 0.5], "i8"), (["0.1"], "longdouble"), (np.arange(5), ">f4"), ((1, 2, 3), None),
]


@pytest.mark.parametrize("source, dtype", SOURCES, ids=str)
def test_copies_of_sequences(pager: Pager, source: object, dtype: object) -> None:
    """The sequence was converted without its dtype, and then cast: text became empty, and tuples became rows of structures."""
    array, model = overspill.array(source, dtype, pager=pager), np.array(source, dtype)
    assert array.dtype == model.dtype and array.shape == model.shape and (array == model).all()


def test_what_a_copy_refuses(pager: Pager) -> None:
    for source, dtype in [([300], "u1"), ([-1], "u8")]:
        with pytest.raises(OverflowError):
            overspill.array(source, dtype, pager=pager)
    for shape in (3.7, "12"):
        with pytest.raises(TypeError):
            pager.zeros(shape)
    text = pager.zeros(2, "U")
    text[:] = "ab"
    assert text.dtype == np.zeros(2, "U").dtype and text.tolist() == ["a", "a"]


def test_views_ufuncs_and_sums(pager: Pager) -> None:
    array, model = numbers(pager)
    matrix, square = array.reshape(1024, -1), model.reshape(1024, -1)
    assert np.shares_memory(matrix, array) and matrix.pager is pager
    for view, same in [(matrix.T[3], square.T[3]), (matrix[::-7, ::3], square[::-7, ::3]), (array[::1000], model[::1000])]:
        assert np.array_equal(view, same)
    matrix[:, 5] *= 2
    square[:, 5] *= 2
    np.sqrt(array, out=array)
    np.sqrt(model, out=model)
    assert array.sum() == model.sum() and array.argmax() == model.argmax()
    assert np.array_equal(matrix.mean(axis=0), square.mean(axis=0))
    total = array + 1
    assert type(total) is np.ndarray and np.array_equal(total, model + 1)
    assert np.array_equal(np.where(array > 0.5, array, 0), np.where(model > 0.5, model, 0))
    assert type(array.sum()) is np.float64 and type(array.max(axis=0)) is np.float64


def test_sort_and_search(pager: Pager) -> None:
    array, model = numbers(pager)
    array.sort()
    model.sort()
    assert np.array_equal(array, model)
    assert np.array_equal(np.searchsorted(array, [0.1, 0.5]), np.searchsorted(model, [0.1, 0.5]))
    assert np.array_equal(np.argsort(array[::-1], kind="stable"), np.argsort(model[::-1], kind="stable"))


def test_fancy_indexing(pager: Pager) -> None:
    array, model = numbers(pager)
    where = np.random.default_rng(3).integers(0, model.size, 5_000)
    got = array[where]
    assert np.array_equal(got, model[where]) and got.pager is None
    array[where] = where
    model[where] = where
    assert np.array_equal(array[array > 1], model[model > 1])
    np.add.at(array, where[:1000], 1)
    np.add.at(model, where[:1000], 1)
    assert np.array_equal(array, model)


def test_blas_and_linalg(pager: Pager) -> None:
    size = 1024  # 8 MiB each: as much as the budget
    left, right = (overspill.array(np.random.default_rng(seed).random((size, size)), pager=pager) for seed in (4, 5))
    product = pager.zeros((size, size))
    np.matmul(left, right, out=product)
    assert np.allclose(product, np.asarray(left).copy() @ np.asarray(right).copy())
    some = left[:100, :100]
    assert np.allclose(np.linalg.solve(some, right[:100, 0]), np.linalg.solve(some.copy(), right[:100, 0].copy()))


def test_threads_share_an_array(pager: Pager) -> None:
    array = pager.zeros((8, 2 * BUDGET // 64), np.int64)

    def work(row: int) -> None:
        for _ in range(3):
            array[row] += np.arange(array.shape[1])  # outside of Python's lock
            array[row].sort()

    threads = [threading.Thread(target=work, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(array, np.tile(3 * np.arange(array.shape[1]), (8, 1)))


def test_pickles_and_copies_are_ordinary(pager: Pager) -> None:
    array, model = numbers(pager, 3 * MIB // 8)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        for one, same in [(array, model), (array.reshape(3, -1).T, model.reshape(3, -1).T), (array[::2], model[::2])]:
            back = pickle.loads(pickle.dumps(one, protocol))
            assert type(back) is np.ndarray and np.array_equal(back, same)
    buffers: list[pickle.PickleBuffer] = []
    band = pickle.dumps(array, 5, buffer_callback=buffers.append)
    assert len(band) < 1000 and np.array_equal(pickle.loads(band, buffers=buffers), model)
    for copied in [array.copy(), copy.copy(array), copy.deepcopy(array)]:
        assert np.array_equal(copied, model) and overspill.pager_of(copied) is None
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(pager)


def test_interfaces_for_others(pager: Pager) -> None:
    array, model = numbers(pager)

    class Other:
        __array_interface__ = array.__array_interface__

    assert np.shares_memory(np.asarray(Other()), array)
    assert np.array_equal(np.from_dlpack(array), model)
    with memoryview(array) as view:
        assert view.format == "d" and view[5] == model[5]
    assert np.shares_memory(np.frombuffer(array), array)


def test_saved_and_loaded(pager: Pager, tmp_path) -> None:
    array, model = numbers(pager)
    for order in "CF":
        np.save(tmp_path / "a.npy", array.reshape(4, -1, order=order))
        assert np.array_equal(np.load(tmp_path / "a.npy"), model.reshape(4, -1, order=order))
        loaded = overspill.load(tmp_path / "a.npy", pager=pager)
        assert loaded.pager is pager and np.array_equal(loaded, model.reshape(4, -1, order=order))
    np.savez(tmp_path / "a.npz", array=array)
    assert np.array_equal(np.load(tmp_path / "a.npz")["array"], model)
    with open(tmp_path / "a.npy", "r+b") as cut:
        cut.truncate(1000)
    with pytest.raises(EOFError, match="before its array does"):
        overspill.load(tmp_path / "a.npy", pager=pager)
    with pytest.raises(ValueError):
        np.load(io.BytesIO(b"nothing"), allow_pickle=False)


def test_memory_stays_until_the_last_view_is_gone(pager: Pager) -> None:
    array = pager.full(2 * BUDGET // 8, 3.0)
    row, plain, buffer = array[-10:], np.asarray(array), memoryview(array)
    del array
    push_out(pager)
    assert row.sum() == 30 and plain[0] == 3 and buffer[7] == 3
    in_swap = pager.stats()["swap_used_bytes"]
    del plain
    buffer.release()
    gc.collect()
    push_out(pager)
    assert row.sum() == 30
    del row
    gc.collect()
    assert pager.stats()["swap_used_bytes"] < in_swap - BUDGET // 2


def test_an_array_outlives_its_pager(delivery: str) -> None:
    with overspill.Pager(BUDGET, delivery=delivery) as pager:
        array = pager.full(2 * BUDGET // 8, 3.0)
    with pytest.raises(overspill.Error, match="closed"):
        pager.zeros(3)
    del pager
    gc.collect()
    assert array.sum() == 3 * array.size


def test_many_arrays_come_and_go(pager: Pager) -> None:
    for _ in range(3):
        arrays = [pager.full(1000, i) for i in range(300)]
        assert all((array == i).all() for i, array in enumerate(arrays))
        del arrays
    used = pager.stats()
    assert used["swap_used_bytes"] <= BUDGET and "in memory" in repr(pager)
