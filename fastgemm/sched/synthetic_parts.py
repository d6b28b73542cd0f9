"""Writing kernels down: an assembler for straight pieces of code and the matrix instructions there are to choose from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .build import dag_from_sorted
from .dag import Dag
from .dependencies import A_FENCE, A_LDS, A_NONE, A_SIGNAL, A_TENSOR, A_WAIT, derive_edges
from .machine import Machine
from .machine import machine as machine_named
from .model import DagError, EdgeKind, Flavor, OperandKind

__all__ = ["Assembler", "MATRIX", "MatrixOp", "lane_mask", "matrix_op"]

_USE, _DEF = int(OperandKind.USE), int(OperandKind.DEF)
_DATA, _MEMORY_EDGE = int(EdgeKind.DATA), int(EdgeKind.MEMORY)
_ALL, _ALL_SIGNED = (1 << 64) - 1, -1
_VISIBLE = (Flavor.VALU1, Flavor.TRANS, Flavor.VALUN)  # results memory instructions see late
_MEMORY = (Flavor.DS, Flavor.VMEM, Flavor.DMA)


def lane_mask(words: int, first: int = 0) -> int:
    """Lane mask of ``words`` 32-bit words from word ``first`` on."""
    return (((1 << (2 * words)) - 1) << (2 * first)) & _ALL


_WHOLE = np.array([lane_mask(words) for words in range(33)], np.uint64)  # of a register of so many words


@dataclass(frozen=True)
class MatrixOp:
    """One matrix instruction: tile it computes and 32-bit registers of its operands per lane."""

    opcode: str
    m: int
    n: int
    k: int
    a: int  # registers
    b: int
    acc: int
    scaled: bool = False


def _op(kind: str, shape: str, m: int, k: int, a: int, b: int, acc: int = 8, scaled: bool = False) -> MatrixOp:
    return MatrixOp(f"V_WMMA_{kind}_{m}X16X{k}_{shape}_w32_twoaddr", m, 16, k, a, b, acc, scaled)


# dtype name -> instruction
MATRIX = {
    "f16": _op("F32", "F16", 16, 32, 8, 8),
    "bf16": _op("F32", "BF16", 16, 32, 8, 8),
    "fp8": _op("F32", "FP8_FP8", 16, 128, 16, 16),
    "bf8": _op("F32", "BF8_BF8", 16, 128, 16, 16),
    "fp8k64": _op("F32", "FP8_FP8", 16, 64, 8, 8),
    "fp4": _op("F32", "F4", 32, 128, 16, 8, acc=16),
    "i8": _op("I32", "IU8", 16, 64, 8, 8),
    "f32": _op("F32", "F32", 16, 4, 2, 2),
    "mxfp8": _op("SCALE_F32", "F8F6F4_f8_f8", 16, 128, 16, 16, scaled=True),
    "mxfp4": _op("SCALE_F32", "F8F6F4_f4_f4", 16, 128, 8, 8, scaled=True),
    "mxfp4x32": _op("SCALE_F32", "F4", 32, 128, 16, 8, acc=16, scaled=True),
}
_ALIASES = {
    "float16": "f16",
    "bfloat16": "bf16",
    "int8": "i8",
    "float32": "f32",
    "float8": "fp8",
    "scaled": "mxfp8",
    "mx": "mxfp8",
}


def matrix_op(dtype: str) -> MatrixOp:
    """The matrix instruction of a dtype name."""
    name = _ALIASES.get(dtype, dtype)
    if name not in MATRIX:
        raise DagError(f"no matrix instruction for dtype {dtype!r}; there are {', '.join(MATRIX)}")
    return MATRIX[name]


class Assembler:
    """Collects instructions in program order, in bulk or one by one, and turns them into a `Dag`.

    One by one costs Python a few list entries; arrays are made once, by `build`.
    """

    def __init__(self, machine: Machine | str | None) -> None:
        self.machine = machine_named("gfx1250" if machine is None else machine)
        self._code: dict[str, int] = {}
        self.n = 0
        self.registers = 0
        self._first: list[int] = []  # register groups: first register, then (count, words, vector?, carried?)
        self._groups: list[tuple[int, int, bool, bool]] = []
        self._single: list[tuple[int, int]] = []  # instructions emitted one by one: node, opcode
        self._bulk: list[tuple[int, NDArray[np.int32]]] = []  # first node, opcodes
        self._operand: list[tuple[int, int, int, int]] = []  # node, register, lanes, kind
        self._operands: list[NDArray[np.int64]] = []  # the same as columns

    @property
    def opcodes(self) -> tuple[str, ...]:
        """Every opcode used, in order of first use."""
        return tuple(self._code)

    def _new(self, count: int, words: int, vector: bool, carried: bool) -> int:
        first = self.registers
        self._first.append(first)
        self._groups.append((count, words, vector, carried))
        self.registers += count
        return first

    def register(self, count: int, words: int, *, vector: bool = True, carried: bool = False) -> NDArray[np.int64]:
        """``count`` new registers of ``words`` 32-bit words; ``carried``: alive at the region's entry and exit."""
        first = self._new(count, words, vector, carried)
        return np.arange(first, first + count)

    def words(self, register: int) -> int:
        """Size of a register in 32-bit words."""
        return self._groups[bisect_right(self._first, register) - 1][1]

    def scalar(self, words: int = 1, *, carried: bool = False) -> int:
        """One new scalar register."""
        return self._new(1, words, False, carried)

    def emit(
        self, opcode: str, define: ArrayLike, *use: ArrayLike, lanes: Mapping[int, ArrayLike] | None = None
    ) -> None:
        """Instructions of one opcode: ``define`` and each of ``use`` hold one register per instruction (-1: no such operand).

        ``lanes[i]`` narrows operand ``i`` (0 is the definition) to a mask or one mask per instruction; otherwise an operand
        touches the whole register.
        """
        code = self._code.setdefault(opcode, len(self._code))
        columns = (define, *use)
        if all(isinstance(column, int) for column in columns):
            self._single.append((self.n, code))
            for i, register in enumerate(columns):
                if register >= 0:  # type: ignore[operator]
                    mask = _ALL if lanes is None else lanes.get(i, _ALL)
                    self._operand.append((self.n, register, mask, _USE if i else _DEF))  # type: ignore[arg-type]
            self.n += 1
            return
        parts = [np.asarray(column, np.int64) for column in columns]
        count = max(part.size for part in parts)
        self._bulk.append((self.n, np.full(count, code, np.int32)))
        nodes = np.arange(self.n, self.n + count)
        for i, part in enumerate(parts):
            if part.ndim == 0 and part < 0:
                continue
            column = np.empty((4, count), np.int64)
            column[0], column[1], column[3] = nodes, part, _USE if i else _DEF
            column[2] = (
                _ALL_SIGNED if lanes is None or i not in lanes else np.asarray(lanes[i], np.uint64).view(np.int64)
            )
            self._operands.append(column)
        self.n += count

    def emit_mixed(
        self,
        names: list[str],
        pick: NDArray[np.integer],
        define: NDArray[np.int64],
        uses: NDArray[np.int64],
        lanes: dict[int, NDArray[np.uint64]],
    ) -> None:
        """Instructions of many opcodes at once: ``names[pick[i]]`` defines ``define[i]`` and reads ``uses[i]`` (-1: nothing)."""
        codes = np.array([self._code.setdefault(name, len(self._code)) for name in names], np.int32)
        self._bulk.append((self.n, codes[pick]))
        nodes = np.arange(self.n, self.n + pick.size)
        for place in range(uses.shape[1] + 1):
            register = define if place == 0 else uses[:, place - 1]
            keep = register >= 0
            column = np.empty((4, int(keep.sum())), np.int64)
            column[0], column[1], column[3] = nodes[keep], register[keep], _USE if place else _DEF
            column[2] = lanes[place].view(np.int64)[keep] if place in lanes else _ALL_SIGNED
            self._operands.append(column)
        self.n += pick.size

    def fence(self, *opcodes: str) -> None:
        """Synchronisation instructions, which touch no registers."""
        for opcode in opcodes:
            self.emit(opcode, -1)

    def barrier(self) -> None:
        """The compiler's four instructions of a workgroup barrier."""
        self.fence("ATOMIC_FENCE", "S_BARRIER_SIGNAL_IMM", "S_BARRIER_WAIT", "ATOMIC_FENCE")

    def _table(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Opcode of every instruction, and a row per operand: node, register, lanes, kind; sorted by node."""
        opcode = np.empty(self.n, np.int32)
        if self._single:
            nodes, codes = np.array(self._single).T
            opcode[nodes] = codes
        for first, codes in self._bulk:
            opcode[first : first + codes.size] = codes
        one_by_one = np.array(self._operand, np.uint64).reshape(-1, 4).T.view(np.int64)
        table = np.concatenate([one_by_one, *self._operands], axis=1)
        return opcode, table[:, np.argsort(table[0], kind="stable")]

    def build(self, name: str, *, copies: int = 1, loop: bool = True) -> Dag:
        """The DAG of the code so far, ``copies`` times in a row over the same registers."""
        opcode, (node, register, lanes, kind) = self._table()
        groups = np.array(self._groups, np.int64).reshape(-1, 4)
        size, vector, carried = (np.repeat(groups[:, i], groups[:, 0]) for i in (1, 2, 3))
        lanes = lanes.view(np.uint64) & _WHOLE[size[register]]
        if copies > 1:
            node = np.tile(node, copies) + np.repeat(np.arange(copies) * self.n, node.size)
            opcode, register, lanes, kind = (np.tile(x, copies) for x in (opcode, register, lanes, kind))
        n = opcode.size
        start = np.zeros(n + 1, np.int32)
        np.cumsum(np.bincount(node, minlength=n), out=start[1:])
        facts = _facts(self.machine, self.opcodes)
        latency, access = facts.latency[opcode], facts.access[opcode]
        operands = (register.astype(np.int32), lanes, kind.astype(np.int8))
        source, target, edge_kind, lasts = derive_edges(start, operands, self.registers, latency, access)
        late = facts.visible[opcode[source]] & facts.memory[opcode[target]] & (edge_kind == _DATA)
        lasts[late] = self.machine.data["visible_latency"][0]
        alive = np.flatnonzero(carried).astype(np.int32)
        leads = np.zeros(n, np.bool_)
        leads[source] = True
        ends = np.flatnonzero(~leads)
        return dag_from_sorted(
            self.opcodes,
            opcode,
            (source, target, edge_kind, lasts),
            (start, node, *operands),
            (size, vector),
            machine=self.machine,
            name=name,
            live=(alive, _WHOLE[size[alive]]),
            exits=(ends, np.full(ends.size, _MEMORY_EDGE), latency[ends]),
            loop=loop,
        )


class _Facts(NamedTuple):
    """What `Assembler.build` asks of each opcode of a table."""

    latency: NDArray[np.int32]
    access: NDArray[np.int8]
    visible: NDArray[np.bool_]  # memory instructions see the result late
    memory: NDArray[np.bool_]


@lru_cache(maxsize=256)
def _facts(machine: Machine, opcodes: tuple[str, ...]) -> _Facts:
    facts = [machine.facts(opcode, vector=True) for opcode in opcodes]
    if None in facts:
        raise DagError(f"opcode {opcodes[facts.index(None)]!r} is unknown to machine {machine.name!r}")
    flavor = [f.flavor for f in facts if f]
    latency = [f.latency if f.flavor != Flavor.DS else machine.ds_latency for f in facts if f]
    access = [_access(opcode, unit) for opcode, unit in zip(opcodes, flavor, strict=True)]
    return _Facts(
        np.array(latency, np.int32), np.array(access, np.int8), np.isin(flavor, _VISIBLE), np.isin(flavor, _MEMORY)
    )


def _access(opcode: str, flavor: Flavor) -> int:
    if flavor == Flavor.DS:
        return A_LDS
    if flavor == Flavor.DMA:
        return A_TENSOR
    if flavor != Flavor.FENCE:
        return A_NONE
    if opcode.startswith("S_BARRIER_SIGNAL"):
        return A_SIGNAL
    return A_WAIT if opcode == "S_BARRIER_WAIT" else A_FENCE
