"""Arrays as CPython holds them, for compiled code that is called with objects and returns one.

A numba entry point converts every array argument (0.06 µs each, with an allocation) and Python has to check types and make the
result first; a function that reads the fields of numpy's array structure does all of it in a few nanoseconds.  The structure and
the C functions used here are part of numpy's stable binary interface (its headers inline them into every extension module).
What is assumed of them is checked once, on an array (:func:`readable`); where it does not hold, nobody calls the function.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

__all__ = [
    "DATA",
    "DTYPE",
    "FLAGS",
    "NDIM",
    "SHAPE",
    "STRIDES",
    "TYPE",
    "WRITEABLE",
    "as_scalar",
    "builtin",
    "c_function",
    "new_array",
    "readable",
]

# Byte offsets in an object: its type is the last word of the head that all objects have, then come the fields of an array.
_HEAD = object.__basicsize__
TYPE = _HEAD - 8
DATA, NDIM, SHAPE, STRIDES, DTYPE, FLAGS = _HEAD, _HEAD + 8, _HEAD + 16, _HEAD + 24, _HEAD + 40, _HEAD + 48
WRITEABLE = 0x400

_METH_FASTCALL = 0x80
# Places in numpy's table of C functions.
_GET_ABI_VERSION, _RETURN, _NEW = 0, 76, 93
_ABI = 0x02000000


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_kept: list[object] = []


def builtin(name: str, address: int, context: object) -> Callable[..., Any]:
    """A Python function that calls ``PyObject *function(PyObject *context, PyObject *const *arguments, Py_ssize_t count)``."""
    definition = _MethodDef(name.encode(), address, _METH_FASTCALL, None)
    _kept.append(definition)  # CPython keeps the pointer
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes, make.restype = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p], ctypes.py_object
    return make(ctypes.addressof(definition), context, None)  # type: ignore[no-any-return]


def c_function(name: str) -> int:
    """The address of a function of CPython's C interface."""
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


@cache
def _table() -> Any:
    capsule = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.POINTER(ctypes.c_void_p)
    return get(capsule, None)


def new_array() -> int:
    """The address of ``PyArray_New(type, ndim, shape, type number, strides, data, item size, flags, base)``."""
    return int(_table()[_NEW])


def as_scalar() -> int:
    """The address of ``PyArray_Return(array)``: a scalar for an array without dimensions."""
    return int(_table()[_RETURN])


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


@cache
def readable() -> bool:
    """Whether arrays and numpy's functions are where this module expects them."""
    if ctypes.sizeof(ctypes.c_void_p) != 8 or ctypes.CFUNCTYPE(ctypes.c_uint)(_table()[_GET_ABI_VERSION])() != _ABI:
        return False
    x = np.zeros((3, 10), np.float32)[:, ::2]
    at = id(x)
    pointers = {TYPE: id(np.ndarray), DATA: x.ctypes.data, DTYPE: id(x.dtype)}
    if any(_word(at + offset) != value for offset, value in pointers.items()):
        return False
    shape, strides = ((ctypes.c_int64 * 2).from_address(_word(at + offset)) for offset in (SHAPE, STRIDES))
    locked = np.zeros(1)
    locked.flags.writeable = False
    flags = [ctypes.c_int32.from_address(id(array) + FLAGS).value & WRITEABLE for array in (x, locked)]
    return (
        ctypes.c_int32.from_address(at + NDIM).value == 2
        and (tuple(shape), tuple(strides)) == (x.shape, x.strides)
        and flags == [WRITEABLE, 0]
    )
