"""Micro-kernels as LLVM IR text, and the object code made of it.  With ``emit_sync``, the only place that builds IR.

A micro-kernel multiplies ``rows`` x K by K x (``vecs`` vectors), K innermost, all accumulators in registers, one FMA chain per
element in the order of k; nothing is reassociated.  Its contract:

    kernel(a, b, c, k, a_row, a_k, b_k, c_row, count, a_step, b_step, c_step, add, cols)

all 64-bit integers, addresses and *byte* strides.  ``count`` tiles are done one after another, the three addresses moving by
their steps, so that a panel costs one call.  ``add = 0``: C is written and never read; ``add = 1``: C += the tile.  A masked
kernel touches only the first ``cols`` lanes of its last vector, of B and of C.  A may have any strides (its elements are
broadcast), B and C have unit stride along the vector.

Complex products run on the real kernel: the real and imaginary part of each row of A are two rows, B is read as pairs, and only
the last step differs (``paired``): re -= the neighbour's im, im += the neighbour's re.

Row addressing: one base pointer per three rows, the rows at 0, 1 and 2 times the row stride from it, which x86 folds into the
operand; one pointer per row spills (80-104 against 116 GFLOP/s with eight rows in place).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

__all__ = [
    "KERNEL_ARGUMENTS",
    "KernelSpec",
    "Text",
    "Vector",
    "close_function",
    "load_object",
    "module_ir",
    "object_code",
    "open_function",
]

KERNEL_ARGUMENTS = (
    "a",
    "b",
    "c",
    "k",
    "a_row",
    "a_k",
    "b_k",
    "c_row",
    "count",
    "a_step",
    "b_step",
    "c_step",
    "add",
    "cols",
)

_ROWS_PER_BASE = 3
# Tiles of more registers than this prefetch their part of C: 2 % at 1024, but a cost for stacks of 3 x 3.
_PREFETCHED = 4


@dataclass(frozen=True)
class KernelSpec:
    """One micro-kernel: element type (``float`` or ``double``), lanes a vector, rows x vecs registers."""

    element: str
    lanes: int
    rows: int
    vecs: int
    masked: bool
    fma: bool
    paired: bool = False
    unroll: int = 4

    @property
    def name(self) -> str:
        kind = {"float": "f32", "double": "f64"}[self.element]
        return f"mm_{kind}{'c' if self.paired else ''}_{self.rows}x{self.vecs}x{self.lanes}{'m' if self.masked else ''}"

    def ir(self) -> str:
        return kernel_ir(self)


class Text:
    """Lines of one function with fresh names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._next = 0

    def set(self, expression: str) -> str:
        self._next += 1
        name = f"%t{self._next}"
        self.lines.append(f"  {name} = {expression}")
        return name

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")

    def add(self, left: str, right: str | int) -> str:
        return self.set(f"add i64 {left}, {right}")

    def at(self, base: str, offset: str | int) -> str:
        return self.set(f"getelementptr i8, ptr {base}, i64 {offset}")


