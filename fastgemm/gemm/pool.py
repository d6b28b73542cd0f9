"""The thread pool: one per process, started when first needed, one job at a time.

Two kinds, chosen by :func:`fastgemm.gemm.threads.pool_kind`:

* ``futex`` (Linux on x86-64 and AArch64): the workers are daemon threads that never leave one jitted ``nogil`` function; a
  job starts and ends within a microsecond or so (:mod:`fastgemm.gemm.tickets`, docs/threads.md).
* ``portable`` (macOS, Windows, anything else): Python threads woken through a queue (:mod:`fastgemm.gemm.gang`) run the same
  jitted chunk loop; 20 to 40 µs a job.

Whoever finds the pool busy runs its chunks on its own thread: another Python thread's call, a call from inside a job.  So
nothing waits for the pool, nothing nests, and no more threads compute than the callers and one set of workers.

After a fork the child has no workers and starts a fresh pool when it needs one.  Before a fork idle workers are sent home
(they return at the next job), which also spares the parent the warning of Python 3.12 and later about forking a process
with threads.
"""

from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from ..forks import around_forks
from . import tickets
from .gang import Gang, join_all, start_worker
from .threads import MAX_THREADS, pool_kind

__all__ = ["address", "begin", "execute", "execute_words", "ready", "run", "run_python", "stopping"]

begin = tickets.begin
execute = tickets.execute
execute_words = tickets.execute_words

# A call returns to Python this often, where Ctrl-C is noticed.
BUDGET_NS = 50_000_000
_LINE = 128
# Seconds a fork or the end of the interpreter waits for a worker; only one that is inside a job takes any.
_PATIENCE = 1.0
_tokens = itertools.count(1)
# Set once a chunk of the innermost `run_python` around us has failed.
_failed: ContextVar[threading.Event | None] = ContextVar("fastgemm_failed", default=None)


