"""Warnings and exceptions of the package, as classes of its own so that they can be filtered and caught by class."""

from __future__ import annotations

try:  # numpy keeps its class private; being one of it lets code written against np.matmul catch ours
    from numpy._core._exceptions import UFuncTypeError as _NumpyTypeError
except ImportError:  # pragma: no cover - a numpy that has moved it
    _NumpyTypeError = TypeError

__all__ = ["FastgemmPerformanceWarning", "MatmulTypeError"]


class FastgemmPerformanceWarning(UserWarning):
    """A slow path was taken; the text says which and why."""


class MatmulTypeError(_NumpyTypeError):
    """A dtype that `matmul` cannot take or cast: a ``TypeError``, and of the class numpy's own ufuncs raise."""

    def __init__(self, text: str) -> None:
        TypeError.__init__(self, text)
