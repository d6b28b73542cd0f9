"""A product planned once: explained, traced, and run as often as operands of the same shapes come."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from . import operands
from .dtypes import ENGINE
from .options import DEFAULTS, MatmulOptions, Options, Request, matmul_signature
from .product import multiply, prepare

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Options", "Plan", "plan"]

SCHEMA = 1  # of Plan.to_dict(): raised when a key changes its meaning or goes


@dataclass(frozen=True)
class Plan:
    """How `matmul` computes a product of operands of these shapes and dtypes; made by :func:`plan`.

    A plan holds no array and no buffer: it may be kept, pickled, and run from many threads at once.
    """

    a_shape: tuple[int, ...]
    b_shape: tuple[int, ...]
    a_dtype: np.dtype[Any]
    b_dtype: np.dtype[Any]
    batch: tuple[int, ...]  # the broadcast batch axes
    m: int
    n: int
    k: int
    shape: tuple[int, ...]  # of the result
    dtype: np.dtype[Any]  # of the result
    compute: np.dtype[Any]  # what is multiplied and summed
    shared_b: bool  # whether all batches multiply the same b
    request: Request

    @property
    def options(self) -> Options:
        """What the engine is told: policy, swizzle, tile, cores, threads, arch, reproducible."""
        return self.request.engine

    @property
    def planned(self) -> bool:
        """Whether a policy orders the work: not so for integers and bool, which run plain loops, and for empty products."""
        return self.compute in ENGINE and bool(math.prod(self.batch) * self.m * self.n * self.k)

    def run(self, a: ArrayLike, b: ArrayLike, out: Any = None) -> Any:
        """``matmul(a, b, out)`` under this plan; shapes and dtypes must be those it was made for."""
        left, right = operands.as_operand(a, "a"), operands.as_operand(b, "b")
        self._check("a", left, self.a_shape, self.a_dtype)
        self._check("b", right, self.b_shape, self.b_dtype)
        return multiply(left, right, out, self.request)

    def _check(self, name: str, array: np.ndarray[Any, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if array.shape != shape:
            raise ValueError(
                f"plan.run: {name} has shape {array.shape}, but the plan is for {shape}; make a plan of these shapes"
            )
        if array.dtype != dtype and array.dtype.newbyteorder("=") != dtype:
            raise TypeError(
                f"plan.run: {name} has dtype {array.dtype}, but the plan is for {dtype}; convert {name}, or make another plan"
            )

    def explain(self) -> str:
        """In words: problem, policy, swizzle, tile, grid and kernels, and why each was chosen."""
        from .explain import explain

        if not self.planned:
            return self._unplanned()
        return f"{explain(self)}{self._conversions()}"

    def _conversions(self) -> str:
        if self.a_dtype == self.b_dtype == self.compute == self.dtype:
            return ""
        return (
            f"\ndtypes    a of {self.a_dtype}, b of {self.b_dtype}, multiplied and summed in {self.compute}, rounded once to "
            f"{self.dtype}"
        )

    def _unplanned(self) -> str:
        head = f"{self.a_dtype} {self.a_shape} @ {self.b_dtype} {self.b_shape} -> {self.dtype} {self.shape}"
        if self.compute in ENGINE:
            return f"{head}\nempty: nothing is multiplied" + ("; zeros are written" if not self.k else "")
        return (
            f"{head}\nplain path: vectorised loops on one thread, exact modulo the width of {self.compute}; there is no kernel "
            "row for this dtype, so policy, swizzle, tile and cores have no say"
        )

    def trace(self) -> np.ndarray[Any, Any]:
        """The op stream a run executes, as `fastgemm.trace` gives it; empty where no policy orders the work."""
        from .trace import TRACE_DTYPE, trace

        if not self.planned:
            return np.empty(0, TRACE_DTYPE)
        options = self.options
        ops: np.ndarray[Any, Any] = trace(
            self.m,
            self.n,
            self.k,
            policy=options.policy,
            swizzle=options.swizzle,
            tile=options.tile,
            cores=options.cores,
            batch=math.prod(self.batch),
            dtype=self.compute,
            arch=options.arch,
            reproducible=options.reproducible,
            threads=options.threads,
            shared_b=self.shared_b,
        )
        return ops

    def to_dict(self) -> dict[str, Any]:
        """The plan in numbers, strings and lists only, as `json.dumps` takes them; `schema` counts its versions."""
        from .explain import facts

        request = self.request
        described = {
            "schema": SCHEMA,
            "a": {"shape": list(self.a_shape), "dtype": self.a_dtype.name},
            "b": {"shape": list(self.b_shape), "dtype": self.b_dtype.name},
            "result": {"shape": list(self.shape), "dtype": self.dtype.name},
            "batch": list(self.batch),
            "m": self.m,
            "n": self.n,
            "k": self.k,
            "compute": self.compute.name,
            "casting": request.casting,
            "order": request.order,
            "axes": _plain(request.axes),
            "options": {field.name: _plain(getattr(self.options, field.name)) for field in fields(Options)},
        }
        return described | {"chosen": _plain(facts(self)) if self.planned else None}


def _plain(value: Any) -> Any:
    """A value as JSON has it: tuples as lists, objects by their repr."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return repr(value)


def plan(a: ArrayLike, b: ArrayLike, **options: Unpack[MatmulOptions]) -> Plan:
    """Plan ``matmul(a, b, **options)`` without running it.

    Takes the keywords of :func:`fastgemm.matmul` and raises what it raises. Of `a` and `b` only shapes and dtypes are looked at,
    and neither is kept; ``numpy.empty(shape, dtype)`` stands for operands that do not exist yet.

    >>> import numpy as np
    >>> import fastgemm as fg
    >>> p = fg.plan(np.empty((512, 256), np.float32), np.empty((256, 128), np.float32), cores=4)
    >>> p.m, p.n, p.k, p.dtype.name
    (512, 128, 256, 'float32')
    >>> p.run(np.ones((512, 256), np.float32), np.ones((256, 128), np.float32))[0, 0].item()
    256.0
    """
    request = Request.read("plan", options)
    call = prepare(a, b, None, request)
    problem, loop = call.problem, call.loop
    left, right = np.asarray(a), np.asarray(b)
    shape = problem.shape
    if call.places:  # a scalar repeated over the shape has axes to move and no memory
        shape = np.moveaxis(np.broadcast_to(False, shape), range(-len(call.places), 0), call.places).shape
    made = Plan(
        a_shape=left.shape,
        b_shape=right.shape,
        a_dtype=left.dtype.newbyteorder("="),
        b_dtype=right.dtype.newbyteorder("="),
        batch=problem.batch,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        shape=shape,
        dtype=loop.result,
        compute=loop.compute,
        shared_b=math.prod(call.b.shape[:-2]) == 1,
        request=request,
    )
    if made.planned and request.engine != DEFAULTS:
        from .gemm.choose import schedule
        from .gemm.threads import resolve

        # raises where tile, policy and architecture do not suit each other
        schedule((made.m, made.n, made.k), made.compute, request.engine, resolve(request.engine.threads))
    return made


plan.__signature__ = matmul_signature(out=False)  # type: ignore[attr-defined]