@dataclass(frozen=True)
class Vector:
    """A vector type and the spelling of the operations on it."""

    element: str
    lanes: int
    fma: bool

    @property
    def size(self) -> int:
        return 4 if self.element == "float" else 8

    @property
    def type(self) -> str:
        return f"<{self.lanes} x {self.element}>"

    @property
    def bytes(self) -> int:
        return self.size * self.lanes

    @property
    def suffix(self) -> str:
        return f"v{self.lanes}f{self.size * 8}"

    @property
    def mask_type(self) -> str:
        return f"<{self.lanes} x i1>"

    def load(self, text: Text, pointer: str, mask: str | None) -> str:
        if mask is None:
            return text.set(f"load {self.type}, ptr {pointer}, align 1")
        return text.set(
            f"call {self.type} @llvm.masked.load.{self.suffix}.p0(ptr {pointer}, i32 1, "
            f"{self.mask_type} {mask}, {self.type} zeroinitializer)"
        )

    def store(self, text: Text, value: str, pointer: str, mask: str | None) -> None:
        if mask is None:
            text.do(f"store {self.type} {value}, ptr {pointer}, align 1")
        else:
            text.do(
                f"call void @llvm.masked.store.{self.suffix}.p0({self.type} {value}, ptr {pointer}, i32 1, "
                f"{self.mask_type} {mask})"
            )

    def broadcast(self, text: Text, pointer: str) -> str:
        scalar = text.set(f"load {self.element}, ptr {pointer}, align 1")
        first = text.set(f"insertelement {self.type} poison, {self.element} {scalar}, i32 0")
        return text.set(f"shufflevector {self.type} {first}, {self.type} poison, <{self.lanes} x i32> zeroinitializer")

    def multiply_add(self, text: Text, x: str, y: str, z: str) -> str:
        if self.fma:
            return text.set(
                f"call {self.type} @llvm.fma.{self.suffix}({self.type} {x}, {self.type} {y}, {self.type} {z})"
            )
        product = text.set(f"fmul {self.type} {x}, {y}")
        return text.set(f"fadd {self.type} {z}, {product}")

    def shuffle(self, text: Text, x: str, y: str, lanes: list[int]) -> str:
        order = ", ".join(f"i32 {lane}" for lane in lanes)
        return text.set(f"shufflevector {self.type} {x}, {self.type} {y}, <{len(lanes)} x i32> <{order}>")

    def lane_mask(self, text: Text, cols: str) -> str:
        """The mask of the first ``cols`` lanes."""
        wide = f"<{self.lanes} x i32>"
        narrow = text.set(f"trunc i64 {cols} to i32")
        first = text.set(f"insertelement {wide} poison, i32 {narrow}, i32 0")
        limit = text.set(f"shufflevector {wide} {first}, {wide} poison, <{self.lanes} x i32> zeroinitializer")
        order = ", ".join(f"i32 {lane}" for lane in range(self.lanes))
        return text.set(f"icmp ult {wide} <{order}>, {limit}")

    def declarations(self) -> list[str]:
        t, m, s = self.type, self.mask_type, self.suffix
        return [
            f"declare {t} @llvm.fma.{s}({t}, {t}, {t})",
            # the alignment as an argument, as up to LLVM 21; later ones read it as the attribute they replaced it by
            f"declare {t} @llvm.masked.load.{s}.p0(ptr, i32, {m}, {t})",
            f"declare void @llvm.masked.store.{s}.p0({t}, ptr, i32, {m})",
        ]


def open_function(name: str, arguments: tuple[str, ...]) -> Text:
    text = Text()
    text.lines.append(f"define void @{name}({', '.join(f'i64 %{argument}' for argument in arguments)}) nounwind {{")
    text.label("entry")
    return text


def close_function(text: Text) -> str:
    text.do("ret void")
    text.lines.append("}")
    return "\n".join(text.lines)


