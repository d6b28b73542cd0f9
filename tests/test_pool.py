"""The thread pool, both kinds: every chunk once, nesting, many callers, interrupts, forks, exits.

No verdict depends on the clock; a chunk that waits gives up after 20 s and says so, a process after 120 s.
"""

from __future__ import annotations

import _thread
import contextvars
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pool_work
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pool_work import Block, job, mark, meet, wait

from fastgemm.gemm import gang, pool, threads, tickets

HERE = Path(__file__).parent
KINDS = ["portable", *(["futex"] if sys.platform == "linux" and threads.pool_kind() == "futex" else [])]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.fixture(params=KINDS, scope="module")
def kind(request):
    """Each test runs on both kinds, in a process whose pool is renewed between them."""
    with pytest.MonkeyPatch.context() as patch, pool_work.fresh_pool():
        patch.setenv("FASTGEMM_POOL", request.param)
        yield request.param


def program(code: str, kind: str, *options: str, **environment: str) -> str:
    """Standard output of a fresh interpreter; it must end well and say nothing on standard error."""
    environment = {**os.environ, "FASTGEMM_POOL": kind, "PYTHONPATH": str(HERE), **environment}
    command = [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=HERE, env=environment)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


# --- every chunk once


@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 7, 1000, 65534, 65535, 65536, 200_001])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_every_chunk_runs_once(kind, chunks, count):
    assert job(chunks, count)


@settings(deadline=None, max_examples=60)
@given(chunks=st.integers(0, 3000), count=st.integers(1, 9))
def test_every_chunk_runs_once_for_any_split(kind, chunks, count):
    assert job(chunks, count)


def test_two_threads_share_a_job(kind):
    pool_work.meeting()


def test_four_threads_share_a_job(kind):
    pool_work.meeting(4)


def test_a_smaller_limit_than_workers_is_kept(kind):
    job(64, 5)
    for _ in range(50):
        block = Block()
        pool.run(mark.address, block.address, 64, 2)
        block.check(64, 2)


@pytest.mark.skipif("futex" not in KINDS, reason="no futex here")
def test_a_sleeping_worker_is_woken(monkeypatch):
    monkeypatch.setenv("FASTGEMM_POOL", "futex")
    with pool_work.fresh_pool():
        pool_work.meeting()
        while not pool._pool._memory.any() or not _asleep(1):
            time.sleep(0.001)
        pool_work.meeting()


