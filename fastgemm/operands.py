"""From what a caller passes to arrays with equal batch axes: operands, `out`, shapes, `axes=`, `order=` and overlap.

The rules are those of numpy's gufunc ``matmul``, signature ``(n?,k),(k,m?)->(n?,m?)``; here M, N, K: ``(M?,K),(K,N?)->(M?,N?)``.
"""

from __future__ import annotations

import operator
import sys
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

__all__ = [
    "Problem",
    "allocate",
    "apply_axes",
    "as_operand",
    "as_out",
    "batched",
    "layout",
    "matrices",
    "overlaps_itself",
    "overlap",
    "problem",
    "settle_axes",
]

Array = np.ndarray[Any, np.dtype[Any]]

# Exact overlap of two strided arrays is a knapsack problem: past this many steps it is taken for granted (a temporary is used).
_OVERLAP_WORK: Any = 1000


class Problem(NamedTuple):
    """The extents of one call. `vector_a`, `vector_b`: the operand is 1-D, and its axis of the result is dropped."""

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    vector_a: bool
    vector_b: bool

    @property
    def core(self) -> tuple[int, ...]:
        """The result's axes after the batch axes."""
        return (() if self.vector_a else (self.m,)) + (() if self.vector_b else (self.n,))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.batch + self.core

    @property
    def work(self) -> int:
        """Multiplications in all."""
        total = self.m * self.n * self.k
        for extent in self.batch:
            total *= extent
        return total


def as_operand(value: Any, name: str) -> Array:
    """The plain ndarray an operand stands for, without a copy where it is one already."""
    if type(value) is np.ndarray:
        return value
    _reject_foreign(value, name)
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"matmul: {name} cannot be made an array: {error}") from None
    return array if type(array) is np.ndarray else array.view(np.ndarray)


def as_out(out: Any) -> Array | None:
    """The plain ndarray to write to: `out` itself, the entry of a 1-tuple, or None."""
    if type(out) is np.ndarray:
        array = out
    elif out is None:
        return None
    elif isinstance(out, tuple):
        if len(out) != 1:
            raise ValueError(
                f"matmul: an out tuple must have exactly one entry, for the one output; this one has {len(out)}"
            )
        return as_out(out[0])
    elif isinstance(out, np.ndarray):
        _reject_foreign(out, "out")
        array = out.view(np.ndarray)
    else:
        raise TypeError(f"matmul: out must be an ndarray (return arrays must be of ArrayType), not {_type_name(out)}")
    if not array.flags.writeable:
        raise ValueError(
            f"matmul: output array is read-only (out, of shape {array.shape}); pass a writeable array or a copy"
        )
    return array


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _reject_foreign(value: Any, name: str) -> None:
    """``TypeError`` for masked arrays, and (NEP 13) for types that have their own answer to numpy's functions, or none."""
    masked = sys.modules.get("numpy.ma")  # a masked array exists only where its module has been imported
    if masked is not None and isinstance(value, masked.MaskedArray):
        raise TypeError(
            f"matmul: {name} is a masked array, whose mask a product would drop; pass {name}.filled(0) to count masked entries "
            f"as zeros, {name}.data to ignore the mask, or use np.ma.dot"
        )
    override = getattr(type(value), "__array_ufunc__", np.ndarray.__array_ufunc__)
    if override is None:
        raise TypeError(
            f"matmul: {name} is a {_type_name(value)}, which opts out of numpy's functions (__array_ufunc__ is None)"
        )
    if override is not np.ndarray.__array_ufunc__:
        raise TypeError(
            f"matmul: {name} is a {_type_name(value)}, which overrides numpy's functions (__array_ufunc__); use its own product, "
            f"or pass np.asarray({name}) if its plain values are meant"
        )


