"""Building DAGs: from flat arrays (vectorised), from plain Python, and again for another machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .columns import NODE_COLUMNS, check_columns
from .dag import MAX_EDGES, MAX_NODES, Dag, _starts, is_definition
from .machine import Facts, Machine, machine
from .model import DagError, EdgeKind, Flag, Flavor, OperandKind, parse_edge_kind, parse_flavor

__all__ = ["build_dag", "dag_from_arrays", "dag_from_sorted", "retarget"]

_FACT_COLUMNS = ("flavor", "latency", "unit_cycles", "micro_ops", "matrix_cycles", "repeat")
_ALL_LANES = 0xFFFFFFFFFFFFFFFF


def dag_from_arrays(
    opcodes: Sequence[str],
    opcode: ArrayLike,
    edges: tuple[ArrayLike, ...],
    operands: tuple[ArrayLike, ...],
    *,
    registers: tuple[ArrayLike, ...] | None = None,
    machine: Machine | str | None = None,
    unknown_opcode: str = "error",
    validate: bool = True,
    **region: Any,
) -> Dag:
    """A `Dag` from flat arrays.

    `opcode` indexes the name table `opcodes`.  `edges` = (source, target, kind, latency[, register]) in any order of sources;
    edges of one source keep their relative order.  `operands` = (node, register, lanes, kind) with two lane bits per 32-bit
    register.  `registers` = (size in 32-bit registers, vector?[, the compiler's number]); by default vector registers as wide
    as their operands.  Further keywords: any node column (`flavor=`, `latency=`, …; otherwise the machine's facts), `windows=`
    (patterns a given `window=` indexes), `live_in=`/`live_out=` = (register, lanes), `exits=` = (source, kind, latency),
    `vgpr_limit=`, `sgpr_limit=`, `whole_single_block_loop=`, `name=`, `depth=`, `height=` (computed if absent).

    Raises `DagError` on unknown opcodes (unless `unknown_opcode` names the flavor they get), a cycle, dangling, self or
    duplicate edges, or sizes beyond `MAX_NODES`/`MAX_EDGES`; `validate=False` skips the search for duplicate edges.
    """
    model = _machine_of(machine)
    code = np.asarray(opcode, dtype=np.int32)
    n = code.size
    _check_size("instructions", n, MAX_NODES)
    edge_columns = _sorted_edges(edges, n)
    operand_columns = _sorted_operands(operands, n)
    size, vector, ids = _register_table(registers, operand_columns[1], operand_columns[2])
    live_in, live_out = (_pairs(region.pop(name, ((), ()))) for name in ("live_in", "live_out"))
    exits = [
        np.asarray(x, dtype=t)
        for x, t in zip(region.pop("exits", ((), (), ())), (np.int32, np.int8, np.int32), strict=True)
    ]
    columns = _node_columns(tuple(opcodes), code, operand_columns, vector, model, unknown_opcode, region)
    depth, height = region.pop("depth", None), region.pop("height", None)
    empty = np.zeros(n, dtype=np.int32)
    dag = Dag(
        name=region.pop("name", ""),
        machine=model.name,
        opcodes=tuple(opcodes),
        **columns,
        depth=empty if depth is None else np.asarray(depth, dtype=np.int32),
        height=empty if height is None else np.asarray(height, dtype=np.int32),
        **dict(  # type: ignore[arg-type]
            zip(("edge_start", "edge_target", "edge_kind", "edge_latency", "edge_register"), edge_columns, strict=True)
        ),
        **dict(  # type: ignore[arg-type]
            zip(
                ("operand_start", "operand_register", "operand_lanes", "operand_kind"), operand_columns[:4], strict=True
            )
        ),
        register_id=ids,
        register_size=size,
        register_vector=vector,
        live_in_register=live_in[0],
        live_in_lanes=live_in[1],
        live_out_register=live_out[0],
        live_out_lanes=live_out[1],
        exit_source=exits[0],
        exit_kind=exits[1],
        exit_latency=exits[2],
        vgpr_limit=int(region.pop("vgpr_limit", model.vgpr_limit)),
        sgpr_limit=int(region.pop("sgpr_limit", model.sgprs)),
        whole_single_block_loop=bool(region.pop("whole_single_block_loop", False)),
    )
    if region:
        raise TypeError(f"unknown keyword {next(iter(region))!r} for a Dag")
    check_columns(vars(dag), [field.name for field in fields(dag)])
    if validate:
        dag.validate()
    if depth is None or height is None:
        paths = dag.with_paths()
        dag = dag._with(**{k: getattr(paths, k) for k, v in (("depth", depth), ("height", height)) if v is None})
    return dag


def dag_from_sorted(
    opcodes: tuple[str, ...],
    opcode: NDArray[np.int32],
    edges: tuple[NDArray[Any], ...],
    operands: tuple[NDArray[Any], ...],
    registers: tuple[NDArray[Any], NDArray[Any]],
    *,
    machine: Machine,
    name: str,
    live: tuple[NDArray[Any], NDArray[Any]],
    exits: tuple[NDArray[Any], ...],
    loop: bool,
) -> Dag:
    """A `Dag` of code this package wrote itself: nothing is checked and nothing sorted.

    `edges` = (source, target, kind, latency) by source; `operands` = (starts per node, node, register, lanes, kind) by node;
    `registers` = (size, vector?); `live` = (register, lanes) at entry and exit.
    """
    start, node, register, lanes, kind = operands
    source, target, edge_kind, latency = edges
    size, vector = registers[0].astype(np.int16), registers[1].astype(np.bool_)
    columns = _node_columns(opcodes, opcode, (start, register, lanes, kind, node), vector, machine, "error", {})
    empty = np.zeros(opcode.size, dtype=np.int32)
    dag = Dag(
        name=name,
        machine=machine.name,
        opcodes=opcodes,
        **columns,
        depth=empty,
        height=empty,
        edge_start=_starts(source, opcode.size),
        edge_target=target,
        edge_kind=edge_kind.astype(np.int8),
        edge_latency=latency,
        edge_register=np.full(source.size, -1, dtype=np.int32),
        operand_start=start,
        operand_register=register,
        operand_lanes=lanes,
        operand_kind=kind,
        register_id=np.arange(size.size),
        register_size=size,
        register_vector=vector,
        live_in_register=live[0],
        live_in_lanes=live[1],
        live_out_register=live[0].copy(),
        live_out_lanes=live[1].copy(),
        exit_source=exits[0].astype(np.int32),
        exit_kind=exits[1].astype(np.int8),
        exit_latency=exits[2].astype(np.int32),
        vgpr_limit=machine.vgpr_limit,
        sgpr_limit=machine.sgprs,
        whole_single_block_loop=loop,
    )
    return dag.with_paths()


def _machine_of(model: Machine | str | None) -> Machine:
    return machine("gfx1250" if model is None else model)


def _check_size(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise DagError(f"{count} {what} exceed the limit of {limit}; split the region")


def _sorted_edges(edges: tuple[ArrayLike, ...], n: int) -> tuple[NDArray[Any], ...]:
    types = (np.int32, np.int32, np.int8, np.int32, np.int32)
    columns = [np.asarray(column, dtype=t) for column, t in zip(edges, types, strict=False)]
    source, target = columns[0], columns[1]
    if len(columns) < 5:
        columns.append(np.full(source.size, -1, dtype=np.int32))
    _check_size("edges", source.size, MAX_EDGES)
    if any(column.shape != source.shape for column in columns):
        raise DagError(f"edge columns differ in length: {[column.size for column in columns]}")
    dangling = (source < 0) | (source >= n) | (target < 0) | (target >= n)
    if dangling.any():
        e = int(np.flatnonzero(dangling)[0])
        raise DagError(f"edge {e} goes from node {source[e]} to node {target[e]}, but the DAG has nodes 0 to {n - 1}")
    bad = (columns[2] < 0) | (columns[2] > max(EdgeKind))
    if bad.any():
        raise DagError(f"edge {int(np.flatnonzero(bad)[0])} has kind {columns[2][bad][0]}, which is no EdgeKind")
    if (columns[3] < 0).any():
        e = int(np.flatnonzero(columns[3] < 0)[0])
        raise DagError(f"edge {source[e]} -> {target[e]} has latency {columns[3][e]}; latencies are 0 or more")
    if source.size and (np.diff(source) < 0).any():
        order = np.argsort(source, kind="stable")
        columns = [column[order] for column in columns]
    return (_starts(source, n), *columns[1:])


def _sorted_operands(operands: tuple[ArrayLike, ...], n: int) -> tuple[NDArray[Any], ...]:
    """(start, register, lanes, kind, node), sorted by node."""
    types = (np.int32, np.int32, np.uint64, np.int8)
    node, register, lanes, kind = (np.asarray(column, dtype=t) for column, t in zip(operands, types, strict=True))
    if any(column.shape != node.shape for column in (register, lanes, kind)):
        raise DagError(f"operand columns differ in length: {node.size}, {register.size}, {lanes.size}, {kind.size}")
    bad = (node < 0) | (node >= n) | (register < 0) | (kind < 0) | (kind > max(OperandKind))
    if bad.any():
        i = int(np.flatnonzero(bad)[0])
        raise DagError(f"operand {i} (node {node[i]}, register {register[i]}, kind {kind[i]}) is out of range")
    if node.size and (np.diff(node) < 0).any():
        order = np.argsort(node, kind="stable")
        node, register, lanes, kind = node[order], register[order], lanes[order], kind[order]
    return _starts(node, n), register, lanes, kind, node


def _register_table(
    registers: tuple[ArrayLike, ...] | None, register: NDArray[np.int32], lanes: NDArray[np.uint64]
) -> tuple[NDArray[np.int16], NDArray[np.bool_], NDArray[np.int64]]:
    if registers is None:
        count = int(register.max()) + 1 if register.size else 0
        union = np.zeros(count, dtype=np.uint64)
        np.bitwise_or.at(union, register, lanes)
        widths = [(int(mask).bit_length() + 1) // 2 for mask in union]
        return np.array(widths, dtype=np.int16), np.ones(count, dtype=np.bool_), np.arange(count, dtype=np.int64)
    size = np.asarray(registers[0], dtype=np.int16)
    vector = np.asarray(registers[1], dtype=np.bool_)
    ids = np.asarray(registers[2], dtype=np.int64) if len(registers) > 2 else np.arange(size.size, dtype=np.int64)
    if register.size and int(register.max()) >= size.size:
        raise DagError(f"an operand names register {int(register.max())}, the register table has {size.size}")
    return size, vector, ids


def _pairs(live: tuple[ArrayLike, ArrayLike]) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    return np.asarray(live[0], dtype=np.int32), np.asarray(live[1], dtype=np.uint64)


def _node_columns(
    names: tuple[str, ...],
    code: NDArray[np.int32],
    operands: tuple[NDArray[Any], ...],
    vector: NDArray[np.bool_],
    model: Machine,
    unknown_opcode: str,
    region: dict[str, Any],
) -> dict[str, Any]:
    """Node columns: what the caller gave, else what the machine says of the opcode."""
    given = {name: region.pop(name) for name in NODE_COLUMNS if name in region}
    windows = tuple(region.pop("windows", model.windows))
    given["opcode"] = code
    _, register, _, kind, node = operands
    touches_vector = np.zeros(code.size, dtype=np.bool_)
    touches_vector[node[vector[register]]] = True
    if code.size and (code.min() < 0 or code.max() >= len(names)):
        raise DagError(f"opcode numbers run from {code.min()} to {code.max()}, the opcode table has {len(names)} names")
    table = _fact_table(names, model, unknown_opcode)
    if table.missing.any() and "flavor" not in given and table.missing[code].any():
        name = names[int(code[table.missing[code]].min())]
        raise DagError(
            f"opcode {name!r} is unknown to machine {model.name!r}; add it to a machine file, give its flavor, or pass "
            "unknown_opcode=<flavor>"
        )
    pick = 2 * code.astype(np.int64) + touches_vector
    columns: dict[str, Any] = {"windows": windows}
    for name, (dtype, _) in NODE_COLUMNS.items():
        if name in given:
            columns[name] = np.broadcast_to(np.asarray(given[name], dtype=dtype), code.shape)
        elif name in _FACT_COLUMNS:
            columns[name] = table.columns[name][pick]
        elif name == "window":
            index = [windows.index(pattern) if pattern in windows else -1 for pattern in table.window]
            columns[name] = np.array(index, dtype=dtype)[pick]
        elif name == "carried":
            columns[name] = np.zeros(code.size, dtype=dtype)
    if "copy_regs" not in given:
        columns["copy_regs"] = _copy_registers(table.copies[pick], operands)
    if "flags" not in given:
        base = table.columns["flags"][pick]
        columns["flags"] = base | _scalar_flags(table.vector_op[code], columns["flavor"], operands, vector)
    return columns


class _FactTable(NamedTuple):
    """Facts of every (opcode, vector operand?) pair of an opcode table; the pair of opcode i is at 2 i and 2 i + 1."""

    columns: dict[str, NDArray[Any]]
    window: tuple[str | None, ...]
    copies: NDArray[np.bool_]
    vector_op: NDArray[np.bool_]  # per opcode: is it a vector op by its name?
    missing: NDArray[np.bool_]  # per opcode: is it unknown to the machine?


@lru_cache(maxsize=256)
def _fact_table(names: tuple[str, ...], model: Machine, unknown_opcode: str) -> _FactTable:
    fallback = None if unknown_opcode == "error" else Facts(parse_flavor(unknown_opcode), latency=1)
    found = [model.facts(name, vector=vector) or fallback for name in names for vector in (False, True)]
    facts = [Facts(Flavor.OTHER, 0) if fact is None else fact for fact in found]
    return _FactTable(
        {
            name: np.array([int(getattr(fact, name)) for fact in facts], dtype=NODE_COLUMNS[name][0])
            for name in (*_FACT_COLUMNS, "flags")
        },
        tuple(fact.window for fact in facts),
        np.array([bool(fact.flags & Flag.COPY) for fact in facts], dtype=np.bool_),
        np.array([name.startswith("V_") for name in names], dtype=np.bool_),
        np.array([None in found[i : i + 2] for i in range(0, len(found), 2)], dtype=np.bool_),
    )


def _copy_registers(copies: NDArray[np.bool_], operands: tuple[NDArray[Any], ...]) -> NDArray[np.int16]:
    count = np.zeros(copies.size, dtype=np.int16)
    if copies.any():
        _, _, lanes, kind, node = operands
        reads = copies[node] & ~is_definition(kind)
        np.maximum.at(count, node[reads], ((np.bitwise_count(lanes[reads]) + 1) // 2).astype(np.int16))
        count[copies & (count == 0)] = 1
    return count


def _scalar_flags(
    vector_op: NDArray[np.bool_],
    flavor: NDArray[np.int8],
    operands: tuple[NDArray[Any], ...],
    vector: NDArray[np.bool_],
) -> NDArray[np.int32]:
    """READS_SGPR and WRITES_SGPR of vector ops that touch virtual scalar registers (COPY never counts)."""
    is_vector_op = vector_op & (flavor <= int(Flavor.VALUN))
    _, register, _, kind, node = operands
    scalar = is_vector_op[node] & ~vector[register]
    flags = np.zeros(flavor.size, dtype=np.int32)
    writes = is_definition(kind)
    np.bitwise_or.at(flags, node[scalar & (kind == int(OperandKind.USE))], int(Flag.READS_SGPR))
    np.bitwise_or.at(flags, node[scalar & writes], int(Flag.WRITES_SGPR))
    return flags


def retarget(dag: Dag, model: Machine | str, *, unknown_opcode: str = "error") -> Dag:
    """The region with the node facts of another machine; a data edge that carried the old result latency carries the new."""
    model = machine(model)
    operands = (dag.operand_start, dag.operand_register, dag.operand_lanes, dag.operand_kind, dag.operand_node)
    region: dict[str, Any] = {"carried": dag.carried, "copy_regs": dag.copy_regs}
    columns = _node_columns(dag.opcodes, dag.opcode, operands, dag.register_vector, model, unknown_opcode, region)
    physical = int(Flag.COPY_FROM_PHYS | Flag.COPY_TO_PHYS | Flag.IMM_TO_PHYS)
    columns["flags"] = columns["flags"] | (dag.flags & physical)
    to_physical = (dag.flags & int(Flag.COPY_TO_PHYS)) != 0
    columns["flags"] = np.where(to_physical, columns["flags"] & ~int(Flag.SCALAR_ISSUE), columns["flags"])
    old, new = dag.latency[dag.edge_source], columns["latency"][dag.edge_source]
    follows = (dag.edge_kind == int(EdgeKind.DATA)) & (dag.edge_latency == old)
    edge_latency = np.where(follows, new, dag.edge_latency).astype(np.int32)
    moved = dag.replace(machine=model.name, edge_latency=edge_latency, vgpr_limit=model.vgpr_limit, **columns)
    return moved.with_paths() if follows.any() and (old != new).any() else moved


def build_dag(
    instructions: Sequence[Mapping[str, Any]],
    edges: Iterable[Sequence[Any] | Mapping[str, Any]] | None = None,
    *,
    machine: Machine | str | None = None,
    unknown_opcode: str = "error",
    registers: Mapping[str, Sequence[Any]] | None = None,
    **region: Any,
) -> Dag:
    """A `Dag` from plain Python.

    An instruction is a mapping with `opcode` and, where it differs from the machine's facts, `flavor`, `latency` (or
    `result_latency`), `unit_cycles`, `micro_ops`, `matrix_cycles` (or `matrix_unit_release`), `repeat`, `window` (or
    `window_pattern`), `carried`, `load`; further `id` (any name; edges may use it), `defs` and `uses` (register names).
    `registers` gives (size in 32-bit registers, "vector" or "scalar") per register name; (1, "vector") where it is silent.
    An edge is (source, target[, kind[, latency]]) or a mapping with `src`, `dst`, `kind`, `latency`; the latency of a data
    edge defaults to its source's result latency, of any other to 0.  `live_in`/`live_out` are names of registers here.
    """
    model = _machine_of(machine)
    number = {item.get("id", i): i for i, item in enumerate(instructions)}
    table = _RegisterNames(registers or {})
    operands: list[tuple[int, int, int, int]] = []
    for i, item in enumerate(instructions):
        operands += [(i, *table.use(name), int(OperandKind.DEF)) for name in item.get("defs", ())]
        operands += [(i, *table.use(name), int(OperandKind.USE)) for name in item.get("uses", ())]
    live = {key: table.pairs(region.pop(key, ())) for key in ("live_in", "live_out")}
    names = list(dict.fromkeys(item["opcode"] for item in instructions))
    code = [names.index(item["opcode"]) for item in instructions]
    columns = _explicit_columns(instructions, model)
    base = dag_from_arrays(
        names,
        code,
        ((), (), (), ()),
        tuple(zip(*operands, strict=True)) if operands else ((), (), (), ()),
        registers=(table.sizes, table.vector),
        machine=model,
        unknown_opcode="Other" if _all_have(instructions, "flavor") else unknown_opcode,
        **live,  # type: ignore[arg-type]
        **region,
    )
    dag = base.replace(
        **{
            name: np.where(given, value, getattr(base, name)).astype(getattr(base, name).dtype)
            for name, (given, value) in columns.items()
        }
    )
    return _with_python_edges(dag, edges or (), number)


def _all_have(instructions: Sequence[Mapping[str, Any]], key: str) -> bool:
    return all(key in item for item in instructions)


_SPELLINGS = {
    "latency": ("latency", "result_latency"),
    "unit_cycles": ("unit_cycles",),
    "micro_ops": ("micro_ops",),
    "matrix_cycles": ("matrix_cycles", "matrix_unit_release"),
    "repeat": ("repeat",),
    "carried": ("carried",),
}


def _explicit_columns(instructions: Sequence[Mapping[str, Any]], model: Machine) -> dict[str, tuple[Any, Any]]:
    """Per column: which instructions state it, and what they state."""
    columns: dict[str, tuple[Any, Any]] = {}
    for name, spellings in _SPELLINGS.items():
        values = [next((item[s] for s in spellings if s in item), None) for item in instructions]
        columns[name] = (np.array([v is not None for v in values]), np.array([v or 0 for v in values], dtype=np.int64))
    flavors = [item.get("flavor") for item in instructions]
    columns["flavor"] = (
        np.array([f is not None for f in flavors]),
        np.array([0 if f is None else int(parse_flavor(f)) for f in flavors], dtype=np.int64),
    )
    patterns = [item.get("window", item.get("window_pattern")) for item in instructions]
    strange = [p for p in patterns if p is not None and p not in model.windows]
    if strange:
        raise DagError(f"window {strange[0]!r} is none of machine {model.name!r}: {', '.join(model.windows)}")
    columns["window"] = (
        np.array([p is not None for p in patterns]),
        np.array([-1 if p is None else model.windows.index(p) for p in patterns], dtype=np.int64),
    )
    return {name: (given, value) for name, (given, value) in columns.items() if given.any()}


class _RegisterNames:
    """Numbers for register names, with their sizes and classes."""

    def __init__(self, known: Mapping[str, Sequence[Any]]) -> None:
        self._known = known
        self._number: dict[str, int] = {}
        self.sizes: list[int] = []
        self.vector: list[bool] = []

    def use(self, name: str) -> tuple[int, int]:
        """(number, all lanes) of a register, entered on first sight."""
        if name not in self._number:
            size, kind = self._known.get(name, (1, "vector"))
            if not 1 <= size <= 32:
                raise DagError(f"register {name!r} has {size} 32-bit registers; 1 to 32 are possible")
            self._number[name] = len(self.sizes)
            self.sizes.append(int(size))
            self.vector.append(kind == "vector")
        number = self._number[name]
        return number, _ALL_LANES >> (64 - 2 * self.sizes[number])

    def pairs(self, names: Iterable[str]) -> tuple[list[int], list[int]]:
        """Register numbers and lane masks of live registers."""
        entries = [self.use(name) for name in names]
        return [number for number, _ in entries], [lanes for _, lanes in entries]


def _with_python_edges(dag: Dag, edges: Iterable[Sequence[Any] | Mapping[str, Any]], number: Mapping[Any, int]) -> Dag:
    rows: list[tuple[int, int, int, int]] = []
    for edge in edges:
        if isinstance(edge, Mapping):
            edge = (edge["src"], edge["dst"], edge.get("kind", "data"), edge.get("latency"))
        source, target = (_node_number(name, number, dag.n) for name in edge[:2])
        kind = parse_edge_kind(edge[2]) if len(edge) > 2 else EdgeKind.DATA
        latency = edge[3] if len(edge) > 3 else None
        if latency is None:
            latency = int(dag.latency[source]) if kind == EdgeKind.DATA else 0
        rows.append((source, target, int(kind), int(latency)))
    columns = _sorted_edges(tuple(zip(*rows, strict=True)) if rows else ((), (), (), ()), dag.n)
    names = ("edge_start", "edge_target", "edge_kind", "edge_latency", "edge_register")
    built = dag.replace(**dict(zip(names, columns, strict=True)))
    built.validate()
    return built.with_paths()


def _node_number(name: Any, number: Mapping[Any, int], n: int) -> int:
    if name in number:
        return number[name]
    raise DagError(f"an edge names node {name!r}, which is none of the {n} instructions")
