"""The jitted half of the thread pool: one job at a time, cut into tickets that are claimed by compare-and-swap.

A pool is a block of int64 words at an address; each group of words that different threads write has cache lines of its own.
The *ticket* word is ``seq << 32 | n << 16 | next``: job number, tickets of the job, next ticket.  Everybody, the caller too,
claims a ticket by compare-and-swap of the whole word.  So a thread that read the job's other words and then fell asleep
cannot claim anything of a later job with them: the word has moved on (only 2^32 jobs within one such sleep would fool it).

Who waits, and how:

* workers watch the SEQ word for `SPINS` pauses and then sleep on it (futex), each with a bit of its own, so that a job for
  two threads does not wake sixty;
* the caller waits for DONE to reach n the same way.  It does not wait for a worker that is slow to wake: if the tickets are
  gone by then, there is nothing to wait for.

A caller that finds the pool busy (the job of another Python thread, or its own: a call from inside a job) runs its chunks
itself.  A caller never stays inside for much longer than its budget: it goes back to Python, where Ctrl-C is noticed, and
comes again.
"""

from __future__ import annotations

from numba import types

from ..jit import cfunc, njit
from ..vectors import inner
from .emit_call import on_stack, words
from .emit_sync import (
    add,
    call,
    clock,
    compare_swap,
    futex_wait,
    futex_wake,
    give_way,
    load,
    pause,
    processor,
    set_affinity,
    store,
    swap,
)  # fmt: skip
from .threads import MAX_THREADS

__all__ = [
    "PENDING", "WORDS", "abandon", "attend", "begin", "claim", "close", "drain", "execute", "execute_words", "limit_workers",
    "publish",
    "release", "serve", "stop",
]  # fmt: skip

# Byte offsets.  Two lines (128 bytes) a group: the prefetcher fetches them in pairs.
TICKET = 0
WORK, ARGS, CHUNKS, GRAIN, LIMIT = 128, 136, 144, 152, 160
SEQ, STOP = 256, 264
DONE, WAITING = 384, 392
BUSY, OWNER, WORKERS = 512, 520, 528
SLEEP = 640  # bit w % 32 of word w // 32: worker w sleeps
TIDS = SLEEP + MAX_THREADS // 4  # the system's number of worker w's thread, 0 before it runs
ALLOWED, MASK_WORDS = TIDS + 8 * MAX_THREADS, 16  # the processors of the affinity mask, as bits
WORDS = ALLOWED // 8 + MASK_WORDS

MAX_TICKETS = 0xFFFF
SPINS = 20000  # measured: 200 to 2000 pauses are worse than both none and this (docs/threads.md)
YIELD_EVERY = 256
NAP = 20_000_000  # ns; a waiting caller looks around this often
PENDING = -1


@inner
def _drain(pool, thread, until):
    """Run tickets of the open job until none is left (True) or the clock has passed `until` (False; 0: never)."""
    while True:
        ticket = load(pool + TICKET)
        index = ticket & 0xFFFF
        if index >= (ticket >> 16) & 0xFFFF or thread >= load(pool + LIMIT):
            return True
        work, args = load(pool + WORK), load(pool + ARGS)
        grain, chunks = load(pool + GRAIN), load(pool + CHUNKS)
        if compare_swap(pool + TICKET, ticket, ticket + 1):
            for chunk in range(index * grain, min((index + 1) * grain, chunks)):
                call(work, args, chunk, thread)
            add(pool + DONE, 1)
            if load(pool + WAITING):
                futex_wake(pool + DONE, 1)
            if until and clock() > until:
                return False


@njit
def drain(pool, thread, budget):
    """One thread's part of the open job: False if the budget (ns; 0: no end) was used up before the tickets were."""
    return _drain(pool, thread, clock() + budget if budget else 0)


@inner
def _spin(count):
    """One step of a spin loop; every so often whoever waits for this core (the caller or a worker, perhaps) goes first."""
    if count % YIELD_EVERY == YIELD_EVERY - 1:
        give_way()
    else:
        pause()


@inner
def _wait(pool, tickets, until):
    """Wait until `tickets` are done (True) or the clock has passed `until` (False; 0: never)."""
    for spin in range(SPINS):
        if load(pool + DONE) == tickets:
            return True
        _spin(spin)
    while True:
        store(pool + WAITING, 1)
        done = load(pool + DONE)
        if done != tickets:
            futex_wait(pool + DONE, done, 1, clock() + NAP)
        store(pool + WAITING, 0)
        if done == tickets:
            return True
        if until and clock() > until:
            return False


@njit
def claim(pool, token):
    """Take the pool for the caller known by `token`; False if somebody has it."""
    if load(pool + BUSY) != 0 or swap(pool + BUSY, 1) != 0:
        return False
    store(pool + OWNER, token)
    return True


@njit
def release(pool, token):
    """Give the pool back if it is `token`'s."""
    if load(pool + OWNER) == token:
        store(pool + OWNER, 0)
        store(pool + BUSY, 0)