def problem(a: Array, b: Array, out: Array | None) -> Problem:
    """The extents of ``a @ b``; ``ValueError`` naming operand, axis and both shapes where they do not fit."""
    if not a.ndim or not b.ndim:
        name = "b" if a.ndim else "a"
        raise ValueError(
            f"matmul: {name} is a scalar (0-d) and does not have enough dimensions, at least 1 is needed: a has shape {a.shape}, "
            f"b has shape {b.shape}; use * to scale"
        )
    vector_a, vector_b = a.ndim == 1, b.ndim == 1
    m, k = (1, a.shape[0]) if vector_a else a.shape[-2:]
    rows, n = (b.shape[0], 1) if vector_b else b.shape[-2:]
    if rows != k:
        axis_a, axis_b = a.ndim - 1, b.ndim - (1 if vector_b else 2)
        raise ValueError(
            f"matmul: axis {axis_a} of a (the last, {k}) must be as long as axis {axis_b} of b "
            f"({'the last' if vector_b else 'the last but one'}, {rows}): a has shape {a.shape}, b has shape {b.shape}"
        )
    batch = a.shape[:-2]
    if batch != b.shape[:-2]:
        batch = _broadcast(a, b)
    found = Problem(batch, m, n, k, vector_a, vector_b)
    if out is not None and out.shape != found.shape:
        return _stretched(found, out, a, b)
    return found


