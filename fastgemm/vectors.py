"""Flat int64 vectors as bare pointers inside jitted code.

Numba compiles a function over pointers in half the time of the same one over arrays (no shape, strides, reference counts or
negative indices), and the first call of a user waits for that.  The array must outlive the pointer: convert in the function
whose argument it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.core.caching import NullCache
from numba.extending import intrinsic

from .jit import njit
from .pipeline import PartPipeline

__all__ = ["inner", "pointer"]


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only jitted code calls: no entry points for Python and C, and no cache entry of its own, as the
    entries of its callers hold it."""
    dispatcher = njit(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, pipeline_class=PartPipeline)
    dispatcher._cache = NullCache()
    return dispatcher


@intrinsic
def pointer(typingctx, array):
    """The address of an array's first element, to be indexed like the array."""

    def generate(context, builder, signature, arguments):
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return types.CPointer(array.dtype)(array), generate
