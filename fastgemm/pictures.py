"""Pictures of schedules (needs matplotlib, extra `plot`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .arch import Tile
from .gemm.choose import schedule
from .gemm.threads import resolve
from .scheduler import Scheduler
from .swizzle import L1FullLoadSwizzle, SingleCoreSplitKSwizzle, Swizzle

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["traversal_picture"]

# cells beyond which neither numbers nor single arrows can be read
_NUMBERED = 400
_DRAWN = 4000


def traversal_picture(what: Any, ax: Axes | None = None, *, by: str | None = None, numbers: bool | None = None) -> Axes:
    """Draw the order in which the blocks of a grid are computed; returns the Axes.

    `what` is a bound scheduler (`fg.IdentitySwizzle(3, 0).bind(...)`) or a plan.  Cells are coloured by the core that computes them
    (first), numbered by task, and joined by arrows: in task order (by="task"), or each core's own steps (by="core"), which is the
    default for schedulers that give a core a contiguous run.  Only the first batch is drawn.
    """
    scheduler = what if isinstance(what, Scheduler) else _of_plan(what)
    rows, cols, _ = scheduler.grid
    if not 0 < rows * cols <= _DRAWN:
        raise ValueError(f"a grid of {rows} x {cols} blocks cannot be drawn; it must have 1 to {_DRAWN}")
    if ax is None:
        import matplotlib.pyplot as plt

        _, ax = plt.subplots(
            figsize=(1.5 + 0.55 * cols, 1.3 + 0.55 * rows) if rows * cols <= _NUMBERED else (8, 8), layout="constrained"
        )
    schedule = scheduler.schedule()
    schedule = schedule[schedule["batch"] == 0]
    if isinstance(scheduler.swizzle, SingleCoreSplitKSwizzle):
        schedule = schedule[schedule["k0"] == 0]  # every K tile walks the same path
    if by is None:
        by = "core" if isinstance(scheduler.swizzle, L1FullLoadSwizzle | SingleCoreSplitKSwizzle) else "task"
    if by not in ("task", "core"):
        raise ValueError(f"by must be 'task' or 'core', got {by!r}")
    _paint_cells(ax, scheduler, schedule)
    for path in _paths(schedule, by):
        _draw_arrows(ax, path)
    if numbers or (numbers is None and rows * cols <= _NUMBERED):
        _number_cells(ax, schedule)
    ax.set(
        xlabel="n (tiles)",
        ylabel="m (tiles)",
        title=f"{scheduler.swizzle}, {rows} x {cols} blocks, {scheduler.cores} cores",
    )
    ax.set_xticks(range(0, cols, max(1, cols // 10)))
    ax.set_yticks(range(0, rows, max(1, rows // 10)))
    return ax


def _of_plan(plan: Any) -> Scheduler:
    """The scheduler a plan runs."""
    chosen = schedule((plan.m, plan.n, plan.k), np.dtype(plan.compute), plan.options, resolve(plan.options.threads))
    swizzle: Swizzle = chosen.swizzle
    return swizzle.bind((plan.m, plan.n, plan.k), Tile.of(chosen.tile).l1, cores=chosen.cores)


def _paint_cells(ax: Axes, scheduler: Scheduler, schedule: np.ndarray) -> None:
    """Colour each cell by its first core."""
    import matplotlib as mpl

    rows, cols, _ = scheduler.grid
    core = np.zeros((rows, cols), int)
    core[schedule["m"][::-1], schedule["n"][::-1]] = schedule["core"][::-1]
    colours = mpl.colormaps["tab20" if scheduler.cores > 10 else "tab10"]
    shades = np.asarray(colours(core % colours.N))
    shades = _pale(shades)
    ax.imshow(shades, aspect="equal", interpolation="nearest")
    ax.set_xticks(np.arange(cols + 1) - 0.5, minor=True)
    ax.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    ax.grid(which="minor", color="white", linewidth=1.5)
    ax.tick_params(which="minor", length=0)
    if scheduler.cores <= 20:
        patches = [mpl.patches.Patch(color=tuple(_pale(colours(c % colours.N))), label=str(c)) for c in np.unique(core)]
        ax.legend(
            handles=patches,
            title="core",
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
            fontsize="small",
            frameon=False,
        )


def _pale(shades: Any) -> np.ndarray:
    """Colours (red, green, blue, opacity) mixed with white, so that arrows and numbers stand out."""
    return np.asarray(shades) * [0.45, 0.45, 0.45, 1] + [0.55, 0.55, 0.55, 0]


def _paths(schedule: np.ndarray, by: str) -> list[np.ndarray]:
    """Sequences of (n, m) cells to join."""
    if by == "core":
        parts = [schedule[schedule["core"] == core] for core in np.unique(schedule["core"])]
    else:
        parts = [schedule[np.argsort(schedule["task"], kind="stable")]]
    paths = []
    for part in parts:
        points = np.stack([part["n"], part["m"]], axis=1)
        moved = np.ones(len(points), bool)
        moved[1:] = (points[1:] != points[:-1]).any(axis=1)
        paths.append(points[moved])
    return paths


def _draw_arrows(ax: Axes, points: np.ndarray) -> None:
    start, step = points[:-1].astype(float), np.diff(points, axis=0).astype(float)
    ax.plot(*points[0], marker="o", color="black", markersize=7, markerfacecolor="none", zorder=3)
    if len(step):
        length = np.hypot(*step.T)[:, None]
        start += 0.22 * step / length  # arrows of one path do not touch
        step *= (length - 0.44) / length
        style: dict[str, Any] = {
            "angles": "xy",
            "scale_units": "xy",
            "scale": 1,
            "color": "black",
            "alpha": 0.75,
            "zorder": 2,
        }
        ax.quiver(*start.T, *step.T, width=0.0035, headwidth=5, headlength=6, headaxislength=5, **style)


def _number_cells(ax: Axes, schedule: np.ndarray) -> None:
    """Task numbers; a cell of several pieces shows the first and how many follow."""
    labels: dict[tuple[int, int], list[int]] = {}
    for row in schedule:
        labels.setdefault((int(row["m"]), int(row["n"])), []).append(int(row["task"]))
    for (m, n), tasks in labels.items():
        text = str(tasks[0]) if len(tasks) == 1 else f"{tasks[0]}+{len(tasks) - 1}"
        ax.text(n - 0.45, m - 0.43, text, ha="left", va="top", fontsize=6.5, color="0.25", zorder=4)
