"""Writing kernels down: an assembler for straight pieces of code and the matrix instructions there are to choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .dag import Dag
from .dependencies import A_FENCE, A_LDS, A_NONE, A_SIGNAL, A_TENSOR, A_WAIT, derive_edges
from .machine import Machine
from .machine import machine as machine_named
from .model import DagError, EdgeKind, Flavor, OperandKind

__all__ = ["Assembler", "MATRIX", "MatrixOp", "lane_mask", "matrix_op"]

_USE, _DEF = int(OperandKind.USE), int(OperandKind.DEF)
_ALL = (1 << 64) - 1
_VISIBLE = (Flavor.VALU1, Flavor.TRANS, Flavor.VALUN)  # results memory instructions see late
_MEMORY = (Flavor.DS, Flavor.VMEM, Flavor.DMA)


def lane_mask(words: int, first: int = 0) -> int:
    """Lane mask of ``words`` 32-bit words from word ``first`` on."""
    return (((1 << (2 * words)) - 1) << (2 * first)) & _ALL


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
    """Collects instructions in program order, in bulk or one by one, and turns them into a `Dag`."""

    def __init__(self, machine: Machine | str | None) -> None:
        self.machine = machine_named("gfx1250" if machine is None else machine)
        self.opcodes: list[str] = []
        self._code: dict[str, int] = {}
        self._opcode: list[NDArray[np.int32]] = []
        self._operands: list[tuple[NDArray[Any], ...]] = []  # node, register, lanes, kind
        self.n = 0
        self._sizes: list[NDArray[np.int16]] = []
        self._vector: list[NDArray[np.bool_]] = []
        self.registers = 0
        self.live_in: list[NDArray[np.int64]] = []
        self.live_out: list[NDArray[np.int64]] = []

    def register(self, count: int, words: int, *, vector: bool = True, carried: bool = False) -> NDArray[np.int64]:
        """``count`` new registers of ``words`` 32-bit words; ``carried``: alive at the region's entry and exit."""
        made = np.arange(self.registers, self.registers + count)
        self.registers += count
        self._sizes.append(np.full(count, words, np.int16))
        self._vector.append(np.full(count, vector))
        if carried:
            self.live_in.append(made)
            self.live_out.append(made)
        return made

    def words(self, register: int) -> int:
        """Size of a register in 32-bit words."""
        for sizes in self._sizes:
            if register < sizes.size:
                return int(sizes[register])
            register -= sizes.size
        raise IndexError(register)

    def scalar(self, words: int = 1, *, carried: bool = False) -> int:
        """One new scalar register."""
        return int(self.register(1, words, vector=False, carried=carried)[0])

    def emit(
        self, opcode: str, define: ArrayLike, *use: ArrayLike, lanes: Mapping[int, ArrayLike] | None = None
    ) -> None:
        """Instructions of one opcode: ``define`` and each of ``use`` hold one register per instruction (-1: no such operand).

        ``lanes[i]`` narrows operand ``i`` (0 is the definition) to a mask or one mask per instruction; otherwise an operand
        touches the whole register.
        """
        columns = [np.atleast_1d(np.asarray(column, np.int64)) for column in (define, *use)]
        count = max(column.size for column in columns)
        if opcode not in self._code:
            self._code[opcode] = len(self.opcodes)
            self.opcodes.append(opcode)
        nodes = np.arange(self.n, self.n + count, dtype=np.int32)
        self._opcode.append(np.full(count, self._code[opcode], np.int32))
        for i, column in enumerate(columns):
            register = np.broadcast_to(column, (count,))
            mask = np.asarray(_ALL if lanes is None or i not in lanes else lanes[i], dtype=np.uint64)
            kind = np.full(count, _DEF if i == 0 else _USE, np.int8)
            entry = (nodes, register, np.broadcast_to(mask, (count,)), kind)
            keep = register >= 0
            self._operands.append(entry if keep.all() else tuple(part[keep] for part in entry))
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
        for name in names:
            if name not in self._code:
                self._code[name] = len(self.opcodes)
                self.opcodes.append(name)
        codes = np.array([self._code[name] for name in names], np.int32)
        self._opcode.append(codes[pick])
        nodes = np.arange(self.n, self.n + pick.size, dtype=np.int32)
        whole = np.full(pick.size, _ALL, np.uint64)
        for place in range(uses.shape[1] + 1):
            register = define if place == 0 else uses[:, place - 1]
            kind = np.full(pick.size, _DEF if place == 0 else _USE, np.int8)
            entry = (nodes, register, lanes.get(place, whole), kind)
            keep = register >= 0
            self._operands.append(tuple(part[keep] for part in entry))
        self.n += pick.size

    def fence(self, *opcodes: str) -> None:
        """Synchronisation instructions, which touch no registers."""
        for opcode in opcodes:
            self.emit(opcode, -1)

    def barrier(self) -> None:
        """The compiler's four instructions of a workgroup barrier."""
        self.fence("ATOMIC_FENCE", "S_BARRIER_SIGNAL_IMM", "S_BARRIER_WAIT", "ATOMIC_FENCE")

    def build(self, name: str, *, copies: int = 1, loop: bool = True) -> Dag:
        """The DAG of the code so far, ``copies`` times in a row over the same registers."""
        opcode = np.tile(np.concatenate(self._opcode), copies)
        n = opcode.size
        node, register, lanes, kind = (np.concatenate(part) for part in zip(*self._operands, strict=True))
        order = np.argsort(node, kind="stable")
        node, register, lanes, kind = node[order], register[order].astype(np.int32), lanes[order], kind[order]
        sizes, vector = np.concatenate(self._sizes), np.concatenate(self._vector)
        whole = np.array([lane_mask(words) for words in range(33)], np.uint64)
        lanes = lanes & whole[sizes[register]]
        shift = np.repeat(np.arange(copies, dtype=np.int32) * self.n, node.size)
        node, register, lanes, kind = (
            np.tile(node, copies) + shift,
            *(np.tile(x, copies) for x in (register, lanes, kind)),
        )
        start = np.zeros(n + 1, np.int64)
        np.cumsum(np.bincount(node, minlength=n), out=start[1:])
        facts = [self.machine.facts(op, vector=True) for op in self.opcodes]
        if None in facts:
            raise DagError(f"opcode {self.opcodes[facts.index(None)]!r} is unknown to machine {self.machine.name!r}")
        latency = np.array(
            [f.latency if f.flavor != Flavor.DS else self.machine.ds_latency for f in facts if f], np.int32
        )
        flavor = np.array([int(f.flavor) for f in facts if f], np.int32)
        access = np.array(
            [_access(op, Flavor(f)) for op, f in zip(self.opcodes, flavor.tolist(), strict=True)], np.int8
        )
        edges = derive_edges(start, (register, lanes, kind), self.registers, latency[opcode], access[opcode])
        late = (edges[2] == int(EdgeKind.DATA)) & np.isin(flavor[opcode[edges[0]]], _VISIBLE)
        late &= np.isin(flavor[opcode[edges[1]]], _MEMORY)
        visible = int(self.machine.data["visible_latency"][0])
        edges = (*edges[:3], np.where(late, visible, edges[3]).astype(np.int32))
        entry, leave = (
            np.unique(np.concatenate(part)) if part else np.zeros(0, int) for part in (self.live_in, self.live_out)
        )
        ends = np.setdiff1d(np.arange(n), edges[0], assume_unique=True)
        return Dag.from_arrays(
            self.opcodes,
            opcode,
            edges,
            (node, register, lanes, kind),
            registers=(sizes, vector),
            machine=self.machine,
            validate=False,
            name=name,
            live_in=(entry, whole[sizes[entry]]),
            live_out=(leave, whole[sizes[leave]]),
            exits=(ends, np.full(ends.size, int(EdgeKind.MEMORY)), latency[opcode[ends]]),
            whole_single_block_loop=loop,
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
