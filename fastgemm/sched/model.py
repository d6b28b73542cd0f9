"""The vocabulary of the scheduler: flavors, edge kinds, operand kinds, node flags and the errors a DAG can raise."""

from __future__ import annotations

from enum import IntEnum, IntFlag

__all__ = ["DagError", "EdgeKind", "Flag", "Flavor", "OperandKind", "Reason", "parse_edge_kind", "parse_flavor"]


class DagError(ValueError):
    """A DAG that cannot be scheduled: a cycle, a dangling, self or duplicate edge, an unknown opcode, a size out of bounds."""


class Flavor(IntEnum):
    """Hardware unit of an instruction; the order is the compiler's and is the last tie-break of its unit sort."""

    WMMA = 0
    VALU1 = 1
    TRANS = 2
    VALUN = 3
    VMEM = 4
    SMEM = 5
    DS = 6
    SALU = 7
    DMA = 8
    FENCE = 9
    OTHER = 10

    @property
    def label(self) -> str:
        """The compiler's own spelling."""
        return _FLAVOR_LABELS[self]


_FLAVOR_LABELS = ("WMMA", "VALU(1c)", "TRANS", "VALU(Nc)", "VMEM", "SMEM", "DS", "SALU", "DMA", "Fence", "Other")
_FLAVORS = {
    **{label: Flavor(i) for i, label in enumerate(_FLAVOR_LABELS)},
    **{flavor.name: flavor for flavor in Flavor},
    "SingleCycleVALU": Flavor.VALU1,
    "MultiCycleVALU": Flavor.VALUN,
}


def parse_flavor(name: str | int | Flavor) -> Flavor:
    """A flavor from any of its spellings (``"VALU(1c)"``, ``"VALU1"``, ``"SingleCycleVALU"``) or its number."""
    if isinstance(name, int):
        return Flavor(name)
    try:
        return _FLAVORS[name]
    except KeyError:
        raise DagError(f"flavor {name!r} is none of {', '.join(_FLAVOR_LABELS)}") from None


class EdgeKind(IntEnum):
    """Kinds of dependency. MEMORY and BARRIER are the two sorts of order edge; WEAK and CLUSTER do not gate readiness."""

    DATA = 0
    ANTI = 1
    OUTPUT = 2
    MEMORY = 3
    BARRIER = 4
    ARTIFICIAL = 5
    WEAK = 6
    CLUSTER = 7


_EDGE_KINDS = {
    **{kind.name.lower(): kind for kind in EdgeKind},
    "out": EdgeKind.OUTPUT,
    "ord": EdgeKind.MEMORY,
    "order": EdgeKind.MEMORY,
}


def parse_edge_kind(name: str | int | EdgeKind) -> EdgeKind:
    """An edge kind from its name (any case, ``"order"`` is a memory order edge) or its number."""
    if isinstance(name, int):
        return EdgeKind(name)
    try:
        return _EDGE_KINDS[name.lower()]
    except KeyError:
        raise DagError(f"edge kind {name!r} is none of {', '.join(_EDGE_KINDS)}") from None


class OperandKind(IntEnum):
    """How an instruction touches a register: an undefined use does not read, a dead definition does not live."""

    USE = 0
    DEF = 1
    UNDEF_USE = 2
    DEAD_DEF = 3


class Flag(IntFlag):
    """Facts of a node the rules of the scheduler ask for (see ``docs/scheduling.md``)."""

    LOAD = 1  # reads memory
    READS_SGPR = 2  # a vector op that reads a virtual scalar register
    WRITES_SGPR = 4  # a vector op that writes one
    SCALAR_ISSUE = 8  # subject to the scalar wait
    COPY = 16
    IMPLICIT_DEF = 32
    COPY_FROM_PHYS = 64
    COPY_TO_PHYS = 128
    IMM_TO_PHYS = 256


class Reason(IntEnum):
    """Why a pick was made, as the compiler prints it.

    The first group is a candidate's own reason; a smaller one is stronger and replaces a weaker one when its holder defends.
    From `EFFECTIVE_STALL` on the reason belongs to the pick: the last comparison so decided is the one printed, even if its
    winner lost later.
    """

    ONLY_CHOICE = 0
    PHYS_REG = 1
    REG_EXCESS = 2
    REG_CRITICAL = 3
    STALL = 4
    CLUSTER = 5
    WEAK = 6
    ORDER = 7
    FIRST = 8
    EFFECTIVE_STALL = 9
    MEMORY_PIPELINE = 10
    COEXEC_SLOT = 11
    SHADOW_MIX = 12
    CRIT_RESOURCE = 13
    CRIT_RESOURCE_DEP = 14

    @property
    def label(self) -> str | None:
        """The compiler's spelling; None where nothing was compared."""
        return _REASON_LABELS[self]


_REASON_LABELS = (
    None,
    "PHYS-REG",
    "REG-EXCESS",
    "REG-CRIT",
    "STALL",
    "CLUSTER",
    "WEAK",
    "ORDER",
    "FIRST",
    "Stall",
    "MemoryPipeline",
    "CoexecSlot",
    "ShadowMix",
    "CritResource",
    "CritResourceDep",
)
_REASONS = {label: Reason(i) for i, label in enumerate(_REASON_LABELS)}


def parse_reason(label: str | None) -> Reason:
    """A reason from the compiler's spelling."""
    try:
        return _REASONS[label]
    except KeyError:
        raise DagError(f"reason {label!r} is none of {', '.join(str(x) for x in _REASON_LABELS)}") from None
