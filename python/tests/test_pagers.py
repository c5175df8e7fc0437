"""What can be done with a pager, and what it says."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import BUDGET, Program, push_out

import overspill
from overspill import Pager, _memory

MIB = 1 << 20


def test_sizes_and_refusals(tmp_path: Path) -> None:
    with Pager("8M", tmp_path) as pager:
        assert pager.stats()["memory_limit_bytes"] == 8 * MIB
        assert not list(tmp_path.iterdir()), "the swap file has no name"
    with Pager("1%") as pager:
        assert pager.stats()["memory_limit_bytes"] >= 8 * MIB
    for memory, error in [("8 bananas", ValueError), (-1, ValueError), (1, overspill.Error)]:
        with pytest.raises(error):
            Pager(memory)
    with pytest.raises(overspill.Error, match="no replacement policy"):
        Pager("8M", policy="clairvoyant")
    with pytest.raises(ValueError, match="choose auto, threads or in-thread"):
        Pager("8M", delivery="pigeon")
    with pytest.raises(overspill.Error) as raised:
        Pager("8M", tmp_path / "nowhere" / "swap")
    assert raised.value.errno is not None and "nowhere" in str(raised.value)


@pytest.mark.parametrize("line, folder, names, prefix", [
    ("0::/job/step", "", ("memory.max", "memory.current"), ""),
    ("4:cpu,memory:/job/step", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"),
])
def test_what_is_available_in_a_cgroup(tmp_path: Path, line: str, folder: str, names: tuple[str, str], prefix: str) -> None:
    """A container that had read large files had next to nothing left for arrays, since the cache of files counts as used."""
    (tmp_path / "cgroup").write_text(f"1:name=systemd:/\n{line}\n")
    group = tmp_path / folder / "job" / "step"
    group.mkdir(parents=True)
    for name, size in zip(names, (128 * MIB, 127 * MIB), strict=True):
        (group / name).write_text(f"{size}\n")
        (group.parent / name).write_text("max\n")
    (group / "memory.stat").write_text(f"inactive_file 1\n{prefix}inactive_file {90 * MIB}\n{prefix}active_file {10 * MIB}\n")
    assert min(_memory._of_cgroups(tmp_path / "cgroup", tmp_path)) == 101 * MIB


def test_stats_and_repr(pager: Pager) -> None:
    array = pager.full(3 * BUDGET // 8, 1.0)
    stats = pager.stats()
    assert stats["delivery"] == pager.delivery and stats["policy"] == "use-once" and stats["first_loss"] is None
    assert stats["swap_used_bytes"] >= BUDGET and stats["metadata_bytes"] > 0
    assert [row["name"] for row in stats["swaps"]] and stats["swaps"][0]["used_bytes"] >= BUDGET
    assert {name for name, _, _ in Pager.counters_help()} <= stats.keys()
    assert all(text for row in Pager.counters_help() for text in row)
    text = repr(pager)
    assert "of 8.0 MiB in memory" in text and f"delivery {pager.delivery}" in text
    assert array.pager is pager
    pager.close()
    assert repr(pager) == "<overspill.Pager, closed>" and pager.closed
    with pytest.raises(overspill.Error, match="closed"):
        pager.stats()


def test_an_array_has_a_policy_of_its_own(tmp_path: Path) -> None:
    with Pager(BUDGET, tmp_path) as pager:
        index = overspill.full(BUDGET // 16, 1.0, pager=pager)
        log = overspill.zeros(2 * BUDGET // 8, pager=pager, policy="fifo")
        np.save(tmp_path / "table.npy", np.arange(BUDGET // 8))
        table = overspill.open_npy(tmp_path / "table.npy", pager=pager, policy="drop-behind")
        assert [overspill.policy_of(array) for array in (index, log[5:], table)] == ["use-once", "fifo", "drop-behind"]
        log[:] = 2.0
        assert table.sum() == np.arange(BUDGET // 8).sum() and index.sum() == len(index) and log.sum() == 2 * len(log)
        rows = pager.stats()["policies"]
        assert [row["policy"] for row in rows] == ["use-once", "fifo", "drop-behind"]
        assert rows[0]["region"] == "" and rows[1]["region"].startswith(f"{log.nbytes >> 10} KiB at 0x")
        assert rows[2]["region"] == str(tmp_path / "table.npy")
        assert rows[1]["evicted"] > 0 and all(row["resident"] > 0 and row["share"] > 0 for row in rows)
        overspill.set_policy(log[:10], "2q:kin=0.2")
        overspill.set_policy(index, "lru")
        assert overspill.policy_of(log) == "2q:kin=0.2" and overspill.policy_of(index) == "lru"
        with pytest.raises(overspill.Error, match="no replacement policy"):
            overspill.set_policy(index, "clairvoyant")
        with pytest.raises(overspill.Error, match="no replacement policy"):
            pager.empty(10, policy="clairvoyant")
        with pytest.raises(ValueError, match="not in the memory of a pager"):
            overspill.set_policy(np.zeros(10), "fifo")
        with open(tmp_path / "table.npy", "rb") as opened:
            assert overspill.policy_of(overspill.memmap(opened, np.uint8, "r", pager=pager, policy="sieve")) == "sieve"
        del log, table
        assert [row["policy"] for row in pager.stats()["policies"]] == ["use-once", "lru"]
        overspill.set_policy(index, None)
        assert overspill.policy_of(index) == "use-once" and len(pager.stats()["policies"]) == 1
        assert index.sum() == len(index)


def test_all_that_make_arrays_take_a_policy(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10))
    with Pager(BUDGET, tmp_path) as pager:
        prototype = pager.zeros(10)
        for make in [
            lambda policy: overspill.ones(10, pager=pager, policy=policy),
            lambda policy: overspill.full(10, 2, pager=pager, policy=policy),
            lambda policy: overspill.array([1, 2], pager=pager, policy=policy),
            lambda policy: overspill.arange(10, pager=pager, policy=policy),
            lambda policy: overspill.load(tmp_path / "a.npy", pager=pager, policy=policy),
            lambda policy: overspill.fromfile(tmp_path / "a.npy", np.uint8, pager=pager, policy=policy),
            lambda policy: overspill.empty_like(prototype, policy=policy),
            lambda policy: overspill.zeros_like(prototype, policy=policy),
            lambda policy: overspill.full_like(prototype, 3.0, policy=policy),
        ]:
            assert overspill.policy_of(make("fifo")) == "fifo"
            assert overspill.policy_of(make(None)) == "use-once"
        assert (overspill.full_like(prototype, 3.0) == 3.0).all()


@pytest.mark.parametrize("policy", overspill.POLICIES)
def test_policies(policy: str) -> None:
    with Pager(BUDGET) as pager:
        array = overspill.arange(2 * BUDGET // 8, pager=pager)
        pager.set_policy(policy)
        assert pager.policy.startswith(policy)
        assert np.array_equal(array, np.arange(array.size))
        with pytest.raises(overspill.Error):
            pager.set_policy("none-such")


def test_swap_devices_come_and_go(pager: Pager, tmp_path: Path) -> None:
    array = overspill.arange(4 * BUDGET // 8, pager=pager)
    first = pager.swaps()[0]["name"]
    pager.swapon(tmp_path)
    assert [row["name"] for row in pager.swaps()] == [first, str(tmp_path)]
    stop = threading.Event()

    def use() -> None:
        while not stop.is_set():
            array[::512] += 0

    user = threading.Thread(target=use)
    user.start()
    moved = pager.swapoff(first)
    stop.set()
    user.join()
    assert moved > 0 and [row["name"] for row in pager.swaps()] == [str(tmp_path)]
    assert np.array_equal(array, np.arange(array.size))
    with pytest.raises(overspill.Error):
        pager.swapoff("/none/such")
    with pytest.raises(ValueError, match="swap device"):
        pager.swapon("file:/tmp,size=banana")


def test_names_that_are_no_text(delivery: str, tmp_path: Path, program: Program) -> None:
    """Such a directory was refused, also as the one for temporary files, and its name in `swaps` was not its name."""
    place = tmp_path / os.fsdecode(b"\xff, \xc3\xa4")
    place.mkdir()

    class Place:
        def __fspath__(self) -> bytes:
            return os.fsencode(place)

    for swap in (place, Place()):
        with Pager(BUDGET, swap, delivery=delivery) as pager:
            array = overspill.arange(2 * BUDGET // 8, pager=pager)
            assert [row["name"] for row in pager.swaps()] == [str(place)]
            pager.swapon(tmp_path)
            assert pager.swapoff(swap) > 0
            pager.swapon(swap)
            assert [row["name"] for row in pager.swaps()] == [str(tmp_path), str(place)]
            assert np.array_equal(array, np.arange(array.size))
    ran = program("import os, overspill; assert overspill.Pager('8M').swaps()[0]['name'] == os.environ['TMPDIR']", TMPDIR=str(place))
    assert ran.returncode == 0, ran


def test_a_swapoff_ends_when_its_progress_raises(delivery: str, tmp_path: Path, program: Program) -> None:
    text = """
        import sys, overspill
        pager = overspill.Pager("8M", sys.argv[2], delivery=sys.argv[1])
        array = pager.full(64 << 17, 1.0)
        name = pager.swaps()[0]["name"]
        pager.swapon(sys.argv[3])
        def stop(moved, left):
            raise KeyboardInterrupt(f"{left} left")
        try:
            pager.swapoff(name, stop)
        except KeyboardInterrupt as e:
            print(e)
        assert name in [row["name"] for row in pager.swaps()], pager.swaps()
        assert array.sum() == array.size
    """
    (tmp_path / "spare").mkdir()
    slow = {"OVERSPILL_INJECT": "swapoff_pages=1"}  # so that there is progress to tell of
    ran = program(text, delivery, str(tmp_path), str(tmp_path / "spare"), **slow)
    assert ran.returncode == 0 and ran.stdout.endswith("left\n"), ran


def test_a_thread_uses_an_array_during_a_swapoff_into_memory(delivery: str, tmp_path: Path, program: Program) -> None:
    """A thread touched a page of which only the swapoff's next step would end the read, and kept Python's lock as it waited. Before
    that step the swapoff wanted the lock to look for signals, so both waited for ever."""
    text = """
        import sys, threading, numpy as np, overspill
        pager = overspill.Pager("128M", sys.argv[2], delivery=sys.argv[1])
        array = pager.full((112 << 20) // 8, 1.0)
        filler = pager.full((124 << 20) // 8, 2.0)
        del filler
        pages, sums, calls = array[::512], [], []
        order = [int(n) for n in np.random.default_rng(1).permutation(pages.size)]  # in order they would be read ahead: too fast
        sys.setswitchinterval(60)  # so the thread keeps the lock until it has touched them all
        begun = threading.Event()
        def add():
            begun.wait()
            sums.append(sum(pages[n] for n in order))
        def told(moved, left):
            calls.append(left)
            begun.set()
        adder = threading.Thread(target=add)
        adder.start()
        moved = pager.swapoff(pager.swaps()[0]["name"], told)
        begun.set()
        adder.join()
        assert moved > 0 and calls and not pager.swaps(), (moved, calls)
        assert sums == [pages.size] and array.sum() == array.size
        print(calls)
    """
    slow = {"OVERSPILL_INJECT": "swapoff_pages=1"}
    ran = program(text, delivery, str(tmp_path), **slow)
    assert ran.returncode == 0 and ran.stdout, ran


def test_advice(pager: Pager) -> None:
    array = overspill.arange(2 * BUDGET // 8, pager=pager)
    push_out(pager)
    overspill.prefetch(array[: MIB // 8])
    pager.advise(array[MIB // 8 : MIB // 4], "willneed")
    assert np.array_equal(array, np.arange(array.size))
    used = pager.stats()["swap_used_bytes"]
    push_out(pager)
    pager.advise(array[100:-100], "dontneed")
    assert pager.stats()["swap_used_bytes"] < used
    assert not array[100:-100].any() and array[99] == 99 and array[-1] == array.size - 1
    array[:] = 5
    overspill.discard(array)
    assert not array.any()
    with pytest.raises(ValueError, match="choose willneed or dontneed"):
        overspill.advise(array, "perhaps")
    with pytest.raises(ValueError, match="contiguous"):
        overspill.discard(array[::2])
    with pytest.raises(ValueError, match="not in the memory of a pager"):
        overspill.discard(np.zeros(10))
    with pytest.raises(ValueError, match="not in the memory of this pager"):
        pager.wire(np.zeros(10))
    array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        overspill.discard(array)


def test_threads_discard_neighbours(pager: Pager) -> None:
    """Each thread fills and discards its own part of an array while the others use theirs."""
    array = pager.zeros((4, 2 * BUDGET // 32), np.int64)

    def work(row: int) -> None:
        for turn in range(1, 20):
            array[row] = turn * 10 + row
            assert (array[row] == turn * 10 + row).all()
            overspill.discard(array[row])
            assert not array[row].any()
        done.append(row)

    done: list[int] = []
    threads = [threading.Thread(target=work, args=(row,)) for row in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1, 2, 3]


def test_wires(pager: Pager) -> None:
    array = overspill.arange(2 * BUDGET // 8, pager=pager)
    part = array[: BUDGET // 4 // 8]
    with pager.wire(part) as wired:
        assert wired is part
        push_out(pager)
        before = pager.stats()["hard_faults"]
        assert part[::512].sum() == np.arange(0, part.size, 512).sum()
        assert pager.stats()["hard_faults"] == before, "what is wired does not go out"
        with pytest.raises(overspill.Error, match="wired"):
            overspill.discard(part)
    overspill.discard(part)
    with pytest.raises(overspill.Error, match="cannot be wired"):
        with overspill.wire(array):
            pass
    with overspill.wire(array[: BUDGET // 2 // 8 - 512]):
        pass
    with overspill.wire(pager.zeros(0)):
        pass


def test_a_wire_outlives_its_array(pager: Pager) -> None:
    array = pager.full(1000, 2.0)
    wire = overspill.wire(array)
    with wire as wired:
        plain = memoryview(wired)
        del array, wired
        assert plain[7] == 2


def test_other_threads_run_while_pages_are_wired(pager: Pager) -> None:
    interval = sys.getswitchinterval()
    array = overspill.arange(2 * BUDGET // 8, pager=pager)
    part = array[: BUDGET // 4 // 8]
    sys.setswitchinterval(1000)  # so a thread that does not release Python's lock keeps it
    try:
        for _ in range(50):
            push_out(pager)
            order, go = [], threading.Lock()
            go.acquire()

            def work(order: list[str] = order, go: threading.Lock = go) -> None:
                go.release()
                order.append("begun")
                with overspill.wire(part):
                    order.append("wired")

            thread = threading.Thread(target=work)
            thread.start()
            go.acquire()
            order.append("meanwhile")
            thread.join()
            if order == ["begun", "meanwhile", "wired"]:
                return
    finally:
        sys.setswitchinterval(interval)
    pytest.fail(f"Python's lock was held: {order}")


class Stop(Exception):
    pass


def test_signals_end_a_long_wire(delivery: str) -> None:
    def stop(*_: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with Pager("128M", delivery=delivery) as pager:
            array = pager.full(60 * MIB // 8, 1.0)
            overspill.discard(array)
            signal.setitimer(signal.ITIMER_REAL, 0.001)
            with pytest.raises(Stop):
                with overspill.wire(array):
                    time.sleep(60)
                    pytest.fail("no signal")
            with overspill.wire(array):  # nothing was left wired
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_ctrl_c_ends_a_transfer(delivery: str, program: Program) -> None:
    """It may come while a piece is wired, too: then it was once a TypeError about the argument of `readinto`."""
    text = """
        import signal, sys, overspill
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        pager = overspill.Pager("8M", delivery=sys.argv[1])
        array = pager.zeros(32 << 20, "u1")
        for at in range(60):
            signal.setitimer(signal.ITIMER_REAL, 0.02 + at / 10_000)
            try:
                with open("/dev/zero", "rb", buffering=0) as zero:
                    while True:
                        overspill.readinto(zero, array)
            except KeyboardInterrupt:
                pass
        print("stopped", array.sum())
    """
    ran = program(text, delivery)
    assert ran.returncode == 0 and ran.stdout == "stopped 0\n", ran


def test_the_default_pager(program: Program) -> None:
    text = """
        import overspill
        overspill.configure(policy="2q")
        a = overspill.ones(1000)
        pager = a.pager
        assert pager is overspill.default_pager() and pager.policy == "2q" and pager.delivery == "in-thread"
        assert pager.stats()["memory_limit_bytes"] == 16 << 20
        try:
            overspill.configure("1G")
        except overspill.Error as e:
            print(e)
        pager.close()
        assert overspill.zeros(3).pager is not pager
        assert a.sum() == 1000
    """
    ran = program(text, OVERSPILL_PYTHON_MEMORY="16M", OVERSPILL_PYTHON_DELIVERY="in-thread")
    assert ran.returncode == 0 and "in use already" in ran.stdout, ran


def test_types_are_told() -> None:
    package = Path(overspill.__file__).parent
    assert (package / "py.typed").exists() and (package / "_overspill.pyi").exists()
    for name in overspill.__all__:
        thing = getattr(overspill, name)
        assert not callable(thing) or thing.__doc__, f"{name} has no docstring"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its rights")
def test_without_privileges(program: Program) -> None:
    text = """
        import os, overspill
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        pager = overspill.Pager("8M")
        a = overspill.arange(3 << 20, pager=pager)
        assert a.sum() == a.size * (a.size - 1) // 2
        print(pager.delivery)
        try:
            overspill.Pager("8M", delivery="threads")
        except overspill.Error as e:
            print(e)
    """
    ran = program(text)
    assert ran.returncode == 0, ran
    if Path("/proc/sys/vm/unprivileged_userfaultfd").read_text().strip() == "0":
        assert ran.stdout.startswith("in-thread\n") and "not permitted" in ran.stdout, ran
