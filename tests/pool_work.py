"""Chunk functions the pool tests run, and small programs that test processes call by name.

The argument block of every chunk function is a vector of int64, one row per purpose (offsets below), `CHUNKS` columns wide.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

import numpy as np
from numba import int64, types

from fastgemm.gemm import pool
from fastgemm.gemm.emit_sync import add, clock, give_way, load, pause, store, swap
from fastgemm.jit import cfunc

CHUNKS = 1024
COUNT, THREAD, CLASHES, INSIDE, RESULT = (row * 8 * CHUNKS for row in range(5))
ROWS = 5
FLAG = CLASHES + 8  # a word that somebody sets for waiting chunks
INNER = CLASHES + 16  # address of another chunk function, for `outer`
POOL = CLASHES + 24
LATE = CLASHES + 32  # chunks that gave up waiting
BEGUN, WANTED = CLASHES + 40, CLASHES + 48
PATIENCE = 20_000_000_000  # ns; only a hang gets there

_signature = types.void(int64, int64, int64)


@cfunc(_signature)
def mark(args, chunk, thread):
    """Count the chunk, note its thread, and notice another chunk under the same thread number at the same time."""
    add(args + CLASHES, swap(args + INSIDE + 8 * thread, 1))
    add(args + COUNT + 8 * (chunk % CHUNKS), 1)
    store(args + THREAD + 8 * (chunk % CHUNKS), thread)
    total = 0
    for step in range(200):
        total += step * chunk
    store(args + RESULT + 8 * (chunk % CHUNKS), total)
    store(args + INSIDE + 8 * thread, 0)


@cfunc(_signature)
def meet(args, chunk, thread):
    """Wait until as many chunks have begun as are wanted: so many threads are needed to finish."""
    add(args + COUNT + 8 * chunk, 1)
    store(args + THREAD + 8 * chunk, thread)
    add(args + BEGUN, 1)
    until = clock() + PATIENCE
    while load(args + BEGUN) < load(args + WANTED):
        give_way()
        if clock() > until:
            add(args + LATE, 1)
            break


@cfunc(_signature)
def wait(args, chunk, thread):
    """Count the chunk, wait for the flag, then take about 0.3 ms."""
    add(args + COUNT + 8 * (chunk % CHUNKS), 1)
    until = clock() + PATIENCE
    while load(args + FLAG) == 0:
        pause()
        if clock() > until:
            add(args + LATE, 1)
            break
    for _ in range(10000):
        pause()


@cfunc(_signature)
def outer(args, chunk, thread):
    """Run eight chunks of the inner function, as a job of its own, from inside a job."""
    inner = args + 8 * CHUNKS * ROWS * (1 + chunk)
    pool.execute(load(args + POOL), load(args + INNER), inner, 8, 2)
    add(args + COUNT + 8 * chunk, 1)


class Block:
    """An argument block with views of its rows; `inner` more blocks may follow it for nested jobs."""

    def __init__(self, inner: int = 0) -> None:
        self.memory = np.zeros((1 + inner) * ROWS * CHUNKS, np.int64)
        self.address = self.memory.ctypes.data
        rows = self.memory.reshape(1 + inner, ROWS, CHUNKS)
        self.count, self.thread, self.words, self.inside, self.result = rows[0]
        self.inner = rows[1:]

    @property
    def clashes(self) -> int:
        return int(self.words[0])

    @property
    def late(self) -> int:
        return int(self.words[(LATE - CLASHES) // 8])

    def set(self, word: int, value: int) -> None:
        self.words[(word - CLASHES) // 8] = value

    def check(self, chunks: int, threads: int) -> None:
        """Every chunk once, thread numbers in range and never twice at a time."""
        counts = np.bincount(np.arange(chunks) % CHUNKS, minlength=CHUNKS)
        assert np.array_equal(self.count, counts)
        assert self.clashes == 0
        assert self.thread.max() < max(1, min(threads, chunks))
        last = np.arange(min(chunks, CHUNKS)) + max(0, (chunks - 1) // CHUNKS) * CHUNKS
        if chunks <= CHUNKS:
            assert np.array_equal(self.result[:chunks], last * 19900)


def job(chunks: int = 16, threads: int = 2) -> bool:
    """One checked job; what test processes run."""
    block = Block()
    pool.run(mark.address, block.address, chunks, threads)
    block.check(chunks, threads)
    return True


def jobs(number: int = 200) -> int:
    return sum(job(2 + index % 40, 2 + index % 3) for index in range(number))


def meeting(threads: int = 2) -> None:
    """A job that so many threads must share."""
    block = Block()
    block.set(WANTED, threads)
    pool.run(meet.address, block.address, threads, threads)
    assert block.late == 0
    assert block.count[:threads].tolist() == [1] * threads
    assert sorted(block.thread[:threads]) == list(range(threads))


def in_forked_child(function) -> int:
    """Run `function` in a child made by os.fork; its exit status."""
    child = os.fork()
    if child == 0:
        try:
            function()
            os._exit(0)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def fresh_pool():
    """The pool that the environment now asks for, and none afterwards."""
    _retire()
    try:
        yield
    finally:
        _retire()


def _retire() -> None:
    if pool._pool is not None:
        pool._pool.retire()
        pool._pool = None