def _row_pointer(text: Text, spec: KernelSpec, vector: Vector, bases: list[str], row: int, strides: list[str]) -> str:
    """The address of A's element for an accumulator row: grouped bases, pairs of parts for complex."""
    part = row % 2 if spec.paired else 0
    line = row // 2 if spec.paired else row
    base = bases[line // _ROWS_PER_BASE]
    step = line % _ROWS_PER_BASE
    pointer = base if step == 0 else text.at(base, strides[step])
    return pointer if part == 0 else text.at(pointer, vector.size)


def _inner_step(
    text: Text,
    spec: KernelSpec,
    vector: Vector,
    state: tuple[list[str], str, list[str]],
    strides: list[str],
    mask: str | None,
) -> tuple[list[str], str, list[str]]:
    """One k: load a row of B, broadcast a column of A, one FMA per accumulator; then move the pointers."""
    bases, b, sums = state
    masks = [None] * (spec.vecs - 1) + [mask]
    row_of_b = [vector.load(text, b if v == 0 else text.at(b, v * vector.bytes), masks[v]) for v in range(spec.vecs)]
    fresh = []
    for row in range(spec.rows):
        element = vector.broadcast(text, _row_pointer(text, spec, vector, bases, row, strides))
        for v in range(spec.vecs):
            fresh.append(vector.multiply_add(text, element, row_of_b[v], sums[row * spec.vecs + v]))
    return [text.at(base, "%a_k") for base in bases], text.at(b, "%b_k"), fresh


def _k_loop(
    text: Text, spec: KernelSpec, vector: Vector, entry: tuple[str, tuple[list[str], str, list[str]]], tag: str, unroll: int,
    trips: str, strides: list[str], mask: str | None,
) -> tuple[str, tuple[list[str], str, list[str]]]:  # fmt: skip
    """A counted loop over k, ``unroll`` steps a trip; returns its exit block and the values there."""
    came_from, (bases, b, sums) = entry
    head, body, done = f"{tag}_head", f"{tag}_body", f"{tag}_done"
    text.do(f"br label %{head}")
    text.label(head)
    names = {"left": f"%{tag}_left", "b": f"%{tag}_b"}
    inner_bases = [f"%{tag}_base{g}" for g in range(len(bases))]
    inner_sums = [f"%{tag}_sum{i}" for i in range(len(sums))]
    phi_at = len(text.lines)
    text.lines.append("")  # the phi nodes, known once the body is written
    more = text.set(f"icmp sgt i64 {names['left']}, 0")
    text.do(f"br i1 {more}, label %{body}, label %{done}")
    text.label(body)
    state: tuple[list[str], str, list[str]] = (inner_bases, names["b"], inner_sums)
    for _ in range(unroll):
        state = _inner_step(text, spec, vector, state, strides, mask)
    left = text.add(names["left"], -1)
    text.do(f"br label %{head}")
    next_bases, next_b, next_sums = state
    phis = [f"  {names['left']} = phi i64 [ {trips}, %{came_from} ], [ {left}, %{body} ]"]
    phis.append(f"  {names['b']} = phi ptr [ {b}, %{came_from} ], [ {next_b}, %{body} ]")
    for name, first, following in zip(inner_bases, bases, next_bases, strict=True):
        phis.append(f"  {name} = phi ptr [ {first}, %{came_from} ], [ {following}, %{body} ]")
    for name, first, following in zip(inner_sums, sums, next_sums, strict=True):
        phis.append(f"  {name} = phi {vector.type} [ {first}, %{came_from} ], [ {following}, %{body} ]")
    text.lines[phi_at] = "\n".join(phis)
    text.label(done)
    return done, (inner_bases, names["b"], inner_sums)


def _combine_pairs(text: Text, spec: KernelSpec, vector: Vector, sums: list[str]) -> list[str]:
    """Complex: row 2i holds Re(a)*b, row 2i+1 Im(a)*b, both interleaved; their sum with the second turned by 90 degrees."""
    signs = ", ".join(f"{vector.element} {'-1.0' if lane % 2 == 0 else '1.0'}" for lane in range(vector.lanes))
    swapped = [lane ^ 1 for lane in range(vector.lanes)]
    out = []
    for pair in range(spec.rows // 2):
        for v in range(spec.vecs):
            real, imaginary = sums[2 * pair * spec.vecs + v], sums[(2 * pair + 1) * spec.vecs + v]
            turned = vector.shuffle(text, imaginary, "poison", swapped)
            out.append(vector.multiply_add(text, turned, f"<{signs}>", real))
    return out


def kernel_ir(spec: KernelSpec) -> str:
    """The function of one micro-kernel (see the module's text for its contract)."""
    vector = Vector(spec.element, spec.lanes, spec.fma)
    text = open_function(spec.name, KERNEL_ARGUMENTS)
    mask = vector.lane_mask(text, "%cols") if spec.masked else None
    lines = spec.rows // 2 if spec.paired else spec.rows
    groups = -(-lines // _ROWS_PER_BASE)
    strides = ["0", "%a_row", text.set("mul i64 %a_row, 2")]
    group_stride = text.set(f"mul i64 %a_row, {_ROWS_PER_BASE}")
    trips = text.set(f"sdiv i64 %k, {spec.unroll}")
    rest = text.set(f"srem i64 %k, {spec.unroll}")
    adding = text.set("icmp ne i64 %add, 0")
    pointers = {name: text.set(f"inttoptr i64 %{name} to ptr") for name in "abc"}
    text.do("br label %tile")
    text.label("tile")
    phi_at = len(text.lines)
    text.lines.append("")
    bases = ["%tile_a"]
    for _ in range(groups - 1):
        bases.append(text.at(bases[-1], group_stride))
    rows_of_c = ["%tile_c"]
    for _ in range(lines - 1):
        rows_of_c.append(text.at(rows_of_c[-1], "%c_row"))
    for row in rows_of_c if spec.rows * spec.vecs > _PREFETCHED else []:
        for v in range(0, spec.vecs * vector.bytes, 64):
            text.do(f"call void @llvm.prefetch.p0(ptr {row if v == 0 else text.at(row, v)}, i32 1, i32 3, i32 1)")
    zeros = ["zeroinitializer"] * (spec.rows * spec.vecs)
    block, state = _k_loop(
        text, spec, vector, ("tile", (bases, "%tile_b", zeros)), "main", spec.unroll, trips, strides, mask
    )
    block, state = _k_loop(text, spec, vector, (block, state), "tail", 1, rest, strides, mask)
    sums = _combine_pairs(text, spec, vector, state[2]) if spec.paired else state[2]
    text.do(f"br i1 {adding}, label %accumulate, label %overwrite")
    for label in ("accumulate", "overwrite"):
        text.label(label)
        for i, value in enumerate(sums):
            line, v = divmod(i, spec.vecs)
            where = rows_of_c[line] if v == 0 else text.at(rows_of_c[line], v * vector.bytes)
            lane_mask = mask if v == spec.vecs - 1 else None
            if label == "accumulate":
                value = text.set(f"fadd {vector.type} {vector.load(text, where, lane_mask)}, {value}")
            vector.store(text, value, where, lane_mask)
        text.do("br label %next")
    text.label("next")
    moved = {name: text.at(f"%tile_{name}", f"%{name}_step") for name in "abc"}
    left = text.add("%tile_left", -1)
    more = text.set(f"icmp sgt i64 {left}, 0")
    text.do(f"br i1 {more}, label %tile, label %out")
    phis = [f"  %tile_{n} = phi ptr [ {pointers[n]}, %entry ], [ {moved[n]}, %next ]" for n in "abc"]
    phis.append(f"  %tile_left = phi i64 [ %count, %entry ], [ {left}, %next ]")
    text.lines[phi_at] = "\n".join(phis)
    text.label("out")
    return close_function(text)


class Spec(Protocol):
    """A function to emit: what the module needs to know of it."""

    @property
    def element(self) -> str: ...

    @property
    def lanes(self) -> int: ...

    @property
    def name(self) -> str: ...

    def ir(self) -> str: ...


def module_ir(specs: Iterable[Spec]) -> str:
    """One module holding a function per spec."""
    declarations = {"declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"}
    bodies = []
    for spec in specs:
        declarations.update(Vector(spec.element, spec.lanes, True).declarations())
        bodies.append(spec.ir())
    return "\n".join([*sorted(declarations), *bodies])


def object_code(ir: str, cpu: str, features: str) -> bytes:
    """Compile IR text for a CPU (``features`` in LLVM's ``+x,-y`` spelling) to a relocatable object.

    In an LLVM context of its own, so that the one long call need not hold llvmlite's lock: numba compiles the loops meanwhile.
    """
    import llvmlite.binding as llvm
    from llvmlite.binding import ffi
    from llvmlite.binding.context import create_context

    machine = _target_machine(cpu, features)
    module = llvm.parse_assembly(ir, create_context())
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    module.verify()
    emit = ffi.lib.LLVMPY_TargetMachineEmitToMemory
    with ffi.OutputString() as message:
        buffer = getattr(emit, "_cfn", emit)(machine, module, 1, message)  # the function behind the lock
        if not buffer:
            raise RuntimeError(str(message))
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _target_machine(cpu: str, features: str):  # type: ignore[no-untyped-def]  # llvmlite has no stubs
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic", codemodel="jitdefault", jit=True
    )


def load_object(code: bytes, names: list[str], cpu: str, features: str) -> tuple[object, list[int]]:
    """Link an object into the process; returns what keeps it alive and the functions' addresses."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine(cpu, features))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, [engine.get_function_address(name) for name in names]
