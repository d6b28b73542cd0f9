"""How many threads a call may use, and where the number comes from.

The first of these that is set decides: the ``threads=`` argument of a call, the :func:`threads` context, the number given to
:func:`set_num_threads`, ``FASTGEMM_NUM_THREADS``, ``OMP_NUM_THREADS``, and at last the host: the processors of the affinity
mask, but no more than the whole processors of the cgroup's CPU quota.  A number somebody asked for is taken as it is, also
above the number of processors; it is a ceiling (small work stays on the caller's thread).

Nothing here imports numba.
"""

from __future__ import annotations

import ctypes
import operator
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

from . import cgroup

__all__ = ["MAX_THREADS", "alone", "describe", "get_num_threads", "pool_kind", "resolve", "set_num_threads", "threads"]

MAX_THREADS = 512

# What `threads(n)` set in this context (0: nothing), and the process-wide number once it is known (0: not yet).
_limit: ContextVar[int] = ContextVar("fastgemm_threads", default=0)
_count = 0
_source = ""
_chosen = 0
# Whether every call has one thread, for compiled code: 1 once that is known, and until a block asks for more.
alone = ctypes.c_int64(0)
_widened = False


def _checked(value: Any, what: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{what} must be an integer, got {value!r}")
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, got {value!r} ({type(value).__name__})") from None
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(f"{what} must be between 1 and {MAX_THREADS}, got {count}")
    return count


def _from_environment() -> tuple[int, str] | None:
    own = os.environ.get("FASTGEMM_NUM_THREADS", "").strip()
    if own:
        if not own.isdecimal() or not 1 <= int(own) <= MAX_THREADS:
            raise ValueError(
                f"FASTGEMM_NUM_THREADS must be an integer between 1 and {MAX_THREADS}, got {own!r}; correct or unset it"
            )
        return int(own), f"FASTGEMM_NUM_THREADS={own}"
    # OpenMP allows a list, one number per nesting level, and its own runtimes pass over what they cannot read.
    openmp = os.environ.get("OMP_NUM_THREADS", "")
    first = openmp.split(",")[0].strip()
    if first.isdecimal() and int(first) >= 1:
        return min(int(first), MAX_THREADS), f"OMP_NUM_THREADS={openmp}"
    return None


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _from_host() -> tuple[int, str]:
    processors = _processors()
    quota = cgroup.cpu_quota()
    if quota is not None and int(quota) < processors:
        return max(1, int(quota)), f"cgroup CPU quota of {quota:g} processors (affinity mask: {processors})"
    return min(processors, MAX_THREADS), f"affinity mask of {processors} processors"


def _resolve() -> int:
    global _count, _source
    if _chosen:
        _count, _source = _chosen, f"set_num_threads({_chosen})"
    else:
        _count, _source = _from_environment() or _from_host()
    alone.value = _count == 1 and not _widened
    return _count


def _forget() -> None:
    """A forked child may have another affinity mask or cgroup; a number that was set stays set."""
    global _count
    _count = alone.value = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def get_num_threads() -> int:
    """The number of threads a call without ``threads=`` may use in this context.

    Environment, affinity mask and quota are read once (and again in a forked child, or after ``set_num_threads(None)``).
    """
    return _limit.get() or _count or _resolve()


def set_num_threads(n: int | None) -> None:
    """Set the number of threads of the process; None goes back to the environment and the host, read afresh.

    Inside a ``with threads(...)`` block the block's number stays in force until it ends.
    Raises TypeError for what is not an integer and ValueError outside 1 … 512.
    """
    global _chosen
    _chosen = 0 if n is None else _checked(n, "set_num_threads: n")
    _resolve()


def threads(n: int) -> AbstractContextManager[None]:
    """Limit the calls of a ``with`` block (or of a decorated function) to `n` threads.

    The limit belongs to the context, as :mod:`contextvars` has it: other Python threads and asyncio tasks do not see it.
    Blocks nest, the innermost counts.

    >>> import fastgemm as fg
    >>> with fg.threads(1):
    ...     fg.get_num_threads()
    1
    """
    return _limited(_checked(n, "threads: n"))


@contextmanager
def _limited(n: int) -> Iterator[None]:
    global _widened
    if n > 1:
        _widened, alone.value = True, 0
    token = _limit.set(n)
    try:
        yield
    finally:
        _limit.reset(token)


def resolve(requested: int | None) -> int:
    """The count for a call with ``threads=requested``."""
    return get_num_threads() if requested is None else _checked(requested, "threads")


def pool_kind() -> str:
    """Which pool this process uses: ``"futex"`` on Linux (x86-64, AArch64), ``"portable"`` elsewhere.

    ``FASTGEMM_POOL=portable`` takes the portable one on Linux too.
    """
    able = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    asked = os.environ.get("FASTGEMM_POOL", "").strip() or ("futex" if able else "portable")
    if asked not in ("futex", "portable"):
        raise ValueError(f"FASTGEMM_POOL must be 'futex' or 'portable', got {asked!r}; correct or unset it")
    if asked == "futex" and not able:
        raise ValueError("FASTGEMM_POOL=futex needs Linux on x86-64 or AArch64; unset it")
    return asked


def describe() -> dict[str, Any]:
    """The count in force, where it came from, and what the host offers."""
    count = get_num_threads()
    block = _limit.get()
    if not block and not _source:
        _resolve()
    return {
        "threads": count,
        "source": f"fastgemm.threads({block})" if block else _source,
        "processors": os.cpu_count(),
        "affinity": _processors(),
        "quota": cgroup.cpu_quota(),
        "pool": pool_kind(),
    }
