"""Locks and forks.

A lock that another thread holds at the moment of a fork stays locked in the child for ever: the thread is not there to release
it.  So a fork waits for the locks of this package that are held for long, those around imports and compilation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

__all__ = ["around_forks", "hold_across_forks"]


class _Lock(Protocol):
    def acquire(self) -> object: ...

    def release(self) -> object: ...


# In the order they are taken in, by a fork as by a thread that takes one inside another: imports, compilation, tables.
_locks: list[_Lock] = []


def around_forks(before: Callable[[], object], after: Callable[[], object]) -> None:
    """Call both around every fork, `after` in parent and child; a fork that the registration itself falls into calls neither."""
    begun: list[bool] = []

    def first() -> None:
        before()
        begun.append(True)

    def then() -> None:
        if begun:
            begun.pop()
            after()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=first, after_in_parent=then, after_in_child=then)


def hold_across_forks(lock: _Lock) -> None:
    """Take the lock before every fork and release it on both sides; nobody else holds it in the child."""
    _locks.append(lock)
    if len(_locks) == 1:
        # A fork calls what was registered last first, and has to have our locks before those that numba's import takes.
        import concurrent.futures.thread  # noqa: F401
        import logging  # noqa: F401

        around_forks(_take_all, _give_back)


_taken: list[_Lock] = []


def _take_all() -> None:
    at = 0
    while at < len(_locks):  # more may come while one is waited for: an import brings those of its modules
        _locks[at].acquire()
        _taken.append(_locks[at])
        at += 1


def _give_back() -> None:
    while _taken:
        _taken.pop().release()
