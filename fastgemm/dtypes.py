"""Which dtype a product is computed, accumulated and returned in.

numpy decides the loop (NEP 50 promotion, ``dtype=``, ``casting=``) through the public resolver of its own ufunc; this module
adds the two rules numpy has no say in: what each loop accumulates in, and the dtypes of `ml_dtypes`, which numpy would
widen.  Everything is a pure function of dtypes, so each answer is computed once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .errors import MatmulTypeError

__all__ = ["ENGINE", "INTEGERS", "Loop", "as_dtype", "resolve"]

Dtype = np.dtype[Any]

ENGINE = frozenset(np.dtype(c) for c in "fdFD")  # what the GEMM engine multiplies
INTEGERS = frozenset(np.dtype(c) for c in "?bBhHiIlLqQ")
_RESOLVER = np.matmul.resolve_dtypes  # bound now: somebody may put another matmul in its place
_CASTINGS = ("no", "equiv", "safe", "same_kind", "unsafe")
_OPERANDS = ("a", "b")


class Loop(NamedTuple):
    """How one product is computed: operands are cast to `operand`, multiplied and summed in `compute`, rounded once to `result`."""

    operand: Dtype
    compute: Dtype
    result: Dtype


def as_dtype(value: Any, name: str) -> Dtype:
    """The dtype a `dtype=` or `acc_dtype=` argument means; ``TypeError`` if it is none or states a byte order."""
    try:
        if isinstance(value, type) and issubclass(value, np.dtype):
            kind: Any = value  # a class of numpy.dtypes, such as Float32DType
            value = kind()
        dtype: Dtype = np.dtype(value)
    except TypeError as error:
        raise TypeError(f"matmul: {name}={value!r} is no dtype: {error}") from None
    if not dtype.isnative:
        raise TypeError(
            f"matmul: {name}={dtype.str!r} states a byte order; give the type alone, {dtype.newbyteorder('=').name!r}"
        )
    return dtype


def resolve(a: Dtype, b: Dtype, out: Dtype | None, dtype: Dtype | None, acc: Dtype | None, casting: str) -> Loop:
    """The loop for operands of dtype `a` and `b`.

    Raises ``TypeError`` (numpy's class) for a cast that `casting` forbids or a dtype that has no loop, ``ValueError`` for an
    accumulator narrower than the rules of `docs/numerics.md` allow.
    """
    # int and long long are equal where both have 64 bits, but are two types of scalar: the numbers tell them apart
    return _resolve(a, b, out, dtype, acc, casting, (a.num, b.num, -1 if dtype is None else dtype.num))


@lru_cache(maxsize=4096)
def _resolve(
    a: Dtype,
    b: Dtype,
    out: Dtype | None,
    dtype: Dtype | None,
    acc: Dtype | None,
    casting: Any,
    numbers: tuple[int, ...],
) -> Loop:
    """`resolve`, once per question; `numbers` only tells questions apart."""
    if casting not in _CASTINGS:
        if not isinstance(casting, str):
            raise TypeError(f"matmul: casting must be one of {', '.join(map(repr, _CASTINGS))}, not {casting!r}")
        raise ValueError(f"matmul: casting must be one of {', '.join(map(repr, _CASTINGS))} (got {casting!r})")
    for name, operand in zip(_OPERANDS, (a, b), strict=True):
        if operand.kind == "O":
            raise MatmulTypeError(
                f"matmul: {name} has dtype object, which has no arithmetic of fixed size; convert it, e.g. "
                f"{name}.astype(np.float64), or use np.matmul"
            )
    if _is_ml(a) or _is_ml(b) or (dtype is not None and _is_ml(dtype)):
        loop = _ml_loop(a, b, dtype, casting)
    else:
        loop = _numpy_loop(a, b, dtype, casting)
    if out is not None and not np.can_cast(loop, out, casting):
        raise MatmulTypeError(
            f"Cannot cast ufunc 'matmul' output from {loop!r} to {out!r} with casting rule {casting!r}: the product has dtype "
            f"{loop}; give an out of that dtype, or a wider casting (casting='unsafe' allows every cast)"
        )
    return Loop(loop, _accumulator(loop, acc), loop)


def _is_ml(dtype: Dtype) -> bool:
    return dtype.isbuiltin == 2 and dtype.type.__module__.partition(".")[0] == "ml_dtypes"


def _is_ml_integer(dtype: Dtype) -> bool:
    return bool(np.can_cast(dtype, np.int64, "safe"))


def _numpy_loop(a: Dtype, b: Dtype, dtype: Dtype | None, casting: Any) -> Dtype:
    asked: dict[str, Any] = {} if dtype is None else {"signature": (None, None, dtype)}
    try:
        loop = _RESOLVER((a, b, None), casting=casting, **asked)[2]
    except TypeError as error:
        raise MatmulTypeError(_cast_text(error, a, b, dtype, casting)) from None
    if loop in ENGINE or loop in INTEGERS or loop.char == "e":
        return loop
    raise MatmulTypeError(_unsupported_text(a, b, loop, dtype))


def _cast_text(error: TypeError, a: Dtype, b: Dtype, dtype: Dtype | None, casting: str) -> str:
    position = getattr(error, "in_i", None)
    if position is None:
        asked = "" if dtype is None else f" with dtype={dtype}"
        return (
            f"matmul: no product of a of dtype {a} and b of dtype {b}{asked}; operands are boolean, integer, float16 to float64, "
            f"complex64, complex128, or a dtype of ml_dtypes ({error})"
        )
    name, given = _OPERANDS[position], (a, b)[position]
    return f"{error}: {name} has dtype {given}; convert it first, or give a wider casting (casting='unsafe' allows every cast)"


def _unsupported_text(a: Dtype, b: Dtype, loop: Dtype, dtype: Dtype | None) -> str:
    narrower = "complex128" if loop.kind == "c" else "float64"
    if loop.kind in "fc":
        return (
            f"matmul: a of dtype {a} and b of dtype {b} give {loop}, which is wider than any vector unit computes; convert to "
            f"{narrower} or pass dtype=np.{narrower}, or use np.matmul"
        )
    asked = f"dtype={dtype}" if dtype is not None else f"dtype {loop}"
    return (
        f"matmul: a of dtype {a} and b of dtype {b} give no product of {asked}; convert to {narrower}, or use np.matmul"
    )


def _ml_loop(a: Dtype, b: Dtype, dtype: Dtype | None, casting: Any) -> Dtype:
    if dtype is None:
        try:
            loop = np.result_type(a, b)
        except (
            TypeError
        ):  # no common dtype of the two, as for bfloat16 and float16: numpy's loop search finds a wider one
            return _numpy_loop(a, b, None, casting)
    else:
        loop = dtype
    for name, operand in zip(_OPERANDS, (a, b), strict=True):
        if not np.can_cast(operand, loop, casting):
            raise MatmulTypeError(
                f"Cannot cast ufunc 'matmul' input {_OPERANDS.index(name)} from {operand!r} to {loop!r} with casting rule "
                f"{casting!r}: {name} has dtype {operand}; convert it first, or give a wider casting"
            )
    return loop if _is_ml(loop) else _numpy_loop(loop, loop, None, casting)


def _accumulator(loop: Dtype, acc: Dtype | None) -> Dtype:
    """The dtype the sum is kept in: at least float32, float64 for float64, the width of the result for integers."""
    if loop.char == "e" or (_is_ml(loop) and not _is_ml_integer(loop)):
        least: Dtype = np.dtype(np.float32)
    elif _is_ml(loop):
        least = np.dtype(np.int32)
    else:
        least = loop
    if acc is None or acc == least:
        return least
    family = INTEGERS if least in INTEGERS else ENGINE
    same_kind = (acc.kind == "c") == (least.kind == "c") and least.kind != "b"
    if acc not in family or not same_kind or not np.can_cast(least, acc, "safe"):
        raise ValueError(
            f"matmul: acc_dtype={acc} cannot accumulate a product of dtype {loop}; it is summed in {least} or, of the same kind, "
            "wider. To have a wider result too, pass dtype="
        )
    return acc
