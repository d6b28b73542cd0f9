"""Random code: every unit, bounded live ranges, for tests and for sweeps no kernel covers."""

from __future__ import annotations

import numpy as np

from .dag import Dag
from .machine import Machine
from .model import DagError
from .synthetic_parts import Assembler, lane_mask

__all__ = ["random"]

# opcode, weight, words it defines (0: none, negative: scalar), vector words of each source (negative: scalar)
_MIX = (
    ("V_WMMA_F32_16X16X32_F16_w32_twoaddr", 12, 8, (8, 8, 8)),
    ("V_WMMA_SCALE_F32_16X16X128_F8F6F4_f8_f8_w32_twoaddr", 6, 8, (8, 8, 8)),
    ("V_FMA_F32_e64", 20, 1, (1, 1, 1)),
    ("V_ADD_U32_e32", 12, 1, (1, -1)),
    ("V_EXP_F32_e32", 5, 1, (1,)),
    ("V_MUL_LO_U32_e64", 4, 1, (1, 1)),
    ("DS_READ_B128_gfx9", 16, 8, (1,)),
    ("DS_WRITE_B128_gfx9", 3, 0, (1, 8)),
    ("BUFFER_LOAD_DWORDX4_VBUFFER_OFFEN", 3, 8, (1,)),
    ("S_LOAD_DWORDX2_IMM", 2, -1, (-1,)),
    ("S_ADD_I32", 12, -1, (-1, -1)),
    ("TENSOR_LOAD_TO_LDS_d2", 1, 0, (-1,)),
    ("S_BARRIER_SIGNAL_IMM", 1, 0, ()),
    ("S_BARRIER_WAIT", 1, 0, ()),
    ("ATOMIC_FENCE", 1, 0, ()),
    ("IMPLICIT_DEF", 1, 1, ()),
)


def random(
    n: int,
    *,
    rng: np.random.Generator | int = 0,
    span: int = 24,
    loop: bool = False,
    machine: Machine | str | None = None,
) -> Dag:
    """``n`` random instructions; sources are values made up to about ``span`` definitions of the same kind before.

    ``rng`` is a generator or a seed; the same seed gives the same DAG.  ``loop`` makes it a single-block loop whose live-in values
    are written again; nothing else lives out.
    """
    if n < 0 or span <= 0:
        raise DagError(f"random code of {n} instructions with a span of {span}; both have to be positive")
    draw = rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)
    weights = np.array([weight for _, weight, _, _ in _MIX], float)
    pick = draw.choice(len(_MIX), size=n, p=weights / weights.sum())
    code = Assembler(machine)
    width = np.array([words for _, _, words, _ in _MIX])[pick]
    defined = np.full(n, -1, np.int64)
    pools: dict[int, np.ndarray] = {}
    when: dict[int, np.ndarray] = {}
    for words in (8, 1, -1):
        entry = code.register(span, abs(words), vector=words > 0, carried=True)
        nodes = np.flatnonzero(width == words)
        made = code.register(nodes.size, abs(words), vector=words > 0)
        if loop and nodes.size >= span:  # the last definitions write the live-in values again
            made[-span:] = entry
        defined[nodes] = made
        pools[words] = np.concatenate([entry, made])
        when[words] = nodes
    uses = np.full((n, 3), -1, np.int64)
    for index, (_, _, _, sources) in enumerate(_MIX):
        nodes = np.flatnonzero(pick == index)
        for place, words in enumerate(sources):
            known = span + np.searchsorted(when[words], nodes)  # values of that kind made before each node
            back = np.minimum(1 + draw.geometric(min(1.0, 3.0 / span), nodes.size), known)
            uses[nodes, place] = pools[words][known - back]
    _write(code, pick, defined, uses)
    return code.build(f"random_{n}", loop=loop)


def _write(code: Assembler, pick: np.ndarray, defined: np.ndarray, uses: np.ndarray) -> None:
    """Emit all instructions at once: one opcode table, three source columns."""
    names = [name for name, _, _, _ in _MIX]
    read_mask = np.array([[_source_mask(name, place) for place in range(3)] for name in names], np.uint64)
    lanes = {place + 1: read_mask[pick, place] for place in range(3)}
    code.emit_mixed(names, pick, defined, uses, lanes)


def _source_mask(name: str, place: int) -> int:
    """Lanes read: an LDS store takes half of a tuple, everything else the whole register."""
    return lane_mask(4) if name.startswith("DS_WRITE") and place == 1 else (1 << 64) - 1
