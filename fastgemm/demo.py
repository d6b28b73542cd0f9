"""The main job on real data: a survey of terrain resampled to a finer grid, under every dispatch policy.

The matrix is the elevation model of the Jacksboro fault that matplotlib ships (344 x 403 metres above sea level).  Resampling it
band-limited is two products, ``rows @ elevation @ columns.T``, where ``rows`` and ``columns`` evaluate its cosine series on the
finer grid.  The second product is the one that is timed.  Two checks: against numpy in float64, and against the survey itself,
which the fine grid has to reproduce at the surveyed points.

Then the other half: the two kernels of the article on the DAG mutation, and the main loop of a compiled matrix product that the
package ships, scheduled with and without the mutation and run on the in-order machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .sched.comparison import Comparison

__all__ = [
    "Resampling",
    "Row",
    "cosine_resampler",
    "policies",
    "read_elevation",
    "resampling",
    "schedule_kernels",
    "time_policies",
]

_FILE = "jacksboro_fault_dem.npz"
# a Triton matrix product (f16, tensor loads, 256 x 256 x 64) as a compiler's scheduler saw it; its main loop
_KERNEL = Path(__file__).parent / "sched" / "kernels" / "tt_tdm_f16_256x256x64_s2.llvm24-late.json.gz"
_LOOP = "bb.10"


@dataclass(frozen=True)
class Resampling:
    """The timed product ``a @ b`` and what its result must be."""

    a: np.ndarray  # (factor * rows, columns): the elevation, already fine along the rows
    b: np.ndarray  # (columns, factor * columns)
    survey: np.ndarray  # (rows, columns), metres
    factor: int
    exact: np.ndarray  # the product in float64
    bound: np.ndarray  # largest error that rounding in float32 can make, element by element

    @property
    def work(self) -> float:
        """Floating-point operations of the product, in 1e9."""
        return 2e-9 * self.a.shape[0] * self.a.shape[1] * self.b.shape[1]

    def check(self, fine: np.ndarray) -> tuple[bool, float, float]:
        """(right?, largest difference to float64 in metres, largest difference to the survey in metres)."""
        error = np.abs(fine - self.exact)
        at_survey = float(np.max(np.abs(fine[:: self.factor, :: self.factor] - self.survey)))
        return bool((error <= self.bound).all()) and at_survey < 0.01, float(error.max()), at_survey


@dataclass(frozen=True)
class Row:
    """One policy, timed and checked; rates in GFLOP/s."""

    policy: str
    threads: int
    seconds: float
    rate: float
    numpy_rate: float
    ratio: float
    peak: float
    ok: bool
    error: float
    survey_error: float
    blocks: int


def cosine_resampler(count: int, factor: int) -> np.ndarray:
    """The (factor * count, count) matrix that evaluates the cosine series through ``count`` samples on a finer grid.

    Row ``factor * i`` is the i-th unit vector: the series passes through its samples.
    """
    order = np.arange(count)
    scale = np.where(order == 0, 1.0, 2.0) / count
    fine = (np.arange(count * factor) / factor + 0.5) / count
    series = np.cos(np.pi * fine[:, None] * order) * scale
    samples = np.cos(np.pi * order[:, None] * (order + 0.5) / count)
    return np.asarray(series @ samples)


def resampling(elevation: np.ndarray, factor: int = 8) -> Resampling:
    """The product that makes the elevation ``factor`` times finer along both axes."""
    import fastgemm

    survey = elevation.astype(np.float32)
    rows, columns = survey.shape
    a = fastgemm.matmul(cosine_resampler(rows, factor).astype(np.float32), survey)
    b = np.ascontiguousarray(cosine_resampler(columns, factor).T.astype(np.float32))
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    bound = np.finfo(np.float32).eps * (columns + 1) / 2 * (np.abs(wide_a) @ np.abs(wide_b))
    return Resampling(a, b, survey, factor, wide_a @ wide_b, bound)


def read_elevation() -> np.ndarray:
    """The elevation model, from the installed matplotlib."""
    from .cli.console import require

    cbook = require("matplotlib.cbook", "plot", "The demo reads an elevation model that matplotlib ships; it")
    with cbook.get_sample_data(_FILE) as file:
        return np.asarray(file["elevation"])


def policies(after: Callable[..., None]) -> dict[str, Any]:
    """The five policies by name, with their defaults; ``after`` is called back once per block by the last one."""
    import fastgemm as fg

    return {
        "auto (HostPanels)": "auto",
        "Pingpong": fg.Pingpong(),
        "Preload": fg.Preload(),
        "PreloadAsync": fg.PreloadAsync(),
        "PreloadAsyncWithCallback": fg.PreloadAsyncWithCallback(after=after),
    }


def time_policies(problem: Resampling, *, threads: int, seconds: float, progress: Callable[[str], None]) -> list[Row]:
    """Every policy in turn beside numpy, each result checked."""
    import fastgemm
    from fastgemm.measure import SETTLE, pairs
    from fastgemm.peak import peak_probe

    out = np.empty((problem.a.shape[0], problem.b.shape[1]), np.float32)
    peer = partial(np.matmul, problem.a, problem.b, out=np.empty_like(out))
    probe = peak_probe(out.dtype, threads)
    blocks: set[tuple[int, int]] = set()

    def after(core: int, task: int, group: int, m: int, n: int) -> None:
        blocks.add((m, n))

    rows = []
    for name, policy in policies(after).items():
        progress(f"{name}, {threads} thread(s)")
        blocks.clear()
        options = {} if policy == "auto" else {"policy": policy}
        with fastgemm.threads(threads):
            ours = partial(fastgemm.matmul, problem.a, problem.b, out, **options)
            taken = pairs(ours, peer, seconds=seconds, probe=probe, settle=SETTLE if threads > 1 else 0.0)
            out.fill(np.nan)
            fastgemm.matmul(problem.a, problem.b, out, **options)
        ok, error, survey_error = problem.check(out)
        rate, numpy_rate = problem.work / taken.seconds, problem.work / taken.peer_seconds
        rows.append(
            Row(
                name,
                threads,
                taken.seconds,
                rate,
                numpy_rate,
                taken.ratio,
                taken.peak,
                ok,
                error,
                survey_error,
                len(blocks),
            )
        )
    return rows


def schedule_kernels(progress: Callable[[str], None]) -> list[Comparison]:
    """The article's two kernels and a compiled one, each scheduled with and without the mutation."""
    from . import sched

    progress("scheduling the article's kernels")
    compared = sched.report()
    progress("scheduling a compiled kernel")
    (loop,) = (region for region in sched.read_corpus(_KERNEL) if region.block == _LOOP)
    return [*compared, sched.compare(loop.dag)]
