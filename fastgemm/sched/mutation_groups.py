"""User patterns in the manner of LLVM's ``sched_group_barrier``: groups of a class of instruction, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .dag import Dag
from .machine import Machine
from .model import DagError, Flag, Flavor
from .mutation import Candidates, apply_edges, register
from .mutation_report import MutationReport

__all__ = ["MASKS", "sched_group_barrier"]

# name -> bit of the builtin's mask
MASKS = {
    "ALU": 0x1,
    "VALU": 0x2,
    "SALU": 0x4,
    "WMMA": 0x8,
    "VMEM": 0x10,
    "VMEM_READ": 0x20,
    "VMEM_WRITE": 0x40,
    "DS": 0x80,
    "DS_READ": 0x100,
    "DS_WRITE": 0x200,
    "TRANS": 0x400,
}


@register("sched_group_barrier")
def sched_group_barrier(
    dag: Dag, *, machine: Machine, pattern: Sequence[tuple[str | int, int]] = (), repeat: int | None = None
) -> tuple[Dag, MutationReport]:
    """Order groups of instructions: ``[("DS_READ", 2), ("WMMA", 4)]`` means two LDS reads, then four matrix instructions, …

    A class is a name of `MASKS` or the builtin's bit mask.  The pattern is repeated ``repeat`` times (default: until a whole
    repetition finds nothing more).  Each group takes the next instructions of its class in program order that no earlier group
    took; then an edge joins every member of a group to every member of the next non-empty group.  An edge against a dependency
    is refused, the others stay: the compiler's solver also looks for the assignment with the fewest such edges, this one does not.
    """
    if not pattern:
        raise DagError('an empty pattern: give groups such as [("DS_READ", 2), ("WMMA", 4)]')
    for _, size in pattern:
        if size <= 0:
            raise DagError(f"a group of {size} instructions; sizes start at 1")
    classes = [_members(dag, mask) for mask, _ in pattern]
    free = np.ones(dag.n, bool)
    cursor = [0] * len(pattern)
    groups: list[NDArray[np.int64]] = []
    rounds = 0
    while repeat is None or rounds < repeat:
        found = 0
        for k, (_, size) in enumerate(pattern):
            members, place = classes[k], cursor[k]
            taken: list[int] = []
            while place < members.size and len(taken) < size:
                if free[members[place]]:
                    taken.append(int(members[place]))
                place += 1
            cursor[k] = place
            if taken:
                free[taken] = False
                groups.append(np.array(taken))
                found += len(taken)
        rounds += 1
        if not found:
            break
    wanted = Candidates()
    for earlier, later in zip(groups, groups[1:], strict=False):
        wanted.add("groups", np.repeat(earlier, later.size), np.tile(later, earlier.size))
    changed, verdict = apply_edges(dag, wanted)
    note = f"{len(groups)} groups of {int((~free).sum())} instructions"
    return changed, MutationReport("sched_group_barrier", "", ("groups",), wanted, verdict, note=note)


def _members(dag: Dag, mask: str | int) -> NDArray[np.int64]:
    """Nodes a mask means, in program order."""
    if isinstance(mask, str):
        if mask not in MASKS:
            raise DagError(f"class {mask!r} is none of {', '.join(MASKS)} (or give the builtin's mask as a number)")
        mask = MASKS[mask]
    flavor = dag.flavor
    load = (dag.flags & int(Flag.LOAD)) != 0

    def of(*flavors: Flavor) -> NDArray[np.bool_]:
        return np.isin(flavor, [int(f) for f in flavors])

    vector, scalar = of(Flavor.VALU1, Flavor.VALUN), of(Flavor.SALU)
    chosen = np.zeros(dag.n, bool)
    for name, nodes in (
        ("ALU", vector | scalar | of(Flavor.WMMA, Flavor.TRANS)),
        ("VALU", vector),
        ("SALU", scalar),
        ("WMMA", of(Flavor.WMMA)),
        ("VMEM", of(Flavor.VMEM, Flavor.DMA)),
        ("VMEM_READ", of(Flavor.VMEM, Flavor.DMA) & load),
        ("VMEM_WRITE", of(Flavor.VMEM) & ~load),
        ("DS", of(Flavor.DS)),
        ("DS_READ", of(Flavor.DS) & load),
        ("DS_WRITE", of(Flavor.DS) & ~load),
        ("TRANS", of(Flavor.TRANS)),
    ):
        if mask & MASKS[name]:
            chosen |= nodes
    return np.flatnonzero(chosen)
