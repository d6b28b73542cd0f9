"""Python threads that do parts of one job: the portable half of the pool, and what runs plain Python callables everywhere.

Each thread waits on a queue of its own.  A job is *open* while parts may still be started; who takes it from the queue after
it was closed does nothing, so the caller never waits for a thread that is slow to wake, only for those that are inside.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Gang", "join_all", "start_worker"]


def start_worker(workers: list[threading.Thread], name: str, serve: Callable[..., None], *args: object) -> bool:
    """Start a daemon thread ``serve(number, *args)`` and add it to `workers`; its number is its place, from 1 up.

    False if the system (or the ending interpreter) starts no more threads.
    """
    number = len(workers) + 1
    thread = threading.Thread(target=serve, args=(number, *args), name=f"{name}-{number}", daemon=True)
    # On the list first: an exception while we wait for the start (Ctrl-C) must not give the number away twice.
    workers.append(thread)
    try:
        thread.start()
    except RuntimeError:
        workers.remove(thread)
        return False
    return True


def join_all(workers: list[threading.Thread], patience: float) -> bool:
    """Wait up to `patience` seconds for all of them; True if they have ended."""
    until = time.monotonic() + patience
    for worker in workers:
        if worker.is_alive() and worker is not threading.current_thread():
            worker.join(max(0.0, until - time.monotonic()))
    return not any(worker.is_alive() for worker in workers)


class _Job:
    """One call: `body(thread)` runs once in every thread that arrives in time."""

    __slots__ = ("_body", "_context", "_gate", "_inside", "_left", "_open", "error")

    def __init__(self, body: Callable[[int], None]) -> None:
        self._body = body
        self._context = contextvars.copy_context()
        self._gate = threading.Lock()
        self._left = threading.Lock()
        self._left.acquire()
        self._inside = 0
        self._open = True
        self.error: BaseException | None = None

    def visit(self, thread: int) -> None:
        """A helper's part; an exception closes the job for those not yet inside and is kept for the caller."""
        with self._gate:
            if not self._open:
                return
            self._inside += 1
        try:
            self._context.copy().run(self._body, thread)
        except BaseException as error:  # whatever it is, it belongs to the caller
            self.fail(error)
        finally:
            with self._gate:
                self._inside -= 1
                last = not self._inside and not self._open
            if last:
                self._left.release()

    def fail(self, error: BaseException) -> None:
        with self._gate:
            self.error = self.error or error

    def close(self) -> None:
        """Let nobody in and wait until those inside have left.  May be called again after an exception cut it short."""
        with self._gate:
            self._open = False
            waiting = self._inside > 0
        if waiting:
            self._left.acquire()


class Gang:
    """A growing set of daemon threads; thread `i` of them is always called with the number `i`, from 1 up."""

    def __init__(self) -> None:
        self._queues: list[SimpleQueue[_Job | None]] = []
        self._threads: list[threading.Thread] = []
        self._growing = threading.RLock()

    def __len__(self) -> int:
        return len(self._threads)

    def grow(self, size: int) -> None:
        """Have `size` threads, or as many as the system starts."""
        with self._growing:
            while len(self._threads) < size:
                queue: SimpleQueue[_Job | None] = SimpleQueue()
                self._queues.append(queue)
                if not start_worker(self._threads, "fastgemm-python", self._serve, queue):
                    self._queues.pop()
                    return

    @staticmethod
    def _serve(number: int, queue: SimpleQueue[_Job | None]) -> None:
        while True:
            job = queue.get()
            if job is None:
                return
            job.visit(number)
            del job  # while the thread sleeps nothing of the job is kept alive

    def run(self, body: Callable[[int], None], cancel: Callable[[], object], threads: int) -> None:
        """Run `body(thread)` on the caller (0) and on up to ``threads - 1`` helpers; raise the first exception of any.

        An exception on the caller's thread (KeyboardInterrupt, too) calls `cancel`, which should make the helpers come to an
        end, and waits for those inside before it goes on, whatever the user types: they use the caller's memory.
        """
        self.grow(threads - 1)
        job = _Job(body)
        try:
            for queue in self._queues[: threads - 1]:
                queue.put(job)
            body(0)
            job.close()
        except BaseException as error:
            while True:
                try:
                    job.fail(error)
                    cancel()
                    job.close()
                    break
                except KeyboardInterrupt:
                    continue
            if not isinstance(error, Exception):
                raise
        try:
            if job.error is not None:
                raise job.error
        finally:
            del job  # the error's traceback holds this frame

    def stop(self, patience: float) -> bool:
        """End the threads; True if all have ended within `patience` seconds."""
        for queue in self._queues:
            queue.put(None)
        return join_all(self._threads, patience)
