"""Keeps the pager's handler for SIGBUS in front of those that Python code installs later.

With in-thread delivery the pager serves faults in a handler for SIGBUS. It passes on what is not its business to the handler that
was there before. `faulthandler` and `signal` know nothing of that: they would replace it, or, when they are switched off, put back
what was there before it. So from the first such pager on, their functions work on the handler below the pager's.
"""

from __future__ import annotations

import faulthandler
import functools
import signal
from collections.abc import Callable
from typing import Any

from . import _overspill

_kept = False


def _below(function: Callable[..., Any], concerns: Callable[..., bool]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        if not concerns(*arguments, **named):
            return function(*arguments, **named)
        return _overspill.below(lambda: function(*arguments, **named))

    return wrapped


def _always(*_: Any, **__: Any) -> bool:
    return True


def _is_sigbus(signalnum: Any = None, *_: Any, **__: Any) -> bool:
    return signalnum == signal.SIGBUS


def keep_the_handler() -> None:
    """Wraps `faulthandler.enable`, `faulthandler.disable` and `signal.signal`, once."""
    global _kept
    if _kept:
        return
    _kept = True
    faulthandler.enable = _below(faulthandler.enable, _always)
    faulthandler.disable = _below(faulthandler.disable, _always)
    signal.signal = _below(signal.signal, _is_sigbus)
