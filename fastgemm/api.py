"""`fastgemm.matmul`, numpy's matmul on this package's engine, and `warmup`.

A call takes one of two ways: the plain case (two arrays of one native dtype, no option) goes to the direct path, everything else
to :mod:`fastgemm.product`, which settles operands, shapes, dtypes and `out` once and leaves the engine nothing to check.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .dtypes import ENGINE, resolve
from .lazy import module
from .options import MatmulOptions, Request, matmul_signature
from .product import multiply

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["matmul", "warmup"]

Array = np.ndarray[Any, np.dtype[Any]]


def matmul(a: ArrayLike, b: ArrayLike, out: Any = None, **options: Unpack[MatmulOptions]) -> Any:
    """The matrix product of two arrays, with numpy's rules: ``a @ b``.

    Parameters
    ----------
    a, b : array-like
        ``(..., M, K)`` and ``(..., K, N)``; a 1-D `a` is a row, a 1-D `b` a column, and the axis this adds is dropped from the
        result.  The axes before the last two broadcast.  Any strides, byte order and alignment are read in place.
    out : ndarray or 1-tuple of one, optional
        Where the result goes, of its shape (it may have batch axes of its own, over which the result repeats). It is never read,
        and may overlap `a` and `b`.
    policy, swizzle, tile, cores, arch :
        In which order the product is computed: a dispatch policy (`Pingpong`, `Preload`, ...), a block scheduler
        (`IdentitySwizzle`, ...), the block extents ``(m, n, k)`` or a `Tile`, the number of virtual cores, and the architecture
        profile they are checked against.  ``"auto"`` and None leave the choice to the package; see `fastgemm.plan`.
    threads : int, optional
        At most so many threads, above `set_num_threads` and the environment.
    dtype, casting, order, axes :
        As of ``numpy.matmul``: the dtype to compute in and return, the casts allowed, the memory layout of a new result, and the
        matrix axes of `a`, `b` and the result.
    acc_dtype : dtype, optional
        What sums are kept in, for a wider accumulator than the default: float32 for float16, bfloat16 and float32, float64 for
        float64, and the dtype of the result for integers, which wrap modulo its width.
    epilogue : None
        Reserved for a fused epilogue, a later feature: anything but None raises ``ValueError``.
    reproducible : bool
        Element (i, j) becomes a function of row i, column j, K, dtype, tile and policy alone: the same bits for any thread
        count, cores, swizzle, strides, M, N, or other rows in the call, on one instruction set.

    Returns
    -------
    ndarray, or a numpy scalar for two 1-D operands
        Always a plain array, for subclasses (``numpy.matrix``) as well, in C order unless `order` or the batch axes' strides say
        otherwise; or `out`.  Two operands of one `ml_dtypes` type give that type, ``dtype=numpy.float32`` keeps the accumulator.

    Raises
    ------
    ValueError
        Shapes that do not fit, a scalar operand, a read-only `out`, an option with a value it cannot take.
    TypeError
        Masked arrays, object and extended precision, a cast that `casting` forbids, an operand whose type overrides numpy's
        functions. Where numpy raises, the class is numpy's.

    Warns
    -----
    FastgemmPerformanceWarning
        Once per dtype that has no fast kernel (integers and bool at present), for work of some size.  Floating-point conditions
        are not reported: NaN and infinity come through silently, and no ``RuntimeWarning`` is raised.

    Examples
    --------
    >>> import numpy as np
    >>> import fastgemm as fg
    >>> a = np.arange(6, dtype=np.float32).reshape(2, 3)
    >>> fg.matmul(a, a.T)
    array([[ 5., 14.],
           [14., 50.]], dtype=float32)
    """
    if not options:
        result = _direct(a, b, out)
        if type(result) is not int:
            return result
        result = _settle(result, a, b, out)
        if result is not NotImplemented:
            return result
    return _general(a, b, out, options)


# The keywords arrive in one dict, so that a call without any pays for none; this is what help() and editors show.
matmul.__signature__ = matmul_signature()  # type: ignore[attr-defined]


def _direct(a: Any, b: Any, out: Any) -> Any:
    """The compiled direct path (:mod:`fastgemm.gemm.direct`) takes this name's place at the first call: numba is imported then.

    It returns the product, or an integer that :func:`_settle` understands.
    """
    global _direct
    _direct = module(".gemm.direct", __package__).first_entry(a)
    return _direct(a, b, out)


def _settle(answer: int, a: Any, b: Any, out: Any) -> Any:
    """The same for :func:`fastgemm.gemm.direct.settle`: the product all the same, or NotImplemented."""
    global _settle
    _settle = module(".gemm.direct", __package__).settle
    return _settle(answer, a, b, out)


def _general(a: Any, b: Any, out: Any, options: MatmulOptions) -> Any:
    """Everything :func:`matmul` promises, for any operands and options."""
    return multiply(a, b, out, Request.read("matmul", options))


def warmup(dtypes: Iterable[DTypeLike] = (np.float32, np.float64)) -> dict[str, float]:
    """Compile, or load from the disk cache, the kernels of `dtypes`; returns seconds per dtype, by name.

    A warm process pays tenths of a second here, an empty cache some seconds. Every dtype `matmul` takes may be asked for.

    >>> import fastgemm as fg
    >>> sorted(fg.warmup(["float32"]))
    ['float32']
    """
    seconds = {}
    for each in dtypes:
        dtype: np.dtype[Any] = np.dtype(each)
        start = time.perf_counter()
        # One product per path of the engine: single calls, a stack, and a size that packs; one for the plain path.
        sizes = [((8, 8), (8, 8)), ((2, 3, 3), (2, 3, 3)), ((520, 520), (520, 520))]
        for left, right in (
            sizes if resolve(dtype, dtype, None, None, None, "same_kind").compute in ENGINE else sizes[:1]
        ):
            matmul(np.zeros(left, dtype), np.zeros(right, dtype))
        seconds[dtype.name] = time.perf_counter() - start
    return seconds
