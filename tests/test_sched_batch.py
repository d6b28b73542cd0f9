"""Batches: the same schedules on any number of threads, any executor, in any order; what is done so far on Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

import fastgemm.sched as sched
from fastgemm.sched import Dag

CORPUS = Path(__file__).parent / "data" / "corpus"


@pytest.fixture(scope="module")
def dags():
    """The regions of one kernel, several times over, enough for several chunks."""
    regions = sched.read_corpus(CORPUS / "tt_scaled_fp8_128x128x128_s2.llvm24-late.json.gz")
    return [region.dag for region in regions] * 12


@pytest.fixture(scope="module")
def batch(dags):
    return sched.schedule_batch(dags, threads=1)


def test_a_batch_is_its_schedules(dags, batch):
    assert batch.complete and len(batch) == len(dags) == len(list(batch))
    for i in (0, 3, len(dags) - 1):
        alone = sched.schedule(dags[i])
        assert np.array_equal(batch[i].picks, alone.picks) and np.array_equal(batch.order(i), alone.order)
    assert batch[-1].dag is dags[-1]
    with pytest.raises(IndexError):
        batch[len(dags)]


def test_threads_and_executors_change_nothing(dags, batch):
    assert np.array_equal(sched.schedule_batch(dags, threads=3).picks, batch.picks)
    with ThreadPoolExecutor(2) as executor:
        assert np.array_equal(sched.schedule_batch(dags, executor=executor).picks, batch.picks)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as executor:
        assert np.array_equal(sched.schedule_batch(dags[:24], executor=executor).picks, batch.picks[: batch.starts[24]])


def test_the_order_of_the_batch_changes_nothing(dags, batch):
    shuffled = np.random.default_rng(1).permutation(len(dags))
    other = sched.schedule_batch([dags[i] for i in shuffled])
    for place, i in enumerate(shuffled):
        assert np.array_equal(other[place].picks, batch[i].picks)


def test_mutations_are_applied_and_reported(dags):
    def reverse_nothing(dag):
        return dag, dag.n

    result = sched.schedule_batch(dags[:5], mutations=[reverse_nothing])
    assert list(result.reports) == [(dag.n,) for dag in dags[:5]]


def test_errors_of_workers_arrive(dags):
    def fail(dag):
        raise RuntimeError("no such mutation today")

    with pytest.raises(RuntimeError, match="no such mutation today"):
        sched.schedule_batch(dags, mutations=[fail], threads=2)
    with pytest.raises(TypeError, match="item 1 of the batch is a str"):
        sched.schedule_batch([dags[0], "x"])
    with pytest.raises(ValueError, match="threads=0"):
        sched.schedule_batch(dags, threads=0)


def test_progress_is_told(dags):
    seen = []
    sched.schedule_batch(dags, threads=2, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(dags), len(dags)) and seen == sorted(seen)


def test_an_interrupt_returns_what_is_done(dags):
    started = threading.Event()

    def slow(dag):
        if started.is_set():
            return dag
        started.set()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        threading.Event().wait(0.3)
        return dag

    result = sched.schedule_batch(dags, mutations=[slow], threads=1)
    assert not result.complete and result.finished.any()
    first = int(np.flatnonzero(result.finished)[0])
    assert np.array_equal(result[first].picks, sched.schedule(dags[first]).picks)


def test_arrow_and_parquet_hold_the_picks(batch, tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    table = batch.to_arrow()
    assert table.num_rows == batch.picks.size and table.schema.metadata[b"profile"] == b"llvm24-late"
    assert np.array_equal(table["node"].to_numpy(), batch.picks["node"])
    batch.to_parquet(tmp_path / "picks.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "picks.parquet").equals(table)


def test_an_empty_batch_is_complete():
    empty = sched.schedule_batch([])
    assert empty.complete and len(empty) == 0 and empty.picks.size == 0
    assert sched.schedule_batch([Dag.from_arrays([], [])])[0].picks.size == 0


REUSE = """
import numpy as np
import fastgemm.sched as sched
dag = sched.synthetic.gemm(128, 128, 128)
region = sched.read_corpus({corpus!r})[0]
schedules = [sched.schedule(sched.mutate(dag)[0]), sched.schedule(dag, profile="llvm24-early")]
orders = [schedule.order for schedule in schedules] + [sched.replay(region).detail["node"]]
print(np.concatenate(orders).tolist())
"""


@pytest.mark.parametrize("junk", ["85", "165"])
def test_nothing_reads_memory_it_has_given_back(junk):
    """The C library fills what is freed with a pattern: a pointer into a dead array would show in the picks, or crash."""
    code = REUSE.format(corpus=str(CORPUS / "tt_scaled_fp8_128x128x128_s2.llvm24-late.json.gz"))
    printed = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | extra, capture_output=True, text=True, check=True
        ).stdout
        for extra in ({}, {"MALLOC_PERTURB_": junk})
    ]
    assert printed[0] == printed[1] and printed[0].startswith("[")