def _asleep(worker: int) -> bool:
    words = pool._pool._memory
    at = (pool._pool.address - words.ctypes.data + tickets.SLEEP) // 8
    return bool(words[at + worker // 32] >> (worker % 32) & 1)


@pytest.mark.skipif("futex" not in KINDS, reason="no futex here")
def test_a_job_on_a_wide_pool_wakes_workers_beyond_the_first_word(monkeypatch):
    monkeypatch.setenv("FASTGEMM_POOL", "futex")
    with pool_work.fresh_pool():
        job(8, 40)
        job(80, 40)
        assert len(pool._pool._workers) == 39
        while not all(_asleep(worker) for worker in range(1, 40)):
            time.sleep(0.001)
        pool_work.meeting(36)


def test_jobs_leave_no_threads_behind(kind):
    job(8, 4)
    before = threading.active_count()
    pool_work.jobs(300)
    assert threading.active_count() <= before + 3


def test_a_system_without_more_threads_still_computes(kind, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with pool_work.fresh_pool():
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert job(33, 4)
            seen = []
            pool.run_python(lambda chunk, thread: seen.append(chunk), 5, 4)
            assert seen == [0, 1, 2, 3, 4]
    pool_work.meeting()


# --- many callers, and calls from inside a job


def test_sixteen_python_threads(kind):
    with ThreadPoolExecutor(16) as executor:
        done = [executor.submit(pool_work.jobs, 150) for _ in range(16)]
        assert [one.result(timeout=120) for one in done] == [150] * 16
    pool_work.meeting()


def test_a_call_from_inside_a_job_runs_alone(kind):
    for _ in range(20):
        block = Block(inner=6)
        block.set(pool_work.INNER, mark.address)
        block.set(pool_work.POOL, pool.address(3))
        pool.run(pool_work.outer.address, block.address, 6, 3)
        assert block.count[:6].tolist() == [1] * 6
        for inner in block.inner:
            assert inner[0, :8].tolist() == [1] * 8
            assert not inner[1].any(), "a nested job was shared"


def test_a_call_from_inside_a_python_job_runs_alone(kind):
    blocks = [Block() for _ in range(12)]
    pool.run_python(lambda chunk, thread: pool.run(mark.address, blocks[chunk].address, 50, 4), 12, 3)
    for block in blocks:
        block.check(50, 1)
    pool_work.meeting()


def test_a_python_job_inside_a_python_job_runs_alone(kind):
    seen = []
    pool.run_python(
        lambda chunk, _: pool.run_python(lambda inner, thread: seen.append((chunk, inner, thread)), 3, 2), 4, 2
    )
    assert sorted(seen) == [(chunk, inner, 0) for chunk in range(4) for inner in range(3)]


def test_a_jitted_caller_shares_its_job(kind):
    block = Block()
    pool.execute(pool.address(2), mark.address, block.address, 100, 2)
    block.check(100, 2)
    if kind == "futex":
        block = Block()
        block.set(pool_work.WANTED, 2)
        pool.execute(pool.address(2), meet.address, block.address, 2, 2)
        assert block.late == 0


# --- Python callables


def test_python_chunks_run_once_on_numbered_threads(kind):
    started = threading.Barrier(3, timeout=60)
    seen = []

    def part(chunk, thread):
        if chunk < 3:
            started.wait()
        seen.append((chunk, thread, threading.get_ident()))

    pool.run_python(part, 50, 3)
    assert sorted(chunk for chunk, _, _ in seen) == list(range(50))
    assert {thread for _, thread, _ in seen} == {0, 1, 2}
    assert len({(thread, ident) for _, thread, ident in seen}) == 3


@pytest.mark.parametrize("guilty", [0, 1])
def test_the_exception_of_a_chunk_reaches_the_caller(kind, guilty):
    both = threading.Barrier(2, timeout=60)
    begun = []

    def part(chunk, thread):
        begun.append(chunk)
        if chunk < 2:
            both.wait()
        if thread == guilty:
            raise LookupError(f"chunk {chunk}")

    with pytest.raises(LookupError, match="chunk [01]"):
        pool.run_python(part, 1_000_000, 2)
    assert len(begun) < 1_000_000
    pool_work.meeting()
    job(40, 3)


def test_a_long_chunk_can_see_that_another_has_failed(kind):
    both = threading.Barrier(2, timeout=60)
    ended = []

    def part(chunk, thread):
        assert not pool.stopping()
        both.wait()
        if chunk == 0:
            raise LookupError
        while not pool.stopping():
            time.sleep(0.001)
        ended.append(chunk)

    with pytest.raises(LookupError):
        pool.run_python(part, 2, 2)
    assert ended == [1]
    assert not pool.stopping()


def test_an_exception_without_threads_reaches_the_caller(kind):
    begun = []

    def part(chunk, thread):
        begun.append(chunk)
        raise KeyError(chunk)

    with pytest.raises(KeyError):
        pool.run_python(part, 5, 1)
    assert begun == [0]
    pool_work.meeting()


def test_system_exit_of_a_helper_reaches_the_caller(kind):
    both = threading.Barrier(2, timeout=60)

    def part(chunk, thread):
        both.wait()
        if thread == 1:
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        pool.run_python(part, 2, 2)
    pool_work.meeting()


def test_threads_see_the_callers_context(kind):
    variable = contextvars.ContextVar("variable", default="outside")
    both = threading.Barrier(2, timeout=60)
    seen = []

    def part(chunk, thread):
        both.wait()
        seen.append((thread, variable.get()))
        variable.set("changed")

    token = variable.set("inside")
    try:
        pool.run_python(part, 2, 2)
    finally:
        variable.reset(token)
    assert sorted(seen) == [(0, "inside"), (1, "inside")]


# --- interrupts


def _press_ctrl_c() -> None:
    """What the terminal does; elsewhere than on POSIX, what comes nearest."""
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    else:
        _thread.interrupt_main()


def _interrupt_when_begun(block: Block) -> threading.Thread:
    """Send the main thread SIGINT once a chunk is running, then let the chunks go on."""

    def send() -> None:
        while not block.count[0]:
            time.sleep(0.001)
        _press_ctrl_c()
        block.set(pool_work.FLAG, 1)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


@pytest.mark.parametrize("count", [1, 2, 3])
def test_keyboard_interrupt_ends_a_long_job(kind, count):
    chunks = 1_000_000  # five minutes' worth
    block = Block()
    sender = _interrupt_when_begun(block)
    with pytest.raises(KeyboardInterrupt):
        pool.run(wait.address, block.address, chunks, count)
    sender.join()
    done = block.count.sum()
    assert 0 < done < chunks and block.late == 0
    pool_work.meeting()
    assert block.count.sum() == done, "a chunk was started after the call had ended"


def test_keyboard_interrupt_ends_a_python_job(kind):
    begun = Block()

    def part(chunk, thread):
        begun.count[0] += 1
        time.sleep(0.0005)

    sender = _interrupt_when_begun(begun)
    with pytest.raises(KeyboardInterrupt):
        pool.run_python(part, 1_000_000, 2)
    sender.join()
    pool_work.meeting()


def test_a_second_keyboard_interrupt_waits_for_the_helpers_too(kind):
    both = threading.Barrier(2, timeout=60)
    ended = []

    def part(chunk, thread):
        both.wait()
        if thread == 0:
            raise KeyboardInterrupt
        while not pool.stopping():
            time.sleep(0.001)
        for _ in range(3):
            _press_ctrl_c()
            time.sleep(0.01)
        ended.append(thread)

    with pytest.raises(KeyboardInterrupt):
        pool.run_python(part, 2, 2)
    assert ended == [1], "the call returned while a helper was at work"
    pool_work.meeting()


def test_abandoning_a_job_twice_is_harmless(kind):
    target = pool.ready(1)
    assert tickets.claim(target.address, -5)
    tickets.publish(target.address, mark.address, Block().address, 4, 1)
    assert not tickets.claim(target.address, -6)
    assert tickets.abandon(target.address, -6, 1000), "somebody else's job is not ours to end"
    assert not tickets.claim(target.address, -6)
    assert tickets.abandon(target.address, -5, 10**9)
    assert tickets.abandon(target.address, -5, 10**9)
    pool_work.meeting()


def test_a_gang_can_be_left_and_used_again():
    crew = gang.Gang()
    seen = []
    for number in range(200):
        crew.run(lambda thread, number=number: seen.append((number, thread)), lambda: None, 3)
    assert {number for number, _ in seen} == set(range(200))
    assert len(seen) == len(set(seen))
    assert crew.stop(10.0)


# --- processes


@needs_fork
def test_a_forked_child_computes_and_so_does_the_parent_after_it(kind):
    # In a fresh process without -W error: this process has threads, and Python 3.12 warns of that, rightly.
    program(
        """
        import pool_work
        pool_work.meeting()
        for _ in range(5):
            assert pool_work.in_forked_child(lambda: (pool_work.meeting(), pool_work.jobs(20))) == 0
            pool_work.meeting()
        """,
        kind,
    )


@needs_fork
def test_fork_while_another_thread_keeps_the_pool_hot(kind):
    program(
        """
        import threading, warnings, pool_work
        warnings.simplefilter("ignore", DeprecationWarning)  # the other thread is ours, not the pool's
        ending = False
        def work():
            while not ending:
                pool_work.job(8, 3)
        pool_work.meeting()
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(15):
                assert pool_work.in_forked_child(lambda: pool_work.jobs(10)) == 0
        finally:
            ending = True
        for thread in threads:
            thread.join()
        pool_work.meeting()
        """,
        kind,
    )


@needs_fork
def test_fork_while_another_thread_compiles(kind, tmp_path):
    program(
        """
        import threading, time, warnings, pool_work
        from numba.core.compiler_lock import global_compiler_lock
        warnings.simplefilter("ignore", DeprecationWarning)  # the other thread is ours, not the pool's
        assert pool_work.in_forked_child(pool_work.job) == 0  # what a fork itself needs is compiled
        thread = threading.Thread(target=lambda: pool_work.wait.address)
        thread.start()
        while global_compiler_lock._lock.acquire(blocking=False):
            global_compiler_lock._lock.release()
            if not thread.is_alive():
                break
            time.sleep(0.0001)
        assert pool_work.in_forked_child(lambda: pool_work.outer.address) == 0
        thread.join()
        """,
        kind,
        FASTGEMM_CACHE_DIR=str(tmp_path),
    )


@needs_fork
@pytest.mark.parametrize("name", ["numba", "numba.core.compiler", "fastgemm.gemm.table", "fastgemm.gemm.direct"])
def test_fork_while_another_thread_makes_the_first_product(kind, name):
    """The child must not inherit a lock of the import system, of llvmlite or of ours: it multiplies, too."""
    program(
        f"""
        import os, sys, threading, warnings
        import numpy as np, fastgemm as fg
        warnings.simplefilter("ignore", DeprecationWarning)  # the other thread is ours, not the pool's
        a = np.ones((8, 8))
        thread = threading.Thread(target=lambda: fg.matmul(a, a))
        thread.start()
        while {name!r} not in sys.modules and thread.is_alive():
            pass
        child = os.fork()
        if child == 0:
            os._exit(0 if fg.matmul(a, a)[0, 0] == 8 else 1)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
        assert fg.matmul(a, a)[0, 0] == 8
        """,
        kind,
    )


@needs_fork
def test_fork_while_another_thread_compiles_the_loops_of_the_first_product(kind, tmp_path):
    """No lock may be held around compilation that a fork takes after the compiler's."""
    program(
        """
        import os, threading, time, warnings
        import numpy as np, fastgemm as fg
        from fastgemm.gemm import direct
        warnings.simplefilter("ignore", DeprecationWarning)  # the other thread is ours, not the pool's
        a = np.ones((8, 8))
        thread = threading.Thread(target=lambda: fg.matmul(a, a))
        thread.start()
        while "address" not in direct.direct.__dict__ and thread.is_alive():
            time.sleep(0.0001)
        child = os.fork()
        if child == 0:
            os._exit(0 if fg.matmul(a, a)[0, 0] == 8 else 1)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
        """,
        kind,
        FASTGEMM_CACHE_DIR=str(tmp_path),
    )


@needs_fork
def test_fork_while_a_product_holds_the_pools_address(kind):
    """The pool goes out of use at a fork; its memory stays for those who have its address."""
    program(
        """
        import os, warnings, weakref
        import numpy as np, fastgemm as fg
        from fastgemm.gemm import direct, threads
        warnings.simplefilter("ignore", DeprecationWarning)
        fg.set_num_threads(2)
        a = np.ones((96, 96))
        fg.matmul(a, a)
        get, call, pools, alive = direct._pool, direct.entry(), [], []
        def pool_before_a_fork(count):
            pool = get(count)
            pools.append(weakref.ref(pool))
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            return pool
        def watched(*arguments):
            if pools and len(arguments) == 5:
                alive.append(pools[-1]() is not None)
            return call(*arguments)
        direct._pool, direct.entry = pool_before_a_fork, lambda: watched
        assert (fg.matmul(a, a) == 96).all()
        assert alive == ([True] if threads.pool_kind() == "futex" else [])
        """,
        kind,
    )


@needs_fork
def test_fork_inside_a_chunk(kind):
    program(
        """
        import warnings, pool_work
        from fastgemm.gemm import pool
        warnings.simplefilter("ignore", DeprecationWarning)  # the helpers are alive while they run a chunk
        statuses = []
        pool.run_python(lambda chunk, _: statuses.append(pool_work.in_forked_child(pool_work.meeting)), 6, 2)
        assert statuses == [0] * 6
        pool_work.meeting()
        """,
        kind,
    )


@needs_fork
def test_no_warning_about_forking_with_threads(kind):
    # Python 3.12 and later warn when a process with threads forks; idle workers go home before that.
    program(
        """
        import os, threading, pool_work
        pool_work.meeting()
        from fastgemm.gemm import pool
        pool.run_python(lambda chunk, thread: None, 4, 2)
        child = os.fork()
        if child == 0:
            os._exit(threading.active_count())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
        pool_work.meeting()
        """,
        kind,
    )


@needs_fork
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_process_pool(kind, method):
    if (kind, method) == ("portable", "spawn") and len(KINDS) == 2:
        pytest.skip("a spawned child shares nothing with its parent; the other kind shows that it works")
    program(
        f"""
        import multiprocessing, warnings, pool_work
        from concurrent.futures import ProcessPoolExecutor
        if __name__ == "__main__":
            pool_work.meeting()
            warnings.simplefilter("ignore", DeprecationWarning)  # the executor's own thread
            context = multiprocessing.get_context("{method}")
            with ProcessPoolExecutor(2, mp_context=context) as executor:
                assert list(executor.map(pool_work.jobs, [20] * 6)) == [20] * 6
            pool_work.meeting()
        """,
        kind,
    )


EXITS = {
    "workers watch": "pool_work.meeting()",
    "workers sleep": "pool_work.meeting(); time.sleep(0.05)",
    "an error": "pool_work.meeting(); sys.exit(0)",
    "a daemon thread computes": """
        threading.Thread(target=lambda: [pool_work.job(500, 2) for _ in range(10**6)], daemon=True).start()
        pool_work.jobs(20)
        """,
    "a daemon thread is deep in a job": """
        block = pool_work.Block()
        run = lambda: pool.run(pool_work.wait.address, block.address, 1000, 2)
        threading.Thread(target=run, daemon=True).start()
        while not block.count[0]: time.sleep(0.001)
        """,
    "python helpers sleep": "pool.run_python(lambda chunk, thread: None, 9, 3)",
    "at exit": "import atexit; pool_work.meeting(); atexit.register(pool_work.job)",
    "before the pool": "import atexit; atexit.register(pool_work.job)",
}


@pytest.mark.parametrize("how", EXITS)
def test_the_interpreter_ends_cleanly(kind, how):
    prelude = "import sys, threading, time, pool_work\nfrom fastgemm.gemm import pool\n"
    program(prelude + textwrap.dedent(EXITS[how]).strip(), kind)


def test_a_forked_job_that_lost_its_workers_says_so(kind, monkeypatch):
    # What a signal handler that forks in the middle of a job and returns would meet.
    block = Block()
    old = pool.ready(1)
    assert tickets.claim(old.address, 77)
    tickets.publish(old.address, mark.address, block.address, 4, 1)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "_pool", None)
        with pytest.raises(RuntimeError, match="forked inside a parallel job"):
            pool._same_process(old)
        pool._abandon(old, 77)  # returns at once: nobody is there to wait for
    assert tickets.abandon(old.address, 77, 10**9)
    assert np.all(block.count == 0)
