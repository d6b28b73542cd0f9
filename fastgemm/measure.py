"""Timing one thing beside another in one run: pairs in turn, medians, and the peak probed for as long as the work it is beside.

A machine slows down and speeds up by itself (frequency, neighbours).  Two numbers taken minutes apart say little about which is
faster; two that alternate within milliseconds do, and so does the median of their ratios.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

__all__ = ["SETTLE", "Pairs", "numpy_threads", "pairs", "sample_loops"]

_SAMPLE_SECONDS = 0.002  # a sample shorter than this is read through the clock's and the interpreter's noise
_MIN_PAIRS, _MAX_PAIRS = 5, 201
# Rest between samples on several threads: OpenBLAS's workers spin for 2**26 cycles after a call, on the cores the next sample
# needs.  Nobody alternates between two libraries, so neither should pay for the other's waiting.
SETTLE = 0.25
# ... and so long is a sample then: a worker that wakes on its caller's processor takes some 8 ms to be moved.
_SETTLED_SECONDS = 0.2


@dataclass(frozen=True)
class Pairs:
    """Medians over the pairs: seconds a call of both, ratio (peer over ours: above 1 ours is faster), and the peak beside them."""

    seconds: float
    peer_seconds: float
    ratio: float
    peak: float  # what the probe returned beside the pairs (0 without one)
    count: int


def sample_loops(call: Callable[[], object], seconds: float = _SAMPLE_SECONDS) -> int:
    """How many calls one sample takes; also the warm-up."""
    call()
    start = time.perf_counter()
    call()
    return max(1, round(seconds / max(time.perf_counter() - start, 1e-7)))


def _sample(call: Callable[[], object], loops: int, settle: float) -> float:
    if settle:
        time.sleep(settle)
        call()  # wakes the workers and the clock, unmeasured
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return (time.perf_counter() - start) / loops


def pairs(
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    seconds: float = 0.5,
    probe: Callable[[float], float] | None = None,
    settle: float = 0.0,
) -> Pairs:
    """Time ``ours`` and ``peer`` in turn for about ``seconds`` (at least five pairs).

    ``probe(seconds)`` is run right after our sample, for as long as it took, and returns a rate (the machine's peak).
    ``settle`` seconds of rest go before each sample, see :data:`SETTLE`; they do not count into ``seconds``.
    """
    long = _SETTLED_SECONDS if settle else _SAMPLE_SECONDS
    loops, peer_loops = sample_loops(ours, long), sample_loops(peer, long)
    taken: list[tuple[float, float]] = []
    rates: list[float] = []
    left = seconds
    most = _MIN_PAIRS if settle else _MAX_PAIRS
    while len(taken) < _MIN_PAIRS or (left > 0 and len(taken) < most):
        start = time.perf_counter()
        ours_first = len(taken) % 2 == 0  # neither is always the one that runs on the other's warm caches
        other = 0.0 if ours_first else _sample(peer, peer_loops, settle)
        mine = _sample(ours, loops, settle)
        if probe is not None:
            rates.append(probe(mine * loops))
        if ours_first:
            other = _sample(peer, peer_loops, settle)
        taken.append((mine, other))
        left -= max(0.0, time.perf_counter() - start - 2 * settle)
    return Pairs(
        statistics.median(mine for mine, _ in taken),
        statistics.median(other for _, other in taken),
        statistics.median(other / mine for mine, other in taken),
        statistics.median(rates) if rates else 0.0,
        len(taken),
    )


@contextlib.contextmanager
def numpy_threads(count: int) -> Iterator[str]:
    """Hold numpy's BLAS at ``count`` threads; yields what the BLAS is, or why it could not be held.

    Needs threadpoolctl (extra ``cli``); without it numpy keeps the threads it has and the text says so.
    """
    try:
        import threadpoolctl
    except ModuleNotFoundError:
        yield "threads of numpy not held (threadpoolctl is missing: pip install 'fastgemm[cli]')"
        return
    with threadpoolctl.threadpool_limits(limits=count, user_api="blas"):
        info = [pool for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"]
        info = [pool for pool in info if "numpy" in pool["filepath"]] or info  # SciPy brings a BLAS of its own
        yield ", ".join(
            f"{pool['internal_api']} {pool.get('version')} {pool.get('architecture', '')}, {pool['num_threads']} thread(s)"
            for pool in info
        )
