"""Jitted functions that test processes compile or load, kept apart from pytest so that a process starts quickly."""

from __future__ import annotations

import numba

from fastgemm import store
from fastgemm.jit import njit


@njit
def _third(x):
    return 3 * x


@njit
def weigh(x, y):
    return _third(x) + y


def scaler(factor):
    """A factory: its functions have one name and differ in a closure value."""

    @njit
    def scaled(x):
        return factor * x

    return scaled


def compute() -> str:
    """Results of all functions here, which compile or load what they need."""
    return f"{weigh(2, 5)} {weigh(0.5, 1.0)} {scaler(2)(10)} {scaler(7)(10)}"


EXPECTED = "11 2.5 20 70"


def compute_without_compiler() -> str:
    """The same in a process that may only load."""

    def refuse(*args, **keywords):
        raise AssertionError("compiled although the cache holds it")

    numba.core.compiler.compile_extra = refuse
    return compute()


def entries() -> int:
    return len(list(store.cache_dir().glob("*.bin")))
