"""Pictures of a mutation and of schedules, by matplotlib (the ``plot`` extra); every function draws into the axes it is given."""

from __future__ import annotations

from typing import Any

import numpy as np

from .comparison import Comparison
from .evaluation import Evaluation
from .model import Flavor
from .mutation_report import MutationReport

__all__ = ["comparison_picture", "histogram_picture", "lifetimes_picture", "pressure_picture"]

# one colour per meaning, told apart by lightness too
OFF, ON, LIMIT, WINDOW = "#b0562d", "#2a6599", "#444444", "#8fb8d8"


def histogram_picture(report: MutationReport, ax: Any) -> Any:
    """Live fragment registers by position, before and after the windows were eased, and the budget."""
    positions = np.arange(report.positions)
    ax.fill_between(
        positions, report.histogram_before, step="mid", color=ON, alpha=0.85, label="windows as late as possible"
    )
    ax.fill_between(
        positions,
        report.histogram_before,
        report.histogram_after,
        step="mid",
        color=WINDOW,
        label="added by starting earlier",
    )
    ax.axhline(report.budget, color=LIMIT, lw=1, ls="--", label=f"budget {report.budget}")
    ax.set_xlim(0, max(1, report.positions - 1))
    ax.set_ylim(0, report.budget * 1.25 + 1)
    ax.set_xlabel("matrix instruction")
    ax.set_ylabel("vector registers of fragments")
    ax.legend(loc="upper right", ncols=3, frameon=False, fontsize="small")
    return ax


def lifetimes_picture(result: Evaluation, ax: Any, report: MutationReport | None = None, colour: str = ON) -> Any:
    """One bar per fragment from its first load to its last use, in matrix instructions; the window's anchor as a tick."""
    ranges = np.sort(result.ranges, order=["first_consumer", "last_consumer"])
    rows = np.arange(ranges.size)
    begin = ranges["issued_after"] + 1
    ax.barh(
        rows,
        ranges["first_consumer"] - begin,
        left=begin,
        height=0.75,
        color=colour,
        alpha=0.4,
        label="loaded, waiting",
    )
    ax.barh(
        rows,
        ranges["last_consumer"] + 1 - ranges["first_consumer"],
        left=ranges["first_consumer"],
        height=0.75,
        color=colour,
        label="in use",
    )
    if report is not None:
        anchors = {f.register: f.anchor for f in report.fragments if f.anchor}
        marks = [(anchors[r["register"]], y) for y, r in zip(rows, ranges, strict=True) if r["register"] in anchors]
        if marks:
            ax.plot(*zip(*marks, strict=True), "|", color=LIMIT, ms=6, mew=1.4, label="anchor")
    ax.set_ylim(ranges.size - 0.4, -0.6)
    ax.set_xlim(0, int(ranges["last_consumer"].max(initial=0)) + 1)
    ax.set_xlabel("matrix instruction, in issue order")
    ax.set_ylabel("fragment")
    ax.legend(loc="upper right", frameon=False, fontsize="small")
    return ax


def pressure_picture(comparison: Comparison, ax: Any) -> Any:
    """Vector registers in use along both orders, against matrix instructions issued."""
    flavor = comparison.dag.flavor
    for label, result, colour in (("without", comparison.off, OFF), ("with the mutation", comparison.on, ON)):
        issued = np.concatenate([[0], np.cumsum(flavor[result.order] == int(Flavor.WMMA))])
        ax.plot(
            issued,
            result.pressure.vector_whole,
            color=colour,
            lw=1.6,
            label=f"{label}: peak {result.pressure.peak_whole}",
        )
    limit = comparison.off.register_limit
    top = max(comparison.off.pressure.peak_whole, comparison.on.pressure.peak_whole)
    if limit < 1.5 * top:
        ax.axhline(limit, color=LIMIT, lw=1, ls="--", label=f"allocatable: {limit}")
    ax.set_xlim(0, int((flavor == int(Flavor.WMMA)).sum()))
    ax.set_ylim(0, 1.3 * max(top, limit if limit < 1.5 * top else 0))
    ax.set_xlabel("matrix instructions issued")
    ax.set_ylabel("vector registers")
    ax.legend(loc="lower center", ncols=3, frameon=False, fontsize="small")
    return ax


def comparison_picture(comparison: Comparison, path: str) -> None:
    """Histogram, lifetimes without and with the mutation and register curves of one kernel, in one picture file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(13, 8.4), layout="constrained")
    histogram_picture(comparison.mutation, axes[0, 0]).set_title("registers of fragments and the budget", fontsize=11)
    pressure_picture(comparison, axes[0, 1]).set_title("all vector registers", fontsize=11)
    for ax, result, report, colour, label in (
        (axes[1, 0], comparison.off, None, OFF, "without the mutation"),
        (axes[1, 1], comparison.on, comparison.mutation, ON, "with the mutation"),
    ):
        lifetimes_picture(result, ax, report, colour)
        ax.set_title(f"{label}: held {result.held:.1f}, {result.cycles} cycles", fontsize=11)
    figure.suptitle(comparison.dag.name, fontsize=12)
    figure.savefig(path, dpi=110)
    plt.close(figure)
