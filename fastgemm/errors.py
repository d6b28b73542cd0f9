"""Warnings of the package, so that they can be filtered by class."""

__all__ = ["FastgemmPerformanceWarning"]


class FastgemmPerformanceWarning(UserWarning):
    """A slow path was taken; the text says which and why."""