class _Pool:
    """The state the jitted functions work on, and the threads of either kind."""

    def __init__(self) -> None:
        self._memory = np.zeros(tickets.WORDS + _LINE // 8, np.int64)
        self.address = -(-self._memory.ctypes.data // _LINE) * _LINE
        self.native = pool_kind() == "futex"
        if self.native:
            allowed = sum(1 << cpu for cpu in os.sched_getaffinity(0))
            for word in range(tickets.MASK_WORDS):
                self._write(tickets.ALLOWED + 8 * word, allowed >> 64 * word & (1 << 64) - 1)
        self.asked = 0
        self.gang = Gang()
        self._workers: list[threading.Thread] = []

    def _write(self, offset: int, value: int) -> None:
        ctypes.c_uint64.from_address(self.address + offset).value = value

    def grow(self, size: int) -> None:
        """Have `size` workers, or as many as the system starts."""
        self.asked = max(self.asked, size)
        if not self.native:
            self.gang.grow(size)
            return
        while len(self._workers) < size:
            if not start_worker(self._workers, "fastgemm", self._serve, self._memory):
                break
        tickets.limit_workers(self.address, len(self._workers))

    def _serve(self, number: int, memory: np.ndarray) -> None:
        self._write(tickets.TIDS + 8 * number, threading.get_native_id())
        # `memory` lives as long as this frame: a worker caught inside a job at exit keeps it.
        tickets.serve(self.address, number)

    def retire(self) -> bool:
        """Send the threads home, unless a job is running; True if this was the pool's end.

        The pool stays claimed: a caller that still holds its address runs alone.
        """
        if not tickets.claim(self.address, next(_tokens)):
            return False
        tickets.stop(self.address)
        join_all(self._workers, _PATIENCE)
        self.gang.stop(_PATIENCE)
        return True


_pool: _Pool | None = None
_guard = threading.RLock()


def ready(workers: int) -> _Pool:
    """The process's pool with at least so many workers asked for.  Hold it while its address is in use: a fork replaces it."""
    global _pool
    pool = _pool
    if pool is None or pool.asked < workers:
        with _guard:
            if _pool is None:
                _pool = _Pool()
            pool = _pool
            if pool.asked < workers:
                pool.grow(min(workers, MAX_THREADS - 1))
                pool.asked = max(pool.asked, workers)
    return pool


def address(threads: int) -> int:
    """The pool, ready for jobs of so many threads, as the first argument of the jitted :func:`begin` and :func:`execute`.

    Ask for it at every call, it costs 0.1 µs: a fork changes it.
    """
    return ready(threads - 1).address


def run(work_address: int, args_address: int, chunks: int, threads: int) -> None:
    """Call the C function ``work(args, chunk, thread)`` once for every chunk below `chunks`, on up to `threads` threads.

    The function is ``void(int64, int64, int64)``; what `args_address` points to must live until the call returns.  Thread
    numbers are below ``min(threads, chunks)`` and differ between those who run at the same time within this call; the caller
    is 0.  Order and distribution are not defined.  KeyboardInterrupt is raised once the chunks that have begun are finished;
    the others do not start.
    """
    pool = ready(min(threads, chunks) - 1)
    token = next(_tokens)
    try:
        if not pool.native and threads > 1 and chunks > 1 and tickets.claim(pool.address, token):
            _run_portable(pool, work_address, args_address, chunks, min(threads, chunks), token)
            return
        done = tickets.begin(pool.address, work_address, args_address, chunks, threads, 0, token, BUDGET_NS)
        while 0 <= done < chunks:
            done = tickets.begin(pool.address, work_address, args_address, chunks, 1, done, token, BUDGET_NS)
        if done < 0:
            while not tickets.attend(pool.address, token, BUDGET_NS):
                _same_process(pool)
    except BaseException:
        _abandon(pool, token)
        raise


def _run_portable(pool: _Pool, work: int, args: int, chunks: int, threads: int, token: int) -> None:
    tickets.publish(pool.address, work, args, chunks, threads)

    def part(thread: int) -> None:
        while not tickets.drain(pool.address, thread, 0 if thread else BUDGET_NS):
            _same_process(pool)

    pool.gang.run(part, lambda: tickets.close(pool.address, token), threads)
    tickets.release(pool.address, token)


def _same_process(pool: _Pool) -> None:
    """A callback or signal handler may fork within a job: the workers, and the tickets they hold, are not in the child."""
    if pool is not _pool:
        raise RuntimeError("the process was forked inside a parallel job: its workers do not exist in the child")


def _abandon(pool: _Pool, token: int) -> None:
    """End the caller's job, if it has one.  Its memory is in use until the workers have left, whatever the user types."""
    while pool is _pool:
        try:
            if tickets.abandon(pool.address, token, BUDGET_NS):
                return
        except KeyboardInterrupt:
            continue


@contextmanager
def _claimed(pool: _Pool) -> Iterator[bool]:
    token = next(_tokens)
    try:
        yield tickets.claim(pool.address, token)
    finally:
        tickets.release(pool.address, token)


def run_python(fn: Callable[[int, int], object], chunks: int, threads: int) -> None:
    """Call ``fn(chunk, thread)`` once for every chunk, on up to `threads` Python threads; thread numbers as in :func:`run`.

    The first exception is raised to the caller when the chunks that have begun are finished; the others do not start.  A
    chunk that is long looks at :func:`stopping` now and then.  The threads see the caller's context variables.  Calls of
    :func:`run` inside `fn` run on their own thread alone.
    """
    threads = min(threads, chunks)
    pool = ready(0)
    with _claimed(pool) as mine:
        if threads <= 1 or not mine:
            for chunk in range(chunks):
                fn(chunk, 0)
            return
        numbers = iter(range(chunks))
        failed = threading.Event()

        def part(thread: int) -> None:
            try:
                for chunk in numbers:
                    if failed.is_set():
                        return
                    fn(chunk, thread)
            except BaseException:
                failed.set()
                raise

        token = _failed.set(failed)
        try:
            pool.gang.run(part, failed.set, threads)
        finally:
            _failed.reset(token)


def stopping() -> bool:
    """Inside a chunk of :func:`run_python`: whether another chunk has failed or Ctrl-C was pressed, so that a long one may end."""
    failed = _failed.get()
    return failed is not None and failed.is_set()


@atexit.register
def _at_exit() -> None:
    if _pool is not None:
        _pool.retire()


def _before_fork() -> None:
    global _pool
    _guard.acquire()
    if _pool is not None and _pool.retire():
        _pool = None


def _in_child() -> None:
    global _pool
    _pool = None


around_forks(_before_fork, _guard.release)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
