"""Scratch memory for packed tiles: borrowed for a call, kept for the next one.

What is kept is bounded: one buffer per call that ever ran at the same time, each as large as the largest it served, and none at all
above :data:`KEEP_BYTES`.  A forked child starts with none (its parent's buffers may be in use).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

__all__ = ["KEEP_BYTES", "borrowed", "kept_bytes"]

KEEP_BYTES = 64 << 20
_ALIGN = 4096
_free: deque[np.ndarray] = deque()


@contextmanager
def borrowed(size: int) -> Iterator[int]:
    """The page-aligned address of ``size`` bytes, for the length of a ``with`` block."""
    try:
        buffer = _free.pop()
    except IndexError:
        buffer = np.empty(0, np.uint8)
    if buffer.nbytes < size + _ALIGN:
        buffer = np.empty(size + _ALIGN, np.uint8)
    try:
        yield -(-buffer.ctypes.data // _ALIGN) * _ALIGN
    finally:
        if buffer.nbytes <= KEEP_BYTES:
            _free.append(buffer)


def kept_bytes() -> int:
    """Bytes held for later calls."""
    return sum(buffer.nbytes for buffer in list(_free))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free.clear)
