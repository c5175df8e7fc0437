"""Forks, processes of multiprocessing, and other users of SIGBUS. Each test runs programs of their own."""

from __future__ import annotations

import signal
from pathlib import Path

from conftest import Program

START = """
import sys, os, signal, faulthandler
import numpy as np
import overspill
pager = overspill.Pager("8M", delivery=sys.argv[1])
array = overspill.arange(2 << 20, pager=pager)
right = array.size * (array.size - 1) // 2
"""

END = """
assert array.sum() == right
print("all is well")
"""


def check(program: Program, delivery: str, text: str) -> str:
    """Runs a program between those two. Returns what it writes to standard error."""
    ran = program(START + text + END, delivery)
    assert ran.returncode == 0 and ran.stdout.endswith("all is well\n"), ran
    return ran.stderr


def test_a_forked_child_is_told(program: Program, delivery: str) -> None:
    text = """
calls = [
    lambda: pager.zeros(3), lambda: pager.stats(), lambda: pager.swaps(), lambda: pager.policy, lambda: pager.set_policy("2q"),
    lambda: pager.swapon("/tmp"), lambda: pager.swapoff("/tmp"), lambda: overspill.prefetch(array), lambda: overspill.discard(array),
    lambda: overspill.wire(array).__enter__(), lambda: pager.metadata_bytes(), lambda: pager.first_loss(),
]
child = os.fork()
if child == 0:
    for call in calls:
        try:
            call()
        except overspill.Error as e:
            assert "spawn or forkserver" in str(e), e
        else:
            print("no error")
            os._exit(1)
    assert "forked" in repr(pager)
    own = overspill.ones(1000)      # from a default pager of its own
    assert own.sum() == 1000
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    check(program, delivery, text)


def test_a_forked_child_that_touches_an_array_says_why_it_ends(program: Program, delivery: str) -> None:
    for touch in ["array[5]", "array.sum()", "bytes(memoryview(array)[:10])", "np.asarray(array)[3]"]:
        text = f"""
child = os.fork()
if child == 0:
    {touch}
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV
"""
        assert "this process was forked and touches memory of a pager" in check(program, delivery, text)


def test_multiprocessing(program: Program, delivery: str, tmp_path: Path) -> None:
    module = tmp_path / "job.py"
    module.write_text("def total(array):\n    return int(array.sum())\n")
    text = f"""
if __name__ == "__main__":
    sys.path.insert(0, {str(tmp_path)!r})
    import multiprocessing, job
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(job.total, [array[:1000], array[1000:]]) == [499500, right - 499500]
    forked = multiprocessing.get_context("fork").Process(target=lambda: array.sum())
    forked.start()
    forked.join()
    assert forked.exitcode == -signal.SIGSEGV, forked.exitcode
"""
    script = tmp_path / "main.py"
    script.write_text(START + text + "    " + END.strip().replace("\n", "\n    ") + "\n")
    ran = program("import runpy, sys; sys.argv[0] = sys.argv.pop(); runpy.run_path(sys.argv[0], run_name='__main__')", delivery, str(script))
    assert ran.returncode == 0 and ran.stdout.endswith("all is well\n"), ran
    assert "spawn or forkserver" in ran.stderr


def test_faulthandler_comes_and_goes(program: Program, delivery: str) -> None:
    text = """
import tempfile
for turn in range(3):
    assert not faulthandler.is_enabled()
    with tempfile.TemporaryFile() as file:
        faulthandler.enable(file)
        assert faulthandler.is_enabled() and array.sum() == right
        assert faulthandler.disable() is True
    assert faulthandler.disable() is False and array.sum() == right
