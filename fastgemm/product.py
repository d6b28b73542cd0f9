"""One matrix product from arrays and a checked request: everything between the public call and the engine.

The order is that of the questions, which is numpy's: what are the operands, which dtype, do their shapes fit, where does the result
go. What reaches the engine then has one dtype, equal batch axes, no empty extent, and an output that overlaps nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from . import operands
from .dtypes import ENGINE, Loop, resolve
from .lazy import module
from .operands import Problem
from .options import DEFAULTS, Options, Request

__all__ = ["Prepared", "multiply", "prepare"]

Array = np.ndarray[Any, np.dtype[Any]]


class Prepared(NamedTuple):
    """A call whose operands, shapes and dtypes are settled: matrix axes last, 1-D operands still 1-D."""

    a: Array
    b: Array
    out: Array | None
    problem: Problem
    loop: Loop
    order: str
    places: tuple[int, ...] | None


def prepare(a: Any, b: Any, out: Any, request: Request) -> Prepared:
    """Check the operands of a call against each other and the request; raises as `fastgemm.matmul` documents."""
    a, b, out = operands.as_operand(a, "a"), operands.as_operand(b, "b"), operands.as_out(out)
    order = operands.layout(request.order, a, b)
    places = None
    if request.axes is not None:
        a, b, out, places = operands.apply_axes(request.axes, (a, b, out))
    if a.dtype.char in "OgG" or b.dtype.char in "OgG":
        # numpy multiplies objects and long doubles: what it can refuse of them is the shape
        operands.problem(a, b, out)
    out_dtype = None if out is None else out.dtype
    loop = resolve(a.dtype, b.dtype, out_dtype, request.dtype, request.acc_dtype, request.casting)
    problem = operands.problem(a, b, out)
    if places:
        places = operands.settle_axes(places, problem.shape)
    return Prepared(a, b, out, problem, loop, order, places)


def multiply(a: Any, b: Any, out: Any, request: Request) -> Any:
    """The product ``a @ b``: `out` if given, else a new array, or a scalar for two 1-D operands."""
    call = prepare(a, b, out, request)
    if call.out is not None:
        _write(call, call.out, request.engine)
        return out[0] if isinstance(out, tuple) else out
    result = operands.allocate(call.problem, call.loop.result, call.order, call.a, call.b)
    _write(call, result, request.engine)
    if call.places:
        return np.moveaxis(result, range(-len(call.places), 0), call.places)
    return result if result.ndim else result[()]


def _write(call: Prepared, out: Array, options: Options) -> None:
    """Write the product to `out`, whose shape is right."""
    problem, compute = call.problem, call.loop.compute
    if not out.size:
        return
    if not problem.k:
        out[...] = 0
        return
    a, b = _converted(call.a, call.loop), _converted(call.b, call.loop)
    # An out of the accumulator's dtype does not keep the accumulator: like numpy's, it gets the product's dtype, cast.
    direct = out.dtype == compute == call.loop.result and out.dtype.isnative
    if direct and call.out is not None:
        direct = not (
            operands.overlap(out, a)
            or operands.overlap(out, b)
            or operands.overlaps_itself(out)
            or _summed_in_place(options, out, problem)
        )
    target = out if direct else np.empty(problem.shape, compute)
    if options is not DEFAULTS or compute not in ENGINE or _fast()(a, b, target) is NotImplemented:
        _run(
            operands.batched(a, problem.batch, problem.vector_a, row=True),
            operands.batched(b, problem.batch, problem.vector_b, row=False),
            operands.matrices(target, problem),
            options,
        )
    if not direct:
        _round(target, call.loop.result, out)


def _summed_in_place(options: Options, out: Array, problem: Problem) -> bool:
    """Whether the policy adds K slabs up in C, several blocks to a core, and `out` has no contiguous rows to do that in."""
    own = options.policy == "auto" or type(options.policy).__name__ == "HostPanels"
    if options is DEFAULTS or not own:
        return False
    return not problem.vector_b and out.strides[-1] != out.itemsize and problem.n > 1


@cache
def _fast() -> Callable[[Array, Array, Array], object]:
    return module(".gemm.direct", __package__).fast  # type: ignore[no-any-return]


@cache
def _engine() -> Callable[[Array, Array, Array, Options], object]:
    return module(".gemm.engine", __package__).run  # type: ignore[no-any-return]


def _run(a: Array, b: Array, out: Array, options: Options) -> None:
    if out.dtype in ENGINE:
        _engine()(a, b, out, options)
    else:
        module(".gemm.generic", __package__).run(a, b, out)


def _converted(array: Array, loop: Loop) -> Array:
    """`array` in the dtype it is multiplied in; itself where that is its own dtype in any byte order.

    It takes its value in the loop's dtype first, as numpy's would, so float64 operands under ``dtype=float16`` are rounded to it.
    """
    if array.dtype == loop.compute or array.dtype.newbyteorder("=") == loop.compute:
        return array
    shape = array.shape
    if 0 in array.strides:  # convert what a broadcast view repeats once, and repeat the converted
        array = array[tuple(slice(1) if s == 0 else slice(None) for s in array.strides)]
    with np.errstate(all="ignore"):
        array = array.astype(loop.operand, copy=False).astype(loop.compute, copy=False)
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _round(values: Array, result: np.dtype[Any], out: Array) -> None:
    """Store sums: rounded to the product's dtype, then cast to that of `out` if it has another."""
    with np.errstate(all="ignore"):
        if values.dtype != result:
            values = values.astype(result)
        np.copyto(out, values, casting="unsafe")
