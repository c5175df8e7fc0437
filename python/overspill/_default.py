"""The pager of arrays that are made without one."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from ._overspill import Error
from ._pager import Pager, Place

_lock = threading.Lock()
_pager: Pager | None = None
_memory: int | str = os.environ.get("OVERSPILL_PYTHON_MEMORY") or "50%"
_swap: Place | Iterable[Place] | None = os.environ.get("OVERSPILL_PYTHON_SWAP") or None
_policy: str = os.environ.get("OVERSPILL_PYTHON_POLICY") or "use-once"
_delivery: str = os.environ.get("OVERSPILL_PYTHON_DELIVERY") or "auto"


def configure(
    memory: int | str | None = None,
    swap: Place | Iterable[Place] | None = None,
    *,
    policy: str | None = None,
    delivery: str | None = None,
) -> None:
    """Sets the default pager's options, as `Pager` takes them. Must be called before its first array.

    Without it they come from the environment: `OVERSPILL_PYTHON_MEMORY` (else half of the memory that is available when the first
    array is made), `OVERSPILL_PYTHON_SWAP` (else the directory for temporary files), `OVERSPILL_PYTHON_POLICY` (else `use-once`),
    `OVERSPILL_PYTHON_DELIVERY` (else `auto`).
    """
    global _memory, _swap, _policy, _delivery
    with _lock:
        if _pager is not None:
            raise Error("the default pager is in use already: call configure() before the first array is made, or make a Pager")
        _memory = _memory if memory is None else memory
        _swap = _swap if swap is None else swap
        _policy = _policy if policy is None else policy
        _delivery = _delivery if delivery is None else delivery


def default_pager() -> Pager:
    """The pager of arrays that are made without one. Makes it if there is none yet."""
    global _pager
    with _lock:
        if _pager is None or _pager.closed:
            _pager = Pager(_memory, _swap, policy=_policy, delivery=_delivery)
        return _pager


def _in_child() -> None:
    """A forked child makes a default pager of its own when it needs one."""
    global _lock, _pager
    _lock = threading.Lock()
    _pager = None


os.register_at_fork(after_in_child=_in_child)
