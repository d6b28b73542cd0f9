"""Slow, obvious twins of what the package computes: one section per part, each name that of its quick twin."""

from __future__ import annotations

import numpy as np

# --- matmul: three loops over Python numbers -------------------------------------------------------------------------------


def matmul(a, b):
    """The product of two 2-D arrays of one dtype: integers modulo their width, bool by or and and, floats in double."""
    dtype = a.dtype
    out = np.zeros((a.shape[0], b.shape[1]), dtype)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            if dtype.kind == "b":
                out[i, j] = any(x and y for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True))
            elif dtype.kind in "iu":
                total = sum(x * y for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True))
                total &= 2 ** (8 * dtype.itemsize) - 1
                out[i, j] = np.array(total, f"u{dtype.itemsize}").view(dtype)
            else:
                total = 0.0
                for x, y in zip(a[i].tolist(), b[:, j].tolist(), strict=True):
                    total += x * y
                out[i, j] = total
    return out