@inner
def _keep_off(pool, threads):
    """Let no sleeping worker wake on the caller's processor, where it would wait some 8 ms for the scheduler to move it.

    That is longer than most jobs (256 x 256 in turn with another library's threads: 340 us, with this 190).
    """
    here = processor()
    mask = on_stack(
        (
            load(pool + ALLOWED), load(pool + ALLOWED + 8), load(pool + ALLOWED + 16), load(pool + ALLOWED + 24),
            load(pool + ALLOWED + 32), load(pool + ALLOWED + 40), load(pool + ALLOWED + 48), load(pool + ALLOWED + 56),
            load(pool + ALLOWED + 64), load(pool + ALLOWED + 72), load(pool + ALLOWED + 80), load(pool + ALLOWED + 88),
            load(pool + ALLOWED + 96), load(pool + ALLOWED + 104), load(pool + ALLOWED + 112), load(pool + ALLOWED + 120),
        )
    )  # fmt: skip
    if here < 0 or here >= 64 * MASK_WORDS:
        return
    word = mask + 8 * (here >> 6)
    store(word, load(word) & ~(1 << (here & 63)))
    left = 0
    for i in range(MASK_WORDS):
        left |= load(mask + 8 * i)
    if left == 0:
        return
    for worker in range(1, threads):
        tid = load(pool + TIDS + 8 * worker)
        if tid != 0 and load(pool + SLEEP + 8 * (worker >> 5)) & (1 << (worker & 31)):
            set_affinity(tid, 8 * MASK_WORDS, mask)


@njit
def publish(pool, work, args, chunks, threads):
    """Open a job on the claimed pool and wake the sleeping workers that may take part."""
    threads = min(threads, chunks, MAX_THREADS)
    grain = (chunks + MAX_TICKETS - 1) // MAX_TICKETS
    tickets = (chunks + grain - 1) // grain
    store(pool + WORK, work)
    store(pool + ARGS, args)
    store(pool + CHUNKS, chunks)
    store(pool + GRAIN, grain)
    store(pool + LIMIT, threads)
    store(pool + DONE, 0)
    seq = (load(pool + SEQ) + 1) & 0xFFFFFFFF
    store(pool + TICKET, seq << 32 | tickets << 16)
    store(pool + SEQ, seq)
    wake = 0
    for group in range((threads + 31) // 32):
        asleep = load(pool + SLEEP + 8 * group)
        if threads - 32 * group < 32:
            asleep &= (1 << (threads - 32 * group)) - 1
        wake |= asleep
    if wake:
        futex_wake(pool + SEQ, wake)


@njit
def attend(pool, token, budget):
    """The caller's part of its open job: True when the job is over and the pool given back, False when time was up."""
    until = clock() + budget if budget else 0
    if not _drain(pool, 0, until) or not _wait(pool, (load(pool + TICKET) >> 16) & 0xFFFF, until):
        return False
    release(pool, token)
    return True


@njit
def close(pool, token):
    """Let nobody start a ticket of `token`'s job any more: its end is where it stands."""
    while load(pool + OWNER) == token:
        ticket = load(pool + TICKET)
        started = ticket & 0xFFFF
        if compare_swap(pool + TICKET, ticket, (ticket >> 32) << 32 | started << 16 | started):
            break


@njit
def abandon(pool, token, budget):
    """Close `token`'s job, if it has one; True when the workers have left it and the pool is given back."""
    if load(pool + OWNER) != token:
        return True
    close(pool, token)
    if not _wait(pool, (load(pool + TICKET) >> 16) & 0xFFFF, clock() + budget):
        return False
    release(pool, token)
    return True


@njit
def begin(pool, work, args, chunks, threads, first, token, budget):
    """Run chunks ``first … chunks-1``, on the pool if it is free and there is something to share.

    Returns how many chunks are done, counted from 0: ``chunks`` when all are; fewer when the caller ran alone and its budget
    (ns; 0: no end) was used up; PENDING when a pool job is under way (then :func:`attend` goes on with it).
    """
    if threads > 1 and chunks > 1 and first == 0 and load(pool + WORKERS) > 0 and claim(pool, token):
        publish(pool, work, args, chunks, threads)
        return chunks if attend(pool, token, budget) else PENDING
    until = clock() + budget if budget else 0
    for chunk in range(first, chunks):
        call(work, args, chunk, 0)
        if until and clock() > until:
            return chunk + 1
    return chunks


@njit
def execute(pool, work, args, chunks, threads):
    """For other jitted functions: all chunks, start to end.  Ctrl-C waits for it, so keep it for jobs known to be short."""
    begin(pool, work, args, chunks, threads, 0, 0, 0)


@cfunc(types.void(types.int64, types.int64, types.int64))
def execute_words(arguments, _chunk, _thread):
    """:func:`execute` to be called by address, its arguments in a block of words."""
    w = words(arguments)
    execute(w[0], w[1], w[2], w[3], w[4])


@njit
def serve(pool, me):
    """The life of worker `me` (1, 2, ...), until :func:`stop`."""
    seen = 0
    spins = SPINS
    word, bit = pool + SLEEP + 8 * (me >> 5), 1 << (me & 31)
    while load(pool + STOP) == 0:
        seq = load(pool + SEQ)
        if seq != seen:
            seen = seq
            if me < load(pool + LIMIT):
                spins = SPINS
            _drain(pool, me, 0)
        elif spins > 0:
            spins -= 1
            _spin(spins)
        else:
            add(word, bit)
            futex_wait(pool + SEQ, seen, bit, 0)
            add(word, -bit)


@njit
def stop(pool):
    """Send all workers home."""
    store(pool + STOP, 1)
    store(pool + SEQ, (load(pool + SEQ) + 1) & 0xFFFFFFFF)
    futex_wake(pool + SEQ, 0xFFFFFFFF)


@njit
def limit_workers(pool, count):
    """Tell callers how many workers there are."""
    store(pool + WORKERS, count)
