"""The debug text of a schedule, in the words compiler people know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dag import Dag
from .model import Flavor, Reason

__all__ = ["Comparison", "log_records", "trace_text"]

Comparison = tuple[int, int, int]  # champion, challenger, reason: positive if the challenger won, 0 if nothing decided


def log_records(log: NDArray[np.int32]) -> Iterator[tuple[int, int, list[int], list[int], list[Comparison]]]:
    """(pick, cycle, available, pending, comparisons) of every record of a raw log."""
    words = log.tolist()
    at = 0
    while at < len(words):
        _, pick, cycle, available, pending = words[at : at + 5]
        at += 5
        queue = words[at : at + available + pending]
        at += available + pending
        end = at
        while end < len(words) and words[end] != -1:
            end += 3
        rows = [(words[i], words[i + 1], words[i + 2]) for i in range(at, end, 3)]
        yield pick, cycle, queue[:available], queue[available:], rows
        at = end


def _node(dag: Dag, node: int) -> str:
    return f"SU({node}) {dag.opcode_name(node)} [{Flavor(int(dag.flavor[node])).label}]"


def _queue(name: str, nodes: list[int]) -> str:
    return f"Queue {name}: {' '.join(str(node) for node in nodes)}".rstrip()


def trace_text(dag: Dag, picks: NDArray[Any], log: NDArray[np.int32]) -> str:
    """Queues, comparisons, winner and clock of every pick."""
    lines: list[str] = [f"*** Scheduling {dag.name or 'region'}: {dag.n} SUs"]
    for pick, cycle, available, pending, comparisons in log_records(log):
        row = picks[pick]
        lines += [f"Cycle: {cycle}", _queue("TopQ.A", available), _queue("TopQ.P", pending)]
        for champion, challenger, decided in comparisons:
            winner, loser = (challenger, champion) if decided > 0 else (champion, challenger)
            reason = Reason(abs(decided)).label if decided else "NOCAND"
            lines.append(f"  Cand {_node(dag, winner)} beats SU({loser}) by {reason}")
        reason = Reason(int(row["reason"])).label or "ONLY1"
        lines.append(f"Pick Top {reason}")
        lines.append(
            f"Scheduling {_node(dag, int(row['node']))} @{row['cycle']}c ready {row['ready']}c "
            f"VGPR={row['vgpr']} SGPR={row['sgpr']}"
        )
    return "\n".join(lines) + "\n"
