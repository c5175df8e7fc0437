"""Keeps the pager's handler for SIGBUS in place when Python code installs handlers later.

With in-thread delivery the pager serves faults in a handler for SIGBUS. It passes on what is not its business to the handler that
was there before. `faulthandler` and `signal` know nothing of that: they would replace it, or, when they are switched off, put back
what was there before it. So from the first such pager on:

    faulthandler.enable     faulthandler has its handlers already, below the pager's, and only gets another file
    faulthandler.disable    faulthandler gets /dev/null as its file, and keeps its handlers
    signal.signal(SIGBUS)   works on the handler below the pager's; for some microseconds the pager's is not there

The last one may end the process if another thread touches a page that is out at that moment. So may the first two if the program
had a handler for SIGBUS when the first pager was made: then they work as the last one does.
"""

from __future__ import annotations

import _signal as signals_of_c  # what signal.signal calls
import faulthandler
import functools
import os
import signal
from typing import Any

from . import _overspill

_enable, _disable, _signal = faulthandler.enable, faulthandler.disable, signal.signal
_signal_of_c = signals_of_c.signal
_done = False
_nowhere: int | None = None
"""A descriptor of /dev/null, if faulthandler has its handlers for good."""
_enabled = False
"""Whether the program has faulthandler enabled."""


def before_the_handler() -> None:
    """Called before the pager's handler is installed. Does its work once."""
    global _done, _enabled, _nowhere
    if _done:
        return
    _done = True
    _enabled = faulthandler.is_enabled()
    # A handler that the program has installed must not come to lie below faulthandler's, which ends the process.
    if _enabled or signal.getsignal(signal.SIGBUS) is signal.SIG_DFL:
        _nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        if not _enabled:
            _enable(file=_nowhere)
    faulthandler.enable = enable
    faulthandler.disable = disable
    faulthandler.is_enabled = is_enabled
    signal.signal = _signal_below


@functools.wraps(faulthandler.enable)
def enable(*arguments: Any, **named: Any) -> None:
    global _enabled
    if _nowhere is None:
        _overspill.below(functools.partial(_enable, *arguments, **named))
    else:
        _enable(*arguments, **named)
    _enabled = True


@functools.wraps(faulthandler.disable)
def disable() -> Any:  # a bool, which its type does not say
    global _enabled
    if _nowhere is None:
        _overspill.below(_disable)
    else:
        _enable(file=_nowhere)
    was, _enabled = _enabled, False
    return was


@functools.wraps(faulthandler.is_enabled)
def is_enabled() -> bool:
    return _enabled


@functools.wraps(signal.signal)
def _signal_below(signalnum: Any, handler: Any) -> Any:
    if signalnum == signal.SIGBUS:
        # Without a function of Python's: it would let other threads run, which may touch pages, while the pager's handler is away.
        plain = int(handler) if isinstance(handler, signal.Handlers) else handler
        before = _overspill.below(functools.partial(_signal_of_c, int(signalnum), plain))
        return signal.Handlers(before) if isinstance(before, int) else before
    return _signal(signalnum, handler)