def _common(x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    """The shape two broadcast to (numpy's own function stops at 32 axes); ``ValueError`` if there is none."""
    length = max(len(x), len(y))
    pairs = list(zip((1,) * (length - len(x)) + x, (1,) * (length - len(y)) + y, strict=True))
    if any(p != q and p != 1 and q != 1 for p, q in pairs):
        raise ValueError
    return tuple(q if p == 1 else p for p, q in pairs)


def _broadcast(a: Array, b: Array) -> tuple[int, ...]:
    try:
        return _common(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ValueError(
            f"matmul: the batch axes (all but the last two) could not be broadcast together: {a.shape[:-2]} of a of shape "
            f"{a.shape} with {b.shape[:-2]} of b of shape {b.shape}; each pair of extents must be equal, or one of them 1"
        ) from None


def _stretched(found: Problem, out: Array, a: Array, b: Array) -> Problem:
    """The problem of an `out` whose shape is not the product's: it may repeat the product along batch axes of its own."""
    cores = len(found.core)
    core = out.shape[out.ndim - cores :] if out.ndim >= cores else None
    shapes = f"a has shape {a.shape}, b has shape {b.shape}, so their product has shape {found.shape}; out has shape {out.shape}"
    if core is None:
        raise ValueError(f"matmul: output operand out does not have enough dimensions, {cores} needed: {shapes}")
    for axis, (given, needed) in enumerate(zip(core, found.core, strict=True), out.ndim - cores):
        if given != needed:
            raise ValueError(
                f"matmul: output operand out has a mismatch in axis {axis}, {given} instead of {needed}: {shapes}"
            )
    batch = out.shape[: out.ndim - cores]
    try:
        fits = _common(batch, found.batch) == batch
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"matmul: non-broadcastable output operand out, its batch axes {batch} are not {found.batch}: {shapes}"
        )
    return found._replace(batch=batch)


def batched(array: Array, batch: tuple[int, ...], vector: bool, row: bool) -> Array:
    """A view of `array` as a stack of matrices of shape ``batch``; a 1-D operand becomes a `row` or a column."""
    if vector:
        array = array[None, :] if row else array[:, None]
    if array.shape[:-2] != batch:
        array = np.broadcast_to(array, batch + array.shape[-2:])
    return array


def matrices(result: Array, found: Problem) -> Array:
    """A view of the result (matrix axes last) that has both matrix axes."""
    if found.vector_a:
        result = result[..., None, :] if not found.vector_b else result[..., None]
    return result[..., None] if found.vector_b else result


def apply_axes(
    axes: Any, arrays: tuple[Array, Array, Array | None]
) -> tuple[Array, Array, Array | None, tuple[int, ...] | None]:
    """The operands with their matrix axes moved last, `out` as well, and the places of the result's matrix axes."""
    if not isinstance(axes, list):
        raise TypeError(f"matmul: axes should be a list, of one tuple per operand and one for the result, not {axes!r}")
    a, b, out = arrays
    cores = [min(a.ndim, 2), min(b.ndim, 2)]
    cores.append((cores[0] == 2) + (cores[1] == 2))
    if len(axes) != 3:
        raise ValueError(
            "matmul: axes should be a list with an entry for each of a, b and the result, for example "
            f"[(-2, -1), (-2, -1), (-2, -1)], not {axes!r}"
        )
    places = [_axes_entry(entry, i, cores[i]) for i, entry in enumerate(axes)]
    moved = [_moved_last(array, places[i]) for i, array in enumerate((a, b))]
    return moved[0], moved[1], None if out is None else _moved_last(out, places[2]), places[2] or None


def _axes_entry(entry: Any, position: int, cores: int) -> tuple[int, ...]:
    what = ("a", "b", "the result")[position]
    if not isinstance(entry, tuple):
        if cores != 1 and hasattr(entry, "__index__"):
            raise np.exceptions.AxisError(
                f"matmul: {what} has {cores} matrix axes, but its axes entry is the single integer {entry}"
            )
        if cores != 1:
            raise TypeError(f"matmul: axes item {position}, for {what}, should be a tuple, not {entry!r}")
        entry = (entry,)
    if len(entry) != cores:
        raise np.exceptions.AxisError(f"matmul: {what} has {cores} matrix axes, but its axes entry is {entry!r}")
    try:
        return tuple(operator.index(axis) for axis in entry)
    except TypeError:
        raise TypeError(f"matmul: axes item {position}, for {what}, must hold integers, not {entry!r}") from None


def settle_axes(places: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Non-negative places of an array of that shape; ``AxisError`` beyond it, ``ValueError`` for one that is repeated."""
    try:
        return normalize_axis_tuple(places, len(shape))
    except np.exceptions.AxisError as error:
        raise np.exceptions.AxisError(f"matmul: axes entry {places} of an array of shape {shape}: {error}") from None
    except ValueError:
        raise ValueError(f"matmul: axes entry {places} of an array of shape {shape} has a repeated axis") from None


def _moved_last(array: Array, places: tuple[int, ...]) -> Array:
    return np.moveaxis(array, settle_axes(places, array.shape), range(-len(places), 0))


def layout(order: Any, a: Array, b: Array) -> str:
    """The layout `order=` asks for with these operands: "C", "F", or "K". "A" is F if both are Fortran-contiguous."""
    if order is None:
        return "K"
    if not isinstance(order, str):
        raise TypeError(f"matmul: order must be one of 'C', 'F', 'A' or 'K', not {order!r}")
    letter = order.upper()
    if letter not in ("C", "F", "A", "K"):
        raise ValueError(f"matmul: order must be one of 'C', 'F', 'A' or 'K' (got {order!r})")
    if letter != "A":
        return letter
    return "F" if a.flags.f_contiguous and b.flags.f_contiguous else "C"


def allocate(found: Problem, dtype: np.dtype[Any], order: str, a: Array, b: Array) -> Array:
    """A new array of the result's shape (matrix axes last), laid out as numpy's matmul would under `order` (see `layout`).

    C: rows contiguous, batch axes outside in order. K: the same, but the batch axes nest as the operands' do. F: C reversed.
    """
    if order == "K" and len(found.batch) > 1 and not (a.flags.c_contiguous and b.flags.c_contiguous):
        nest = _batch_nesting(found, a, b)
        outer = np.empty([found.batch[axis] for axis in nest] + list(found.core), dtype)
        back = np.argsort(nest).tolist()
        return outer.transpose(back + list(range(len(nest), outer.ndim)))
    return np.empty(found.shape, dtype, order="F" if order == "F" else "C")


def _batch_nesting(found: Problem, a: Array, b: Array) -> list[int]:
    """The batch axes from outermost to innermost, in the order numpy's iterator finds for the operands' strides."""
    corners = [x[..., 0, 0] if x.ndim > 1 and x.size else np.empty(x.shape[:-2], np.bool_) for x in (a, b)]
    flags: Any = [["readonly"], ["readonly"], ["writeonly", "allocate"]]
    dtypes: Any = [None, None, np.int8]
    with np.nditer([*corners, None], ["zerosize_ok"], flags, op_dtypes=dtypes, order="K") as iterator:
        strides = iterator.operands[2].strides
    return sorted(range(len(strides)), key=lambda axis: -strides[axis])


def overlap(out: Array, operand: Array) -> bool:
    """Whether the two share memory, or might and telling takes too long."""
    if not np.may_share_memory(out, operand):
        return False
    try:
        return np.shares_memory(out, operand, max_work=_OVERLAP_WORK)
    except np.exceptions.TooHardError:
        return True


def overlaps_itself(out: Array) -> bool:
    """Whether two elements of `out` may share memory, as in a writeable broadcast or window view."""
    if out.flags.c_contiguous or out.flags.f_contiguous:
        return False
    reach = out.itemsize
    for stride, extent in sorted((abs(s), n) for s, n in zip(out.strides, out.shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach = stride * (extent - 1) + reach
    return False
