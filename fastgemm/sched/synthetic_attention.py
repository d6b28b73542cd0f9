"""A synthetic flash attention loop body: two matrix products with a softmax between them, so all units are in use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .dag import Dag
from .machine import Machine
from .model import DagError
from .synthetic_parts import Assembler, lane_mask, matrix_op

__all__ = ["attention"]

_WORD = np.array([lane_mask(1, w) for w in range(8)], np.uint64)
_PAIR = np.array([lane_mask(2, 2 * w) for w in range(4)], np.uint64)


def attention(
    block_m: int,
    block_n: int,
    head_dim: int,
    *,
    waves: int = 4,
    dtype: str = "bf16",
    unroll: int = 1,
    machine: Machine | str | None = None,
) -> Dag:
    """The loop over key/value blocks of a flash attention kernel, as one wave executes it.

    ``block_m`` query rows are shared by ``waves``; each step takes ``block_n`` keys: S = K Q^T, row maximum, exponentials,
    rescaling of the running output, O += P V.  ``dtype`` is f16 or bf16; ``unroll`` steps are put in one region.
    """
    if dtype not in ("f16", "bf16"):
        raise DagError(f"attention works on f16 or bf16 here, not {dtype!r}")
    if min(block_m, block_n, head_dim, waves, unroll) <= 0 or block_m % (16 * waves) or block_n % 32 or head_dim % 32:
        raise DagError(
            f"attention {block_m}x{block_n}x{head_dim} on {waves} waves: block_m has to be a multiple of 16 x waves, "
            "block_n and head_dim of 32"
        )
    code = Assembler(machine)
    _Step(code, block_m // (16 * waves), block_n, head_dim, dtype).write()
    return code.build(f"attention_{block_m}x{block_n}x{head_dim}_{dtype}_w{waves}", copies=unroll)


class _Step:
    """One key/value block: registers and code."""

    def __init__(self, code: Assembler, rows: int, block_n: int, head_dim: int, dtype: str) -> None:
        self.code, self.rows = code, rows
        self.keys, self.columns = block_n // 16, head_dim // 16
        self.depth, self.key_depth = head_dim // 32, block_n // 32
        op = matrix_op(dtype).opcode
        self.accumulate, self.start = op, op.replace("twoaddr", "threeaddr")
        self.convert = "V_CVT_PK_F16_F32_e64" if dtype == "f16" else "V_CVT_PK_BF16_F32_e64"
        self.q = code.register(rows * self.depth, 8, carried=True).reshape(rows, self.depth)
        self.k = code.register(self.keys * self.depth, 8).reshape(self.keys, self.depth)
        self.s = code.register(rows * self.keys, 8).reshape(rows, self.keys)
        self.p = code.register(rows * self.key_depth, 8).reshape(rows, self.key_depth)
        self.v = code.register(self.key_depth * self.columns, 8).reshape(self.key_depth, self.columns)
        self.o = code.register(rows * self.columns, 8, carried=True).reshape(rows, self.columns)
        self.zero = int(code.register(1, 8, carried=True)[0])
        self.maximum = code.register(rows, 1, carried=True)
        self.total = code.register(rows, 1, carried=True)
        self.base = code.register(2, 1, carried=True)
        self.scale = code.scalar(carried=True)
        self.counter = code.scalar(carried=True)

    def write(self) -> None:
        """The step in program order."""
        code = self.code
        code.fence("S_WAIT_TENSORCNT")
        code.barrier()
        stage = code.scalar()
        code.emit("S_AND_B32", stage, self.counter)
        self._load(self.k, stage, 0, "DS_READ_B128_gfx9")
        self._multiply(self.s, self.k.T, self.q, first=True)
        self._load(self.v, stage, 1, "DS_LOAD_TR16_B128")
        for row in range(self.rows):
            self._softmax(row)
        self._multiply(self.o, self.v, self.p, first=False)
        self._next()

    def _load(self, fragments: NDArray[np.int64], stage: int, which: int, opcode: str) -> None:
        address = int(self.code.register(1, 1)[0])
        self.code.emit("V_ADD_U32_e32", address, stage, int(self.base[which]))
        halves = np.array([lane_mask(4, 0), lane_mask(4, 4)], np.uint64)
        flat = fragments.ravel()
        self.code.emit(opcode, np.repeat(flat, 2), address, lanes={0: np.tile(halves, flat.size)})

    def _multiply(
        self, out: NDArray[np.int64], right: NDArray[np.int64], left: NDArray[np.int64], *, first: bool
    ) -> None:
        """out[m, n] += sum over k of left[m, k] right[k, n]."""
        m, n = (x.ravel() for x in np.meshgrid(np.arange(out.shape[0]), np.arange(out.shape[1]), indexing="ij"))
        for k in range(right.shape[0]):
            opcode = self.start if first and k == 0 else self.accumulate
            old = np.full(m.size, self.zero) if first and k == 0 else out[m, n]
            self.code.emit(opcode, out[m, n], right[k, n], left[m, k], old)

    def _softmax(self, row: int) -> None:
        """Row maximum, exponentials, their sum, the output's new scale, and the probabilities as 16-bit operands."""
        code = self.code
        scores = np.repeat(self.s[row], 8)
        words = np.tile(_WORD, self.keys)
        peak = self._reduce("V_MAX3_F32_e64", scores, words)
        new = int(code.register(1, 1)[0])
        code.emit("V_MAX_F32_e32", new, peak, int(self.maximum[row]))
        decay, change = code.register(2, 1).tolist()
        code.emit("V_SUBREV_U32_e32", change, new, int(self.maximum[row]))
        code.emit("V_EXP_F32_e32", decay, change)
        code.emit("V_MOV_B32_e32", int(self.maximum[row]), new)
        code.emit("V_FMA_F32_e64", scores, scores, self.scale, new, lanes={0: words, 1: words})
        code.emit("V_EXP_F32_e32", scores, scores, lanes={0: words, 1: words})
        added = self._reduce("V_ADD_F32_dpp", scores, words)
        code.emit("V_FMA_F32_e64", int(self.total[row]), int(self.total[row]), decay, added)
        pairs = np.tile(_PAIR, self.keys)
        tuples = np.repeat(self.s[row], 4)
        target = np.repeat(self.p[row], 8)
        code.emit(self.convert, target, tuples, lanes={0: np.tile(_WORD, self.key_depth), 1: pairs})
        rescaled = np.repeat(self.o[row], 4)
        halves = np.tile(_PAIR, self.columns)
        code.emit("V_PK_MUL_F32_gfx1250", rescaled, rescaled, decay, lanes={0: halves, 1: halves})

    def _reduce(self, opcode: str, registers: NDArray[np.int64], words: NDArray[np.uint64]) -> int:
        """A tree over all words of a row, then one step across lanes."""
        code = self.code
        made = code.register((registers.size + 1) // 2, 1)
        pairs = registers.size // 2
        code.emit(
            opcode,
            made[:pairs],
            registers[0 : 2 * pairs : 2],
            registers[1 : 2 * pairs : 2],
            lanes={1: words[0 : 2 * pairs : 2], 2: words[1 : 2 * pairs : 2]},
        )
        while made.size > 1:
            pairs = made.size // 2
            above = code.register(pairs, 1)
            code.emit(opcode, above, made[0 : 2 * pairs : 2], made[1 : 2 * pairs : 2])
            made = np.concatenate([above, made[2 * pairs :]])
        across = int(code.register(1, 1)[0])
        code.emit("V_PERMLANEX16_B32_e64", across, int(made[0]))
        out = int(code.register(1, 1)[0])
        code.emit("V_MAX_F32_e32" if "MAX" in opcode else "V_ADD_F32_dpp", out, across, int(made[0]))
        return out

    def _next(self) -> None:
        """Tensor loads of a later block and the loop's counter."""
        code = self.code
        code.barrier()
        for _ in range(2):
            pointer = code.scalar(2, carried=True)
            descriptor = code.scalar(4)
            shape = code.scalar(8, carried=True)
            code.emit("S_ADD_U64", descriptor, pointer)
            code.emit("TENSOR_LOAD_TO_LDS_d2", -1, descriptor, shape)
            code.emit("S_ADD_U64", pointer, pointer)
        code.emit("S_ADD_I32", self.counter, self.counter)
        code.emit("S_CMP_LG_U32", -1, self.counter)
