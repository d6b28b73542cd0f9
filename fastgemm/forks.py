"""Locks and forks.

A lock that another thread holds at the moment of a fork stays locked in the child for ever: the thread is not there to release
it.  So a fork waits for the locks of this package that are held for long, those around compilation.
"""

from __future__ import annotations

import os
from typing import Protocol

__all__ = ["hold_across_forks"]


class _Lock(Protocol):
    def acquire(self) -> object: ...

    def release(self) -> object: ...


def hold_across_forks(lock: _Lock) -> None:
    """Take the lock before every fork and release it on both sides; nobody else holds it in the child."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)
