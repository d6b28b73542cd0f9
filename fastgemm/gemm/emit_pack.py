"""Packing kernels, and kernels for products with a vector, as LLVM IR text (compiled by :mod:`fastgemm.gemm.emit`)."""

from __future__ import annotations

from dataclasses import dataclass

from .emit import KERNEL_ARGUMENTS, Text, Vector, close_function, open_function

__all__ = ["PACK_ARGUMENTS", "PackSpec", "VectorSpec"]

PACK_ARGUMENTS = ("src", "src_row", "dst", "dst_panel", "rows", "panels", "cols")


@dataclass(frozen=True)
class PackSpec:
    """One packing kernel: B rows cut into panels (``transposed`` False), or B columns transposed into panels."""

    element: str
    lanes: int
    vecs: int
    transposed: bool
    group: int = 1  # lanes that move together: 2 for complex

    @property
    def name(self) -> str:
        kind = {"float": "f32", "double": "f64"}[self.element]
        return f"pack_{kind}{'c' if self.group == 2 else ''}_{self.vecs}x{self.lanes}{'t' if self.transposed else ''}"

    def ir(self) -> str:
        return pack_ir(self)


@dataclass(frozen=True)
class VectorSpec:
    """One kernel for a product with a vector: ``dot`` (rows of A with a column) or ``axpy`` (rows of B scaled into a row)."""

    kind: str
    element: str
    lanes: int
    rows: int
    fma: bool

    @property
    def name(self) -> str:
        return f"{self.kind}_{'f32' if self.element == 'float' else 'f64'}_{self.rows}x{self.lanes}"

    def ir(self) -> str:
        return vector_ir(self)


def _counted(text: Text, tag: str) -> int:
    """Open a loop that runs at least once; returns where its phi nodes go."""
    text.do(f"br label %{tag}")
    text.label(tag)
    text.lines.append("")
    return len(text.lines) - 1


def _end_counted(
    text: Text, tag: str, trips: str, phi_at: int, blocks: tuple[str, str], moving: dict[str, tuple[str, str]]
) -> None:
    """Close a loop of ``trips`` rounds; ``moving``: name -> (first value, byte step); ``blocks``: before it, and its last."""
    came_from, block = blocks
    phis = []
    for name, (first, step) in moving.items():
        following = text.at(f"%{name}", step)
        phis.append(f"  %{name} = phi ptr [ {first}, %{came_from} ], [ {following}, %{block} ]")
    left = text.add(f"%{tag}_left", -1)
    more = text.set(f"icmp sgt i64 {left}, 0")
    text.do(f"br i1 {more}, label %{tag}, label %{tag}_end")
    phis.append(f"  %{tag}_left = phi i64 [ {trips}, %{came_from} ], [ {left}, %{block} ]")
    text.lines[phi_at] = "\n".join(phis)
    text.label(f"{tag}_end")


