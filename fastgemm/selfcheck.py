"""``fastgemm.selftest``: does this machine get right answers from every kernel it can run?

Kernels have been wrong on one machine and right on the next, for BLAS libraries too.  Each kernel row (instruction set) is
checked in a process of its own, so that a crash is a finding and not the end of the check.

Most checks are exact: operands hold small integers, every partial sum is an integer below 2**24, so any order of accumulation
must give the same bits as numpy's integer product, which uses no BLAS.  Rounding is checked apart, against a bound.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

__all__ = ["Group", "SelftestReport", "run_checks", "selftest"]

# M, N, K: single rows and columns, primes, one off the register tiles, and blocks of several tiles
_SHAPES = [
    (1, 1, 1),
    (1, 129, 33),
    (129, 1, 33),
    (33, 129, 1),
    (3, 5, 7),
    (8, 48, 64),
    (17, 31, 127),
    (65, 67, 129),
    (257, 130, 300),
]
_MORE_SHAPES = [
    (2, 2, 2),
    (4, 1024, 16),
    (1024, 4, 16),
    (16, 16, 1024),
    (127, 128, 129),
    (255, 513, 511),
    (640, 96, 700),
]
_FAST_DTYPES = ("f4", "f8", "c8", "c16")
_OTHER_DTYPES = ("?", "b", "B", "h", "H", "i", "I", "q", "Q", "e")
_LIMIT = 8  # operands hold integers in [-8, 8]; 700 * 64 * 2 is far below 2**24
_CHILD_TIMEOUT = 600.0


@dataclass
class Group:
    """One line of the report: how many checks of a kind, how many failed, and the first failure in words."""

    name: str
    checks: int = 0
    failed: int = 0
    worst: float = 0.0  # error over its bound; 0 where equality is asked for and holds
    detail: str = ""

    def note(self, ok: bool, what: str, worst: float = 0.0) -> None:
        """Count one check."""
        self.checks += 1
        self.worst = max(self.worst, worst)
        if not ok:
            self.failed += 1
            self.detail = self.detail or what


@dataclass
class SelftestReport:
    """What was checked; ``ok`` is the verdict."""

    host: str
    isas: list[str]
    groups: list[Group] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """No check failed (and there were some)."""
        return bool(self.groups) and not any(group.failed for group in self.groups)

    def summary(self) -> str:
        """One line: checks, failures, kernel rows, seconds."""
        checks, failed = sum(g.checks for g in self.groups), sum(g.failed for g in self.groups)
        verdict = "all right" if self.ok else "FAILED"
        return f"{verdict}: {checks} checks, {failed} failed; kernel rows {', '.join(self.isas)}; {self.seconds:.1f} s"

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data."""
        return {"ok": self.ok, "host": self.host, "isas": self.isas, "seconds": self.seconds,
                "groups": [asdict(group) for group in self.groups]}  # fmt: skip


