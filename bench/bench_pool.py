"""What a job of the thread pool costs, beside other ways to have two threads do something: ``python bench/bench_pool.py``.

Two jobs of two chunks on two threads: *shared*, whose chunks each wait for the other to begin, so that the worker must have
arrived (the round trip); and *empty*, which the caller may well finish alone.  Each is measured back to back, after the
caller was busy with something else for 200 µs (workers still watch), and after 5 ms (workers asleep).  Medians; the ways
take turns, so that a slow moment of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numba import int64, types

from fastgemm.gemm import pool
from fastgemm.gemm.emit_sync import clock, give_way, load, pause, store
from fastgemm.gemm.threads import pool_kind
from fastgemm.jit import cfunc, njit

IDLE_US = {"back to back": 0, "after 200 µs": 200, "after 5 ms": 5000}


@cfunc(types.void(int64, int64, int64))
def empty(args, chunk, thread):
    """Nothing."""


@cfunc(types.void(int64, int64, int64))
def shared(args, chunk, thread):
    """Wait until the other chunk has begun too.  `args`: the round, then the last round each chunk has begun."""
    now = load(args)
    store(args + 8 + 8 * chunk, now)
    spins = 0
    while load(args + 16 - 8 * chunk) != now:
        spins += 1
        if spins % 256 == 0:
            give_way()
        else:
            pause()


@njit
def jitted_rounds(address, work, args, samples):
    """Time jobs from jitted code, back to back."""
    for index in range(samples.size):
        store(args, load(args) + 1)
        start = clock()
        pool.execute(address, work, args, 2, 2)
        samples[index] = clock() - start


def _python_job(work: int) -> Callable[[], None]:
    memory = np.zeros(3, np.int64)
    args = memory.ctypes.data

    def job() -> None:
        memory[0] += 1
        pool.run(work, args, 2, 2)

    return job


def _nothing() -> None:
    pass


def _executor(submits: int) -> Callable[[], None]:
    executor = ThreadPoolExecutor(2)

    def job() -> None:
        for future in [executor.submit(_nothing) for _ in range(submits)]:
            future.result()

    return job


def _queues() -> Callable[[], None]:
    there: queue.SimpleQueue[int] = queue.SimpleQueue()
    back: queue.SimpleQueue[int] = queue.SimpleQueue()

    def serve() -> None:
        while True:
            back.put(there.get())

    threading.Thread(target=serve, daemon=True).start()

    def job() -> None:
        there.put(1)
        back.get()

    return job


def _sample(job: Callable[[], None], idle: int, rounds: int) -> list[float]:
    samples = []
    for _ in range(rounds):
        if idle:
            end = time.perf_counter_ns() + idle * 1000
            while time.perf_counter_ns() < end:
                pass
        start = time.perf_counter_ns()
        job()
        samples.append((time.perf_counter_ns() - start) / 1000)
    return samples


def _jitted(work: int, rounds: int) -> list[float]:
    memory = np.zeros(3, np.int64)
    samples = np.zeros(rounds, np.int64)
    jitted_rounds(pool.address(2), work, memory.ctypes.data, samples)
    return (samples / 1000).tolist()


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Median microseconds of every way, at every pause before it."""
    kind = pool_kind()
    ways = {
        f"pool.run, shared ({kind})": _python_job(shared.address),
        f"pool.run, empty ({kind})": _python_job(empty.address),
    }
    if kind == "futex":
        ways |= {
            "two SimpleQueues, there and back": _queues(),
            "ThreadPoolExecutor, 1 submit + result": _executor(1),
            "ThreadPoolExecutor, 2 submits + results": _executor(2),
        }
    table: dict[str, dict[str, list[float]]] = {}
    for _ in range(repeats):
        for moment, idle in IDLE_US.items():
            for name, job in ways.items():
                job()
                rounds = 300 if idle < 1000 else 15
                table.setdefault(name, {}).setdefault(moment, []).extend(_sample(job, idle, rounds))
        if kind == "futex":
            for name, work in (("shared", shared.address), ("empty", empty.address)):
                row = table.setdefault(f"pool.execute in jitted code, {name}", {})
                row.setdefault("back to back", []).extend(_jitted(work, 3000))
    return {name: {moment: statistics.median(all_) for moment, all_ in row.items()} for name, row in table.items()}


def _portable(repeats: int) -> dict[str, dict[str, float]]:
    command = [sys.executable, __file__, "--json", "--repeats", str(repeats)]
    environment = {**os.environ, "FASTGEMM_POOL": "portable"}
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return json.loads(out)["microseconds"]


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--json", action="store_true", help="one JSON object; of the pool that the environment asks for"
    )
    parser.add_argument("--repeats", type=int, default=8, help="how often each way has its turn")
    args = parser.parse_args()
    found = measure(args.repeats)
    if args.json:
        print(json.dumps({"schema": 1, "unit": "us", "python": sys.version.split()[0], "microseconds": found}))
        return
    if pool_kind() == "futex":
        found |= _portable(args.repeats)
    print("| µs, median | " + " | ".join(IDLE_US) + " |\n|---|" + "---|" * len(IDLE_US))
    for name, row in found.items():
        print(f"| {name} | " + " | ".join(f"{row[moment]:.1f}" if moment in row else "–" for moment in IDLE_US) + " |")


if __name__ == "__main__":
    main()