def _interleave(text: Text, vector: Vector, rows: list[str], group: int) -> list[str]:
    """Transpose a square of rows: log2 levels, each interleaving row i with row i + half."""
    units = vector.lanes // group
    lanes = vector.lanes

    def spread(start: int) -> list[int]:
        out = []
        for unit in range(start, start + units // 2):
            out += [unit * group + g for g in range(group)] + [lanes + unit * group + g for g in range(group)]
        return out

    level = rows
    for _ in range(units.bit_length() - 1):
        half = len(level) // 2
        following = []
        for i in range(half):
            following.append(vector.shuffle(text, level[i], level[i + half], spread(0)))
            following.append(vector.shuffle(text, level[i], level[i + half], spread(units // 2)))
        level = following
    return level


def pack_ir(spec: PackSpec) -> str:
    """The function of one packing kernel ``(src, src_row, dst, dst_panel, rows, panels, cols)``.

    Not transposed: ``rows`` rows of B (``src_row`` apart), each cut into ``panels`` panels of ``vecs`` vectors; row r of panel p
    goes to ``dst + p * dst_panel + r * width``.  Only the first ``cols`` lanes of the last panel's last vector are read, the
    others become zero.  Transposed: one square: lanes / group columns of B (``src_row`` apart, contiguous along k) become as many
    rows at ``dst``, ``dst_panel`` bytes apart; only the first ``cols`` columns are read, the others become zero (so that NaN
    in the memory behind B never enters).
    """
    vector = Vector(spec.element, spec.lanes, False)
    text = open_function(spec.name, PACK_ARGUMENTS)
    source = text.set("inttoptr i64 %src to ptr")
    target = text.set("inttoptr i64 %dst to ptr")
    if spec.transposed:
        units = spec.lanes // spec.group
        every = ", ".join("i1 true" for _ in range(spec.lanes))
        loaded = []
        for unit in range(units):
            present = text.set(f"icmp ugt i64 %cols, {unit}")
            mask = text.set(f"select i1 {present}, {vector.mask_type} <{every}>, {vector.mask_type} zeroinitializer")
            loaded.append(vector.load(text, source, mask))
            source = text.at(source, "%src_row")
        for row in _interleave(text, vector, loaded, spec.group):
            vector.store(text, row, target, None)
            target = text.at(target, "%dst_panel")
        return close_function(text)
    mask = vector.lane_mask(text, "%cols")
    every = ", ".join("i1 true" for _ in range(spec.lanes))
    width = spec.vecs * vector.bytes
    rows = {"row_src": (source, "%src_row"), "row_dst": (target, str(width))}
    outer = _counted(text, "row")
    panels = {"panel_src": ("%row_src", str(width)), "panel_dst": ("%row_dst", "%dst_panel")}
    inner = _counted(text, "panel")
    for v in range(spec.vecs):
        offset = v * vector.bytes
        where, to = text.at("%panel_src", offset), text.at("%panel_dst", offset)
        if v < spec.vecs - 1:
            vector.store(text, vector.load(text, where, None), to, None)
        else:
            last = text.set("icmp eq i64 %panel_left, 1")
            chosen = text.set(f"select i1 {last}, {vector.mask_type} {mask}, {vector.mask_type} <{every}>")
            vector.store(text, vector.load(text, where, chosen), to, None)
    _end_counted(text, "panel", "%panels", inner, ("row", "panel"), panels)
    _end_counted(text, "row", "%rows", outer, ("entry", "panel_end"), rows)
    return close_function(text)


def _sum_lanes(text: Text, vector: Vector, value: str) -> str:
    """The sum of all lanes by halving, in one fixed order."""
    step = vector.lanes // 2
    while step:
        turned = vector.shuffle(text, value, "poison", [(lane + step) % vector.lanes for lane in range(vector.lanes)])
        value = text.set(f"fadd {vector.type} {value}, {turned}")
        step //= 2
    return text.set(f"extractelement {vector.type} {value}, i32 0")


def _dot_ir(spec: VectorSpec) -> str:
    """``rows`` dot products at once: c[r] = or += sum over k of a[r, k] b[k], both contiguous along k."""
    vector = Vector(spec.element, spec.lanes, spec.fma)
    text = open_function(spec.name, KERNEL_ARGUMENTS)
    a, b, c = (text.set(f"inttoptr i64 %{name} to ptr") for name in "abc")
    whole = text.set(f"sdiv i64 %k, {spec.lanes}")
    rest = text.set(f"srem i64 %k, {spec.lanes}")
    mask = vector.lane_mask(text, rest)
    adding = text.set("icmp ne i64 %add, 0")
    text.do("br label %head")
    text.label("head")
    phi_at = len(text.lines)
    text.lines.append("")
    more = text.set("icmp sgt i64 %left, 0")
    text.do(f"br i1 {more}, label %body, label %done")

    def step(lane_mask: str | None) -> list[str]:
        x = vector.load(text, "%at_b", lane_mask)
        pointer, out = "%at_a", []
        for row in range(spec.rows):
            out.append(vector.multiply_add(text, vector.load(text, pointer, lane_mask), x, f"%sum{row}"))
            pointer = text.at(pointer, "%a_row")
        return out

    text.label("body")
    sums = step(None)
    moved_a, moved_b, left = text.at("%at_a", vector.bytes), text.at("%at_b", vector.bytes), text.add("%left", -1)
    text.do("br label %head")
    phis = [
        f"  %at_a = phi ptr [ {a}, %entry ], [ {moved_a}, %body ]",
        f"  %at_b = phi ptr [ {b}, %entry ], [ {moved_b}, %body ]",
    ]
    phis.append(f"  %left = phi i64 [ {whole}, %entry ], [ {left}, %body ]")
    phis += [
        f"  %sum{r} = phi {vector.type} [ zeroinitializer, %entry ], [ {sums[r]}, %body ]" for r in range(spec.rows)
    ]
    text.lines[phi_at] = "\n".join(phis)
    text.label("done")
    totals = [_sum_lanes(text, vector, total) for total in step(mask)]
    text.do(f"br i1 {adding}, label %accumulate, label %overwrite")
    for label in ("accumulate", "overwrite"):
        text.label(label)
        where = c
        for total in totals:
            value = total
            if label == "accumulate":
                old = text.set(f"load {spec.element}, ptr {where}, align 1")
                value = text.set(f"fadd {spec.element} {old}, {total}")
            text.do(f"store {spec.element} {value}, ptr {where}, align 1")
            where = text.at(where, "%c_row")
        text.do("br label %out")
    text.label("out")
    return close_function(text)


def _axpy_ir(spec: VectorSpec) -> str:
    """``count`` blocks of ``rows`` rows of B, scaled by elements of a and added into one row of C, ``cols`` lanes wide."""
    vector = Vector(spec.element, spec.lanes, spec.fma)
    text = open_function(spec.name, KERNEL_ARGUMENTS)
    a, b, c = (text.set(f"inttoptr i64 %{name} to ptr") for name in "abc")
    trips = text.set(f"sdiv i64 %cols, {spec.lanes}")
    rest = text.set(f"srem i64 %cols, {spec.lanes}")
    edge = vector.lane_mask(text, rest)
    adding = text.set("icmp ne i64 %add, 0")
    text.do("br label %block")
    text.label("block")
    phi_at = len(text.lines)
    text.lines.append("")
    keep = text.set(f"insertelement {vector.mask_type} poison, i1 %keep, i32 0")
    old = text.set(
        f"shufflevector {vector.mask_type} {keep}, {vector.mask_type} poison, <{spec.lanes} x i32> zeroinitializer"
    )
    scale, x = [], "%at_a"
    for _ in range(spec.rows):
        scale.append(vector.broadcast(text, x))
        x = text.at(x, "%a_k")

    def step(at_b: str, at_c: str, lane_mask: str | None) -> None:
        present = old if lane_mask is None else text.set(f"and {vector.mask_type} {old}, {lane_mask}")
        total = vector.load(text, at_c, present)
        for row in range(spec.rows):
            total = vector.multiply_add(text, scale[row], vector.load(text, at_b, lane_mask), total)
            at_b = text.at(at_b, "%b_k")
        vector.store(text, total, at_c, lane_mask)

    text.do("br label %head")
    text.label("head")
    inner_at = len(text.lines)
    text.lines.append("")
    more = text.set("icmp sgt i64 %left, 0")
    text.do(f"br i1 {more}, label %body, label %edge")
    text.label("body")
    step("%in_b", "%in_c", None)
    moved_b, moved_c, left = text.at("%in_b", vector.bytes), text.at("%in_c", vector.bytes), text.add("%left", -1)
    text.do("br label %head")
    text.lines[inner_at] = "\n".join(
        [
            f"  %in_b = phi ptr [ %at_b, %block ], [ {moved_b}, %body ]",
            f"  %in_c = phi ptr [ {c}, %block ], [ {moved_c}, %body ]",
            f"  %left = phi i64 [ {trips}, %block ], [ {left}, %body ]",
        ]
    )
    text.label("edge")
    step("%in_b", "%in_c", edge)
    next_a, next_b, blocks = text.at("%at_a", "%a_step"), text.at("%at_b", "%b_step"), text.add("%blocks", -1)
    more = text.set(f"icmp sgt i64 {blocks}, 0")
    text.do(f"br i1 {more}, label %block, label %out")
    text.lines[phi_at] = "\n".join(
        [
            f"  %at_a = phi ptr [ {a}, %entry ], [ {next_a}, %edge ]",
            f"  %at_b = phi ptr [ {b}, %entry ], [ {next_b}, %edge ]",
            f"  %blocks = phi i64 [ %count, %entry ], [ {blocks}, %edge ]",
            f"  %keep = phi i1 [ {adding}, %entry ], [ true, %edge ]",
        ]
    )
    text.label("out")
    return close_function(text)


def vector_ir(spec: VectorSpec) -> str:
    """The function of one kernel for products with a vector (one row of A, or one column of B)."""
    return _dot_ir(spec) if spec.kind == "dot" else _axpy_ir(spec)
