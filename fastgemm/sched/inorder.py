"""The in-order machine schedules are evaluated on, as data: ``static_machine.json`` or a file of the user's.

It is not the scheduler's machine: the scheduler decides an order with its own latencies, this one says what an in-order wave
would make of that order.  Times are cycles, sizes are entries, registers are 32 bits wide.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dag import Dag
from .model import DagError, Flag, Flavor

__all__ = ["QUEUES", "StaticMachine", "static_machine"]

FORMAT = "fastgemm static machine"
QUEUES = ("lds", "vmem", "smem", "tensor")
CLASSES = ("other", "salu", "ds", "vmem", "smem", "valu", "trans", "wmma", "scaled")
MAX_WINDOW = 32

# kinds of instruction the timeline tells apart (its branches)
K_OTHER, K_SALU, K_VALU, K_VALUN, K_TRANS, K_WMMA, K_LDS, K_VMEM, K_SMEM, K_TENSOR = range(10)
K_FENCE, K_SIGNAL, K_BARRIER, K_WAIT_TENSOR, K_FREE = range(10, 15)

_BY_FLAVOR = {
    Flavor.WMMA: K_WMMA,
    Flavor.VALU1: K_VALU,
    Flavor.TRANS: K_TRANS,
    Flavor.VALUN: K_VALUN,
    Flavor.VMEM: K_VMEM,
    Flavor.SMEM: K_SMEM,
    Flavor.DS: K_LDS,
    Flavor.SALU: K_SALU,
    Flavor.DMA: K_TENSOR,
    Flavor.FENCE: K_FENCE,
    Flavor.OTHER: K_OTHER,
}
_BY_OPCODE = {
    "S_BARRIER_SIGNAL": K_SIGNAL,
    "S_BARRIER_WAIT": K_BARRIER,
    "S_WAIT_TENSORCNT": K_WAIT_TENSOR,
    "S_WAIT_ASYNCCNT": K_WAIT_TENSOR,
    "S_LOAD": K_SMEM,  # a build without a scalar memory flavor calls it Other
    "S_BUFFER_LOAD": K_SMEM,
}

# parameters of the jitted timeline, by index
(P_BARRIER, P_WAIT_ISSUE, P_SCALED_VALU, P_SCALED_TRANS, P_WMMA_TRANS, P_TRANS_SPACING) = range(6)
P_CAPACITY, P_COUNTER, P_DRAINS, P_SCRATCH, P_VMEM_LATENCY = 6, 10, 14, 18, 19
PARAMETERS = 20

# columns of the per-node table
N_KIND, N_LATENCY, N_QUEUE, N_OCCUPANCY, N_WINDOW, N_CLASS, N_SCALED, N_REPEAT = range(8)
_QUEUE_OF = {K_LDS: 0, K_VMEM: 1, K_SMEM: 2, K_TENSOR: 3}


@dataclass(frozen=True)
class StaticMachine:
    """Latencies, queue sizes, windows and registers of an in-order machine; change fields with :meth:`replace`."""

    name: str
    latency: dict[str, int]
    in_flight: dict[str, int]
    counter_max: dict[str, int]
    classes: dict[str, tuple[str, ...]]
    windows: dict[str, tuple[int, str]]  # scheduler's pattern -> (cycles the matrix unit is busy, pattern here)
    registers: int = 1024
    allocatable_percent: int = 90
    scratch_dwords: int = 4
    wait_issue: int = 1
    fence_drains: tuple[str, ...] = ("lds",)
    scaled_after_valu: int = 1
    scaled_after_trans: int = 2
    wmma_after_trans: int = 2
    trans_spacing: int = 2
    about: str = field(default="", repr=False)

    @classmethod
    def load(cls, path: str | Path) -> StaticMachine:
        """Read a machine file."""
        return cls.from_dict(json.loads(Path(path).read_text()))

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> StaticMachine:
        """A machine from the JSON object of a machine file; errors name the entry."""
        data = dict(data)
        if data.pop("format", None) != FORMAT or data.pop("version", None) != 1:
            raise DagError(f"not a machine file: 'format' has to be {FORMAT!r} and 'version' 1")
        unknown = set(data) - set(cls.__dataclass_fields__)
        if unknown:
            raise DagError(f"machine file has unknown entries {sorted(unknown)}")
        try:
            data["classes"] = {letter: tuple(names) for letter, names in data["classes"].items()}
            data["windows"] = {pattern: (int(busy), used) for pattern, (busy, used) in data["windows"].items()}
            data["fence_drains"] = tuple(data.get("fence_drains", ("lds",)))
            made = cls(**data)
        except KeyError as error:
            raise DagError(f"machine file lacks {error}") from None
        for queue in (*made.in_flight, *made.fence_drains):
            if queue not in QUEUES:
                raise DagError(f"machine file names queue {queue!r}; there are {QUEUES}")
        return made

    def replace(self, **changes: Any) -> StaticMachine:
        """A copy with other values."""
        return replace(self, **changes)

    @property
    def register_limit(self) -> int:
        """Vector registers an allocator is assumed to be able to use at once."""
        return -(-self.registers * self.allocatable_percent // 100)

    def parameters(self) -> NDArray[np.int64]:
        """The scalars the jitted timeline reads."""
        p = np.zeros(PARAMETERS, np.int64)
        p[P_BARRIER] = self.latency["barrier"]
        p[P_WAIT_ISSUE] = self.wait_issue
        p[P_SCALED_VALU], p[P_SCALED_TRANS] = self.scaled_after_valu, self.scaled_after_trans
        p[P_WMMA_TRANS], p[P_TRANS_SPACING] = self.wmma_after_trans, self.trans_spacing
        for q, name in enumerate(QUEUES):
            p[P_CAPACITY + q] = self.in_flight[name]
            p[P_COUNTER + q] = self.counter_max[name]
            p[P_DRAINS + q] = name in self.fence_drains
        p[P_SCRATCH], p[P_VMEM_LATENCY] = self.scratch_dwords, self.latency["vmem"]
        return p

    def window_table(self, patterns: tuple[str, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(length, occupancy, class mask per stage) of each of a DAG's window patterns, and of 'none' in the last row."""
        length = np.zeros(len(patterns) + 1, np.int64)
        busy = np.zeros(len(patterns) + 1, np.int64)
        admits = np.zeros((len(patterns) + 1, MAX_WINDOW), np.int64)
        for row, pattern in enumerate(patterns):
            busy[row], used = self.windows.get(pattern, (0, pattern))
            length[row] = len(used)
            for stage, letter in enumerate(used[:MAX_WINDOW]):
                names = self.classes.get(letter, CLASSES)  # a letter of another machine admits everything
                admits[row, stage] = sum(1 << CLASSES.index(name) for name in names)
        return length, busy, admits

    def node_table(self, dag: Dag, busy: NDArray[np.int64]) -> NDArray[np.int64]:
        """Per node what the timeline asks about it (columns ``N_*``)."""
        table = np.zeros((dag.n, 8), np.int64)
        kind_of_opcode = np.array([_opcode_kind(name) for name in dag.opcodes], np.int64)
        scaled_opcode = np.array(["_SCALE" in name for name in dag.opcodes], bool)
        kind = np.array([_BY_FLAVOR[f] for f in Flavor], np.int64)[dag.flavor]
        special = kind_of_opcode[dag.opcode]
        kind = np.where(special >= 0, special, kind)
        kind[dag.micro_ops == 0] = K_FREE
        load = (dag.flags & int(Flag.LOAD)) != 0
        table[:, N_KIND] = kind
        latency = dag.latency.astype(np.int64)
        for k, name in ((K_VALU, "valu"), (K_VALUN, "valu"), (K_TRANS, "trans"), (K_SALU, "salu"), (K_VMEM, "vmem")):
            latency[kind == k] = self.latency[name]
        latency[kind == K_SMEM], latency[kind == K_TENSOR] = self.latency["smem"], self.latency["tensor"]
        latency[(kind == K_LDS) & load] = self.latency["lds_read"]
        latency[(kind == K_LDS) & ~load] = self.latency["lds_write"]
        latency[kind >= K_FENCE] = 0
        table[:, N_LATENCY] = latency
        table[:, N_QUEUE] = -1
        for k, queue in _QUEUE_OF.items():
            table[kind == k, N_QUEUE] = queue
        wmma = kind == K_WMMA
        table[:, N_WINDOW] = np.where(wmma, dag.window, -1)
        known = np.where(table[:, N_WINDOW] >= 0, busy[table[:, N_WINDOW]], 0)
        table[wmma, N_OCCUPANCY] = np.where(known > 0, known, np.maximum(dag.matrix_cycles, 1))[wmma]
        table[wmma, N_LATENCY] = np.maximum(table[wmma, N_OCCUPANCY], 1)
        table[:, N_SCALED] = wmma & scaled_opcode[dag.opcode]
        table[:, N_CLASS] = _CLASS_OF_KIND[kind]
        table[:, N_CLASS] += table[:, N_SCALED]  # "scaled" follows "wmma"
        table[:, N_REPEAT] = np.where(kind == K_VALUN, np.maximum(dag.repeat, 1), 1)
        return table


def _opcode_kind(name: str) -> int:
    return next((kind for prefix, kind in _BY_OPCODE.items() if name.startswith(prefix)), -1)


_CLASS_NAME = {
    K_SALU: "salu",
    K_VALU: "valu",
    K_VALUN: "valu",
    K_TRANS: "trans",
    K_WMMA: "wmma",
    K_LDS: "ds",
    K_VMEM: "vmem",
    K_SMEM: "smem",
    K_TENSOR: "valu",  # a tensor load takes a vector issue slot
}
_CLASS_OF_KIND = np.array([CLASSES.index(_CLASS_NAME.get(kind, "other")) for kind in range(15)], np.int64)


@lru_cache(maxsize=1)
def _packaged() -> StaticMachine:
    return StaticMachine.from_dict(json.loads((files(__package__) / "static_machine.json").read_text()))


def static_machine(machine: StaticMachine | str | Path | None = None) -> StaticMachine:
    """The packaged machine (no argument), one from a file, or the one given."""
    if machine is None or machine == "static":
        return _packaged()
    return machine if isinstance(machine, StaticMachine) else StaticMachine.load(machine)