"""
    assert check(program, delivery, text) == ""


def ends_by_sigbus(program: Program, delivery: str, before: str, after: str) -> str:
    """A program whose swap fails: it is ended by SIGBUS. Returns what it writes to standard error."""
    ran = program("import faulthandler, signal, sys, os\n" + before + "\n" + START + after + END, delivery, OVERSPILL_INJECT="read=50")
    assert ran.returncode == -signal.SIGBUS and "all is well" not in ran.stdout, ran
    return ran.stderr


def test_faulthandler_tells_of_lost_pages(program: Program, delivery: str) -> None:
    enable = "faulthandler.enable()\n"
    for before, after in [(enable, ""), ("", enable), (enable, "faulthandler.disable()\n" + enable)]:
        said = ends_by_sigbus(program, delivery, before, after)
        assert said.count("Fatal Python error: Bus error") == 1 and "in <module>" in said, said
    for before, after in [("", ""), ("", enable + "faulthandler.disable()\n"), (enable, "faulthandler.disable()\n")]:
        assert ends_by_sigbus(program, delivery, before, after) == ""


def test_handlers_of_python_keep_working(program: Program, delivery: str) -> None:
    text = """
got = []
def handler(number, frame):
    got.append(number)
assert signal.getsignal(signal.SIGBUS) is signal.SIG_DFL
for turn in range(3):
    assert signal.signal(signal.SIGBUS, handler) is signal.SIG_DFL
    assert array.sum() == right
    signal.raise_signal(signal.SIGBUS)
    assert len(got) == turn + 1
    assert signal.signal(signal.SIGBUS, signal.SIG_DFL) is handler
    assert array.sum() == right
signal.signal(signal.SIGUSR1, handler)
os.kill(os.getpid(), signal.SIGUSR1)
assert got[-1] == signal.SIGUSR1
"""
    check(program, delivery, text)


def test_two_threads_change_handlers(program: Program, delivery: str) -> None:
    """The first held the pager's lock and waited for Python's, the second the other way round."""
    before = "import signal\nsignal.signal(signal.SIGBUS, lambda *_: None)\n"
    text = """
import threading, time
class Slow:
    def fileno(self):
        time.sleep(1)
        return 2
    def flush(self):
        pass
told = []
def change():
    time.sleep(0.3)
    try:
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
    except ValueError as e:  # only the main thread may
        told.append(e)
thread = threading.Thread(target=change, daemon=True)
thread.start()
faulthandler.enable(Slow())
thread.join(10)
assert len(told) == 1
"""
    ran = program(before + START + text + END, delivery)
    assert ran.returncode == 0, ran


def test_threads_touch_arrays_while_handlers_change(program: Program, delivery: str) -> None:
    """The thread that changed a handler waited for Python's lock while the pager's was away, and left it to who touched arrays."""
    text = """
import threading
going = True
def touch():
    while going:
        for i in range(0, array.size, 512):
            array.item(i)
thread = threading.Thread(target=touch)
thread.start()
for turn in range(200):
    signal.signal(signal.SIGBUS, signal.SIG_DFL if turn % 2 else lambda *_: None)
going = False
thread.join()
"""
    check(program, delivery, text)


def test_a_handler_from_before_keeps_working(program: Program, delivery: str) -> None:
    """To switch faulthandler on beforehand put its handler above that one, and the first signal took the pager's handler away."""
    before = "import signal\ngot = []\nsignal.signal(signal.SIGBUS, lambda *_: got.append(1))\n"
    after = """
for turn in range(3):
    signal.raise_signal(signal.SIGBUS)
    assert len(got) == turn + 1 and array.sum() == right
    faulthandler.enable()
    assert faulthandler.disable() and array.sum() == right
"""
    ran = program(before + START + after + END, delivery)
    assert ran.returncode == 0, ran


def test_the_exit_is_quiet(program: Program, delivery: str) -> None:
    """Arrays and pagers that are left at the end, some in circles, and some used by a daemon thread."""
    text = """
circle = [array, pager]; circle.append(circle)
default = overspill.ones(1000)
"""
    if delivery == "threads":  # in-thread it may end by SIGBUS: docs/PYTHON.md
        text += """
import threading
def use():
    while True:
        array[::512].sum()
threading.Thread(target=use, daemon=True).start()
"""
    assert check(program, delivery, text) == ""
