"""`Dag`: one region of a kernel as flat arrays.

Nodes are numbered in program order.  Edges and register operands are CSR per source node; **the edges of one source stay in
the compiler's successor order**, which is the order in which nodes are released and therefore decides schedules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .columns import check_columns
from .model import DagError, EdgeKind, Flag, Flavor, OperandKind

if TYPE_CHECKING:
    from .machine import Machine

__all__ = ["Dag", "MAX_EDGES", "MAX_NODES"]

MAX_NODES = 1 << 24
MAX_EDGES = 1 << 28


@dataclass(frozen=True, eq=False, repr=False)
class Dag:
    """Instructions, edges, registers and limits of one scheduling region. Build with `Dag.build` or `Dag.from_arrays`.

    Per node (length `n`): `opcode` (index into `opcodes`), `flavor` (`Flavor`), `latency` (cycles until the result is there),
    `unit_cycles` (what its unit is charged), `micro_ops`, `matrix_cycles` (-1: does not use the matrix unit), `repeat` (blocking
    cycles, 1 if none), `window` (index into `windows`, -1: opens none), `copy_regs`, `flags` (`Flag`), `carried` (latency still
    owed to values of other blocks), `depth` and `height` (longest latency path from the roots and to the exit).
    """

    name: str
    machine: str  # the machine the node facts were taken from
    opcodes: tuple[str, ...]
    windows: tuple[str, ...]
    opcode: NDArray[np.int32]
    flavor: NDArray[np.int8]
    latency: NDArray[np.int32]
    unit_cycles: NDArray[np.int32]
    micro_ops: NDArray[np.int8]
    matrix_cycles: NDArray[np.int32]
    repeat: NDArray[np.int16]
    window: NDArray[np.int16]
    copy_regs: NDArray[np.int16]
    flags: NDArray[np.int32]
    carried: NDArray[np.int32]
    depth: NDArray[np.int32]
    height: NDArray[np.int32]
    edge_start: NDArray[np.int32]  # n + 1
    edge_target: NDArray[np.int32]
    edge_kind: NDArray[np.int8]
    edge_latency: NDArray[np.int32]
    edge_register: NDArray[np.int32]  # index into the register table, negative: none of it
    operand_start: NDArray[np.int32]  # n + 1
    operand_register: NDArray[np.int32]
    operand_lanes: NDArray[np.uint64]  # two bits per 32-bit register: low half, high half
    operand_kind: NDArray[np.int8]  # OperandKind
    register_id: NDArray[np.int64]  # the compiler's number of each register of the table
    register_size: NDArray[np.int16]  # in 32-bit registers
    register_vector: NDArray[np.bool_]
    live_in_register: NDArray[np.int32]
    live_in_lanes: NDArray[np.uint64]
    live_out_register: NDArray[np.int32]
    live_out_lanes: NDArray[np.uint64]
    exit_source: NDArray[np.int32]
    exit_kind: NDArray[np.int8]
    exit_latency: NDArray[np.int32]
    vgpr_limit: int = 1024
    sgpr_limit: int = 103
    whole_single_block_loop: bool = False

    # addresses of columns, and the contiguous copies some of them belong to (a dict of numbers costs the collector nothing)
    _where: ClassVar[dict[str, int]]
    _kept: ClassVar[list[NDArray[Any]]]

    # construction -------------------------------------------------------------------------------------------------------

    @classmethod
    def build(
        cls,
        instructions: Sequence[Mapping[str, Any]],
        edges: Iterable[Sequence[Any] | Mapping[str, Any]] | None = None,
        *,
        machine: Machine | str | None = None,
        unknown_opcode: str = "error",
        **region: Any,
    ) -> Dag:
        """A DAG from plain Python: dicts of instructions and edges (see `fastgemm.sched.build.build_dag`)."""
        from .build import build_dag

        return build_dag(instructions, edges, machine=machine, unknown_opcode=unknown_opcode, **region)

    @classmethod
    def from_arrays(
        cls,
        opcodes: Sequence[str],
        opcode: ArrayLike,
        edges: tuple[ArrayLike, ...] = ((), (), (), ()),
        operands: tuple[ArrayLike, ...] = ((), (), (), ()),
        *,
        registers: tuple[ArrayLike, ArrayLike] | None = None,
        machine: Machine | str | None = None,
        unknown_opcode: str = "error",
        validate: bool = True,
        **region: Any,
    ) -> Dag:
        """A DAG from flat arrays, vectorised (see `fastgemm.sched.build.dag_from_arrays`)."""
        from .build import dag_from_arrays

        return dag_from_arrays(
            opcodes,
            opcode,
            edges,
            operands,
            registers=registers,
            machine=machine,
            unknown_opcode=unknown_opcode,
            validate=validate,
            **region,
        )

    # shape --------------------------------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Number of instructions."""
        return int(self.opcode.size)

    @property
    def edges(self) -> int:
        """Number of edges between instructions (those to the region's exit are not counted)."""
        return int(self.edge_target.size)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"Dag({name}{self.n} nodes, {self.edges} edges, {self.register_id.size} registers, machine {self.machine!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Dag):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.__setstate__({})

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_where", {})
        object.__setattr__(self, "_kept", [])

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # views are made anew where it is unpickled

    # views --------------------------------------------------------------------------------------------------------------

    @cached_property
    def edge_source(self) -> NDArray[np.int32]:
        """Source node of every edge, in edge order."""
        return np.repeat(np.arange(self.n, dtype=np.int32), np.diff(self.edge_start))

    @cached_property
    def operand_node(self) -> NDArray[np.int32]:
        """Node of every operand, in operand order."""
        return np.repeat(np.arange(self.n, dtype=np.int32), np.diff(self.operand_start))

    @cached_property
    def predecessors(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """CSR by target: (start of length n + 1, edge numbers); the edges of one target in source order."""
        order = np.argsort(self.edge_target, kind="stable").astype(np.int32)
        return _starts(self.edge_target, self.n), order

    @cached_property
    def packed(self) -> NDArray[np.int64]:
        """The DAG as one int64 vector, as the jitted scheduler reads it."""
        from .packing import pack

        return pack(self)

    def addresses(self, names: Sequence[str]) -> list[int]:
        """Where the elements of some columns begin, for jitted code; good while this DAG lives."""
        known = self._where
        for name in names:
            if name not in known:
                column = getattr(self, name)
                contiguous = np.ascontiguousarray(column)
                if contiguous is not column:
                    self._kept.append(contiguous)
                known[name] = contiguous.__array_interface__["data"][0]
        return [known[name] for name in names]

    def opcode_name(self, node: int) -> str:
        """Opcode of a node."""
        return self.opcodes[self.opcode[node]]

    def nodes_where(self, flavor: Flavor, *, flag: Flag | None = None) -> NDArray[np.int32]:
        """Nodes of a flavor (and with a flag) in program order."""
        keep = self.flavor == int(flavor)
        if flag is not None:
            keep &= (self.flags & int(flag)) != 0
        return np.flatnonzero(keep).astype(np.int32)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(v.nbytes for f in fields(self) if isinstance(v := getattr(self, f.name), np.ndarray))

    # changes ------------------------------------------------------------------------------------------------------------

    def replace(self, **changes: Any) -> Dag:
        """A copy with other values of some fields, cast to the field's dtype; call `with_paths` after changing edges or their
        latencies.

        Raises `DagError` if a column then differs in length from those beside it or holds values that cannot be.
        """
        values = {name: getattr(self, name) for name in _FIELDS}
        for name, value in changes.items():
            if name not in values:
                raise TypeError(f"a Dag has no field {name!r}")
            old = values[name]
            values[name] = np.ascontiguousarray(value, old.dtype) if isinstance(old, np.ndarray) else value
        check_columns(values, changes)
        return self._changed(values, changes)

    def _changed(self, values: Mapping[str, Any], changes: Collection[str]) -> Dag:
        """The DAG with all of ``values``; those named in ``changes`` differ from this one's."""
        made = Dag(**values)
        made._where.update((name, address) for name, address in self._where.items() if name not in changes)
        made._kept.extend(self._kept)
        return made

    def _with(self, **changes: Any) -> Dag:
        """`replace` for columns this package computed itself, which are right."""
        return self._changed({name: getattr(self, name) for name in _FIELDS} | changes, changes)

    def with_paths(self) -> Dag:
        """A copy whose `depth` and `height` follow its edges; raises `DagError` naming the nodes of a cycle."""
        from .paths import depths_and_heights

        depth, height = depths_and_heights(self)
        return self._with(depth=depth, height=height)

    def with_edges(
        self,
        source: ArrayLike,
        target: ArrayLike,
        kind: ArrayLike | EdgeKind = EdgeKind.ARTIFICIAL,
        latency: ArrayLike = 0,
        register: ArrayLike = -1,
        *,
        paths: bool = True,
    ) -> Dag:
        """A copy with edges appended after the existing ones of each source, in the order given, as the compiler does.

        `paths=False` leaves `depth` and `height` as they are (call `with_paths` once after the last change).
        """
        source = np.atleast_1d(np.asarray(source, dtype=np.int32))
        target = np.atleast_1d(np.asarray(target, dtype=np.int32))
        bad = (source < 0) | (source >= self.n) | (target < 0) | (target >= self.n) | (source == target)
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise DagError(f"edge {source[i]} -> {target[i]} joins no two nodes of a DAG of {self.n}")
        order = np.argsort(np.concatenate([self.edge_source, source]), kind="stable")

        def merged(old: NDArray[Any], new: ArrayLike) -> NDArray[Any]:
            new = np.broadcast_to(np.asarray(new, dtype=old.dtype), source.shape)
            return np.concatenate([old, new])[order]

        dag = self.replace(
            edge_start=_starts(np.concatenate([self.edge_source, source]), self.n),
            edge_target=merged(self.edge_target, target),
            edge_kind=merged(self.edge_kind, kind),
            edge_latency=merged(self.edge_latency, latency),
            edge_register=merged(self.edge_register, register),
        )
        return dag.with_paths() if paths else dag

    def on(self, machine: Machine | str, *, unknown_opcode: str = "error") -> Dag:
        """The same region with its node facts (flavor, latency, unit cycles, window, …) taken anew from a machine's opcodes.

        A data edge whose latency was its source's result latency follows it; other latencies stay.
        """
        from .build import retarget

        return retarget(self, machine, unknown_opcode=unknown_opcode)

    def validate(self) -> None:
        """Raise `DagError` on a cycle (naming its nodes) or on dangling, self or duplicate edges."""
        from .validate import check_dag

        check_dag(self)

    # files --------------------------------------------------------------------------------------------------------------

    def save(self, path: Any) -> None:
        """Write this DAG to a file of its own (see `fastgemm.sched.save`)."""
        from .files import save

        save(path, [self])


_FIELDS = tuple(f.name for f in fields(Dag))


def _same(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


def _starts(owner: NDArray[Any], n: int) -> NDArray[np.int32]:
    starts = np.zeros(n + 1, dtype=np.int32)
    np.cumsum(np.bincount(owner, minlength=n), out=starts[1:])
    return starts


def is_definition(kind: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Which operands write their register."""
    return (kind == int(OperandKind.DEF)) | (kind == int(OperandKind.DEAD_DEF))
