"""`schedule_batch`: many DAGs at once, on threads without the GIL or on any executor, always with the same result."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import layout as L
from .dag import Dag
from .ladders import Profile
from .machine import Machine
from .scheduling import PICKED_DTYPE, Mutation, Schedule, packed_for, prepare, resolve

__all__ = ["Batch", "schedule_batch"]

_CHUNK_NODES = 8192  # nodes a worker takes at a time
_INLINE_NODES = 4096  # below this a batch runs on the caller's thread
Progress = Callable[[int, int], Any] | bool | None


@dataclass(frozen=True, eq=False)
class Batch:
    """Schedules of many DAGs in one column store: the picks of DAG i are rows `starts[i]` to `starts[i + 1]`.

    `finished[i]` is False for DAGs an interrupt left out (their rows are zero). `reports[i]` are the reports of the mutations.
    """

    picks: NDArray[Any]  # PICKED_DTYPE
    starts: NDArray[np.int64]
    finished: NDArray[np.bool_]
    names: tuple[str, ...]
    profile: str
    machine: str
    dags: tuple[Dag, ...] = field(repr=False)  # as scheduled, mutated
    reports: tuple[tuple[Any, ...], ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return int(self.finished.size)

    def __getitem__(self, index: int) -> Schedule:
        if not -len(self) <= index < len(self):
            raise IndexError(f"DAG {index} of a batch of {len(self)}")
        index %= len(self)
        rows = self.picks[self.starts[index] : self.starts[index + 1]]
        return Schedule(self.dags[index], self.profile, self.machine, rows, self.reports[index] if self.reports else ())

    def __iter__(self) -> Iterator[Schedule]:
        return (self[i] for i in range(len(self)))

    def order(self, index: int) -> NDArray[np.int32]:
        """Nodes of one DAG in issue order."""
        order: NDArray[np.int32] = self.picks["node"][self.starts[index] : self.starts[index + 1]]
        return order

    @property
    def complete(self) -> bool:
        """Was every DAG scheduled?"""
        return bool(self.finished.all())

    def to_arrow(self) -> Any:
        """A pyarrow table: one row per pick, with the number of its DAG (needs the extra `arrow`)."""
        try:
            import pyarrow as pa
        except ImportError:
            raise ImportError("Batch.to_arrow needs pyarrow: pip install 'fastgemm[arrow]'") from None
        dag = np.repeat(np.arange(len(self), dtype=np.int32), np.diff(self.starts))
        columns = {"dag": dag, **{name: np.ascontiguousarray(self.picks[name]) for name in PICKED_DTYPE.names or ()}}
        keep = np.repeat(self.finished, np.diff(self.starts))
        table = pa.table({name: column[keep] for name, column in columns.items()})
        return table.replace_schema_metadata({"profile": self.profile, "machine": self.machine})

    def to_parquet(self, path: str | Path) -> None:
        """Write `to_arrow()` to a Parquet file."""
        table = self.to_arrow()
        import pyarrow.parquet as parquet

        parquet.write_table(table, path)


def schedule_batch(
    dags: Iterable[Dag],
    *,
    profile: str | Profile = "llvm24-late",
    mutations: Iterable[Mutation] = (),
    machine: str | Machine | None = None,
    threads: int | None = None,
    executor: Executor | None = None,
    progress: Progress = None,
) -> Batch:
    """Schedule many DAGs; options as for `schedule`.

    `threads` (default: as many as `fastgemm.get_num_threads()`) work without the GIL; an `executor` (any of
    `concurrent.futures`, also dask's or loky's) gets shards of the batch instead.  Neither they nor the order of the batch
    change any schedule.  `progress` is called with (finished DAGs, all); True prints to stderr if that is a terminal.
    Ctrl-C stops the batch and returns what is done, with `complete` False.
    """
    dags = list(dags)
    mutations = [mutations] if isinstance(mutations, str) else list(mutations)
    ladder, model = resolve(profile, machine)
    for i, dag in enumerate(dags):
        if not isinstance(dag, Dag):
            raise TypeError(
                f"item {i} of the batch is a {type(dag).__name__}, not a Dag; a corpus region has its DAG in .dag"
            )
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads}: a batch needs at least one thread")
    job = _Job(dags, ladder, model, mutations, machine, _reporter(progress))
    if executor is not None:
        job.run_on(executor)
    else:
        job.run_threads(threads)
    return Batch(
        job.out.view(PICKED_DTYPE).reshape(-1),
        job.starts,
        job.finished,
        tuple(dag.name for dag in dags),
        ladder.name,
        model.name,
        tuple(job.mutated),
        tuple(job.reports) if mutations else (),
    )


def _reporter(progress: Progress) -> Callable[[int, int], Any]:
    if callable(progress):
        return progress
    if progress and sys.stderr.isatty():
        return lambda done, total: print(
            f"\r{done} of {total} DAGs", end="\n" if done == total else "", file=sys.stderr
        )
    return lambda done, total: None


class _Job:
    """One batch while it runs: its inputs, its output arrays and the next chunk to take."""

    def __init__(
        self,
        dags: Sequence[Dag],
        ladder: Profile,
        model: Machine,
        mutations: Sequence[Mutation],
        chosen: str | Machine | None,
        report: Callable[[int, int], Any],
    ) -> None:
        self.dags, self.ladder, self.model, self.mutations, self.chosen = dags, ladder, model, mutations, chosen
        self.report = report
        self.starts = np.concatenate([[0], np.cumsum([dag.n for dag in dags])]).astype(np.int64)
        self.out = np.zeros((int(self.starts[-1]), L.OUT), dtype=np.int32)
        self.finished = np.zeros(len(dags), dtype=np.bool_)
        self.mutated = list(dags)
        self.reports: list[tuple[Any, ...]] = [()] * len(dags)
        self.chunks = self._cut()
        self._lock = threading.Lock()
        self._next = 0
        self._failure: BaseException | None = None
        self._stop = False

    def _cut(self) -> list[tuple[int, int]]:
        """Ranges of DAGs of about equal size."""
        chunks, first = [], 0
        for i in range(len(self.dags)):
            if self.starts[i + 1] - self.starts[first] >= _CHUNK_NODES or i + 1 == len(self.dags):
                chunks.append((first, i + 1))
                first = i + 1
        return chunks

    def _take(self) -> tuple[int, int] | None:
        with self._lock:
            if self._stop or self._next == len(self.chunks):
                return None
            self._next += 1
            return self.chunks[self._next - 1]

    def _run_chunk(self, first: int, last: int) -> None:
        from .engine import run_batch, work_size

        packed = []
        for i in range(first, last):
            self.mutated[i], self.reports[i] = prepare(self.dags[i], self.mutations, self.chosen)
            packed.append(packed_for(self.mutated[i], self.model, keep=False))
        addresses = np.array([p.ctypes.data for p in packed], dtype=np.int64)
        numbers = self.ladder.model(self.model)
        work = np.empty(work_size(packed, self.model.available_limit), dtype=np.int64)
        rows = self.out[self.starts[first] : self.starts[last]]
        bounds, done = np.array([0, last - first], dtype=np.int64), np.zeros(4, dtype=np.int64)
        local = self.starts[first : last + 1] - self.starts[first]
        run_batch(addresses, local, bounds, numbers, work, rows, done, np.empty(1, dtype=np.int32))
        self.finished[first:last] = True

    def _work(self) -> None:
        while (chunk := self._take()) is not None:
            try:
                self._run_chunk(*chunk)
            except BaseException as error:
                self._failure, self._stop = error, True

    def run_threads(self, threads: int | None) -> None:
        """Work on the caller's thread if the batch is small, else on threads the caller waits for (so that Ctrl-C arrives)."""
        if threads is None:
            from ..gemm.threads import get_num_threads

            threads = get_num_threads()
        if self.starts[-1] <= _INLINE_NODES and not self.mutations:
            self._work()
        else:
            workers = [threading.Thread(target=self._work, daemon=True) for _ in range(min(threads, len(self.chunks)))]
            try:
                for worker in workers:
                    worker.start()
                for worker in workers:
                    while worker.is_alive():
                        worker.join(0.05)
                        self.report(int(self.finished.sum()), len(self.dags))
            except KeyboardInterrupt:
                self._stop = True
                for worker in workers:
                    if worker.ident is not None:
                        worker.join()
        if self._failure is not None:
            raise self._failure
        self.report(int(self.finished.sum()), len(self.dags))

    def run_on(self, executor: Executor) -> None:
        """Send each chunk to the executor; results come back by their place in the batch."""
        futures: list[Future[Any]] = [
            executor.submit(
                _run_shard, list(self.dags[first:last]), self.ladder, self.model, self.mutations, self.chosen
            )
            for first, last in self.chunks
        ]
        try:
            for (first, last), future in zip(self.chunks, futures, strict=True):
                rows, self.mutated[first:last], self.reports[first:last] = future.result()
                self.out[self.starts[first] : self.starts[last]] = rows
                self.finished[first:last] = True
                self.report(int(self.finished.sum()), len(self.dags))
        except KeyboardInterrupt:
            for future in futures:
                future.cancel()


def _run_shard(
    dags: list[Dag], ladder: Profile, model: Machine, mutations: Sequence[Mutation], chosen: str | Machine | None
) -> tuple[NDArray[np.int32], list[Dag], list[tuple[Any, ...]]]:
    """One chunk of a batch in an executor's worker."""
    job = _Job(dags, ladder, model, mutations, chosen, lambda done, total: None)
    for chunk in job.chunks:
        job._run_chunk(*chunk)
    return job.out, job.mutated, job.reports
