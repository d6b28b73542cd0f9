"""Warnings and exceptions of the package, as classes of its own so that they can be filtered and caught by class."""

from __future__ import annotations

import sys
import warnings

try:  # numpy keeps its class private; being one of it lets code written against np.matmul catch ours
    from numpy._core._exceptions import UFuncTypeError as _NumpyTypeError
except ImportError:  # pragma: no cover - a numpy that has moved it
    _NumpyTypeError = TypeError  # type: ignore[misc,assignment]

__all__ = ["FastgemmPerformanceWarning", "MatmulTypeError"]


class FastgemmPerformanceWarning(UserWarning):
    """A slow path was taken; the text says which and why."""


class MatmulTypeError(_NumpyTypeError):
    """A dtype that `matmul` cannot take or cast: a ``TypeError``, and of the class numpy's own ufuncs raise."""

    def __init__(self, text: str) -> None:
        TypeError.__init__(self, text)


_warned: set[str] = set()


def warn_slow(key: str, text: str) -> None:
    """Warn of a slow path, once per `key`, at the line that called into the package."""
    if key in _warned:
        return
    level, frame = 1, sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "fastgemm":
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, FastgemmPerformanceWarning, stacklevel=level)
    _warned.add(key)  # not reached where warnings are errors: those are raised every time
