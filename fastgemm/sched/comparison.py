"""With and without a mutation, side by side: the same DAG scheduled twice and both orders evaluated on the in-order machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .dag import Dag
from .evaluation import Evaluation, evaluate
from .inorder import StaticMachine
from .lower_bounds import Bounds, bounds
from .machine import Machine
from .mutation import mutate
from .mutation_report import MutationReport

__all__ = ["ARTICLE", "COLUMNS", "Comparison", "compare", "report"]

# the two kernels of the article on the mutation, by their command lines
ARTICLE = (
    "gemm:256x256x256:mxfp8:waves=4:buffers=2:schedule=sliceNK",
    "gemm:256x128x128:f16:waves=4:buffers=3:schedule=single_warp",
)
COLUMNS = ("kernel", "nodes", "mutation", "cycles", "matrix", "peak VGPRs", "spilled", "waits", "wait cycles", "held")


@dataclass(frozen=True)
class Comparison:
    """One DAG: evaluated without (``off``) and with (``on``) the mutation, what the mutation did, and the lower bounds."""

    dag: Dag
    profile: str
    off: Evaluation
    on: Evaluation
    mutation: MutationReport
    bounds: Bounds

    @property
    def gain(self) -> float:
        """Cycles without the mutation over cycles with it."""
        return self.off.cycles / self.on.cycles

    def rows(self) -> list[dict[str, Any]]:
        """Two rows for a table, keyed by `COLUMNS`."""
        rows = []
        for label, result in (("off", self.off), ("on", self.on)):
            rows.append(
                {
                    "kernel": self.dag.name,
                    "nodes": self.dag.n,
                    "mutation": label,
                    "cycles": result.cycles,
                    "matrix": f"{result.matrix_share:.1%}",
                    "peak VGPRs": result.peak,
                    "spilled": result.spilled_registers,
                    "waits": len(result.waits),
                    "wait cycles": int(result.waits["stall"].sum()),
                    "held": "" if result.held != result.held else f"{result.held:.1f}",
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kernel": self.dag.name,
            "nodes": self.dag.n,
            "profile": self.profile,
            "gain": round(self.gain, 4),
            "off": self.off.to_dict(),
            "on": self.on.to_dict(),
            "mutation": self.mutation.to_dict(),
            "bounds": self.bounds.to_dict(),
        }


def compare(
    dag: Dag,
    mutation: str = "wmma_window",
    *,
    profile: str = "llvm24-late",
    machine: StaticMachine | str | Path | None = None,
    before: Sequence[tuple[str, Mapping[str, Any]]] = (),
    scheduler_machine: Machine | str | None = None,
    **options: Any,
) -> Comparison:
    """Schedule ``dag`` with and without ``mutation`` (``options`` are its own) and evaluate both orders on ``machine``.

    ``before``: mutations applied to both sides first, such as ``[("opening_delay", {"until": 7})]``.  Both orders are evaluated
    on the DAG as it came: added edges shape an order, the machine does not see them.
    """
    from . import schedule

    base = dag
    for name, chosen in before:
        base, _ = mutate(base, name, **chosen)
    changed, done = mutate(base, mutation, machine=scheduler_machine, **options)
    orders = [schedule(side, profile=profile, machine=scheduler_machine).order for side in (base, changed)]
    off, on = (evaluate(dag, order, machine) for order in orders)
    return Comparison(dag, profile, off, on, done, bounds(dag, machine))


def report(dags: Iterable[Dag] | None = None, **options: Any) -> list[Comparison]:
    """`compare` for each DAG; without any, for the article's two kernels. ``options`` go to `compare`."""
    if dags is None:
        from . import synthetic

        dags = [synthetic.parse(kernel) for kernel in ARTICLE]
    return [compare(dag, **options) for dag in dags]