def selftest(
    *,
    quick: bool = False,
    callers: int = 4,
    isas: list[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> SelftestReport:
    """Check every kernel row this machine can run (or those in ``isas``) and return a :class:`SelftestReport`.

    ``quick`` takes fewer shapes; ``callers`` Python threads call at once in one of the checks; ``progress`` is told what is
    being checked.  Raises ValueError if ``isas`` names a row that this machine cannot run.
    """
    from .config import host_name
    from .gemm.table import usable_isas

    usable = list(usable_isas())
    chosen = usable if isas is None else list(isas)
    if unknown := [name for name in chosen if name not in usable]:
        raise ValueError(f"isas names {', '.join(unknown)}; this machine can run {', '.join(usable)}")
    if callers < 1:
        raise ValueError(f"callers is {callers}; at least one thread has to call")
    report = SelftestReport(host_name(), chosen)
    start = time.perf_counter()
    for isa in chosen:
        if progress is not None:
            progress(f"selftest: kernel row {isa}")
        report.groups += _in_a_process(isa, quick, callers)
    report.seconds = round(time.perf_counter() - start, 2)
    return report


def _in_a_process(isa: str, quick: bool, callers: int) -> list[Group]:
    code = f"from fastgemm.selfcheck import child; child({quick!r}, {callers!r})"
    environment = {**os.environ, "FASTGEMM_ISA": isa}
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=_CHILD_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return [Group(f"{isa}: process", 1, 1, 0.0, f"did not end within {_CHILD_TIMEOUT:.0f} s")]
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return [Group(f"{isa}: process", 1, 1, 0.0, f"ended with code {done.returncode}: {last}")]
    groups = [Group(**entry) for entry in json.loads(done.stdout)]
    for group in groups:
        group.name = f"{isa}: {group.name}"
    return groups


def child(quick: bool, callers: int) -> None:
    """Body of the process that checks one kernel row: the groups as JSON on standard output."""
    print(json.dumps([asdict(group) for group in run_checks(quick=quick, callers=callers)]))


def run_checks(*, quick: bool = False, callers: int = 4) -> list[Group]:
    """All checks with the kernel row in use, in this process."""
    rng = np.random.default_rng(20240229)
    shapes = _SHAPES if quick else _SHAPES + _MORE_SHAPES
    groups = [_exact(np.dtype(code), shapes, rng) for code in _FAST_DTYPES]
    groups += [
        _policies(rng, quick),
        _other_dtypes(rng),
        _special_values(),
        _rounding(rng, quick),
        _callers(rng, callers),
    ]
    return groups


def _integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    real = rng.integers(-_LIMIT, _LIMIT + 1, shape)
    if dtype.kind == "c":
        return (real + 1j * rng.integers(-_LIMIT, _LIMIT + 1, shape)).astype(dtype)
    return real.astype(dtype)


def _exact_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of integer-valued operands by numpy's integer loops."""
    if a.dtype.kind != "c":
        return np.matmul(a.astype(np.int64), b.astype(np.int64))
    re_a, im_a, re_b, im_b = (part.astype(np.int64) for part in (a.real, a.imag, b.real, b.imag))
    return (re_a @ re_b - im_a @ im_b) + 1j * (re_a @ im_b + im_a @ re_b)


def _layouts(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The same operands in memory orders that take different paths."""
    yield "C, C", a, b
    yield "F, F", np.asfortranarray(a), np.asfortranarray(b)
    yield "C, F", a, np.asfortranarray(b)
    yield "reversed", np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1], np.ascontiguousarray(b[:, ::-1])[:, ::-1]
    wide_a, wide_b = np.repeat(a, 2, axis=1), np.repeat(b, 3, axis=1)
    yield "strided", wide_a[:, ::2], wide_b[:, ::3]
    yield "byte-swapped", a.astype(a.dtype.newbyteorder()), b


def _exact(dtype: np.dtype, shapes: list[tuple[int, int, int]], rng: np.random.Generator) -> Group:
    from . import matmul

    group = Group(f"{dtype.name}, exact")
    for m, n, k in shapes:
        a, b = _integers(rng, (m, k), dtype), _integers(rng, (k, n), dtype)
        expected = _exact_product(a, b)
        for layout, left, right in _layouts(a, b):
            out = np.full((m, n), np.nan, dtype)
            matmul(left, right, out=out)
            group.note(bool(np.array_equal(out, expected)), f"{m}x{n}x{k}, {layout}")
    return group


def _policies(rng: np.random.Generator, quick: bool) -> Group:
    from . import HostPanels, IdentitySwizzle, Pingpong, Preload, PreloadAsync, PreloadAsyncWithCallback, Tile, matmul

    group = Group("policies, exact")
    policies = [HostPanels(), Pingpong(), Preload(), PreloadAsync(), PreloadAsyncWithCallback()]
    tile = Tile(l1=(64, 96, 48), l0=(64, 96, 48))
    for dtype in map(np.dtype, ("f4", "f8") if quick else _FAST_DTYPES):
        for m, n, k in [(65, 97, 49), (200, 290, 143)]:
            a, b = _integers(rng, (m, k), dtype), _integers(rng, (k, n), dtype)
            expected = _exact_product(a, b)
            for policy in policies:
                for direction in (0, 1):
                    swizzle = IdentitySwizzle(offset=3, direction=direction)
                    result = matmul(a, b, policy=policy, swizzle=swizzle, tile=tile, cores=3)
                    what = f"{type(policy).__name__}, direction {direction}, {dtype.name} {m}x{n}x{k}"
                    group.note(bool(np.array_equal(result, expected)), what)
    return group


def _other_dtypes(rng: np.random.Generator) -> Group:
    import warnings

    from . import FastgemmPerformanceWarning, matmul

    group = Group("other element types, exact")
    for code in _OTHER_DTYPES:
        for m, n, k in [(3, 5, 7), (65, 33, 40)]:
            a = rng.integers(0, 3, (m, k)).astype(code)
            b = rng.integers(0, 3, (k, n)).astype(code)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FastgemmPerformanceWarning)
                result = matmul(a, b)
            expected = np.matmul(a, b)
            same = result.dtype == expected.dtype and bool(np.array_equal(result, expected))
            group.note(same, f"{a.dtype.name} {m}x{n}x{k}")
    return group


def _special_values() -> Group:
    from . import matmul

    group = Group("NaN, infinity, empty")
    for dtype in map(np.dtype, _FAST_DTYPES):
        a, b = np.ones((19, 21), dtype), np.ones((21, 35), dtype)
        a[4, 20], b[7, 33] = np.nan, np.inf
        result = matmul(a, b)
        group.note(bool(np.isnan(result[4]).all()), f"{dtype.name}: a NaN in row 4 of a did not reach row 4")
        clean = np.delete(np.delete(result, 4, axis=0), 33, axis=1)
        group.note(bool((clean == 21).all()), f"{dtype.name}: a NaN or infinity leaked into other elements")
        group.note(bool(np.isinf(np.delete(result[:, 33], 4)).all()), f"{dtype.name}: infinity lost in column 33")
        out = np.full((19, 35), np.nan, dtype)
        matmul(np.ones((19, 0), dtype), np.ones((0, 35), dtype), out=out)
        group.note(bool((out == 0).all()), f"{dtype.name}: K = 0 did not write zeros")
    return group


def _rounding(rng: np.random.Generator, quick: bool) -> Group:
    from . import matmul

    group = Group("rounding")
    for dtype in map(np.dtype, ("f4", "f8")):
        for m, n, k in [(33, 47, 500), (96, 96, 96)] if quick else [(33, 47, 500), (96, 96, 96), (40, 40, 5000)]:
            a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
            wide = np.float64 if dtype == np.float32 else np.longdouble
            exact = np.einsum("mk,kn->mn", a.astype(wide), b.astype(wide))
            bound = (k + 1) * float(np.finfo(dtype).eps) / 2 * (np.abs(a).astype(wide) @ np.abs(b).astype(wide))
            worst = float(np.max(np.abs(matmul(a, b) - exact) / bound))
            group.note(worst <= 1, f"{dtype.name} {m}x{n}x{k}: {worst:.2f} times the bound", worst)
    return group


def _callers(rng: np.random.Generator, callers: int) -> Group:
    from . import matmul

    group = Group(f"{callers} callers at once, exact")
    work = []
    for m, n, k in [(33, 65, 40), (130, 140, 150), (7, 300, 90), (300, 300, 64)] * 4:
        a, b = _integers(rng, (m, k), np.dtype("f4")), _integers(rng, (k, n), np.dtype("f4"))
        work.append((a, b, _exact_product(a, b)))
    with ThreadPoolExecutor(callers) as pool:
        for (a, b, expected), result in zip(work, pool.map(lambda item: matmul(item[0], item[1]), work), strict=True):
            group.note(bool(np.array_equal(result, expected)), f"{a.shape} @ {b.shape} from {callers} threads")
    return group
