"""How the package's functions are compiled: one decorator owns target options, caching and the fastmath decision.

A kernel is a plain function under ``@njit``.  Every jitted function of the package is compiled with ``nogil=True`` (worker
threads run them), ``fastmath=False`` (NaN and infinity come through, nothing is reassociated), ``error_model="numpy"`` (no
division check in inner loops) and an on-disk cache that a damaged, read-only or missing folder cannot turn into a failure.

Numba's own cache watches one file, shares entries between closures (numba#6093) and raises on a damaged index; entries here
are keyed by the digest of the whole package (:func:`fastgemm.store.source_stamp`) and checked before they are unpickled.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numba
from numba.core import serialize, sigutils
from numba.core.ccallback import CFunc
from numba.core.compiler_lock import global_compiler_lock

from . import store
from .forks import hold_across_forks
from .pipeline import Pipeline

__all__ = ["cfunc", "njit"]

hold_across_forks(global_compiler_lock)


def _content(function: Callable[..., Any]) -> str:
    """A digest of what neither the name nor the package's stamp shows.

    That is the values a closure holds (two functions of one factory have one name), and, for a function from outside the
    package, the file it stands in.
    """
    digest = hashlib.sha256(function.__code__.co_code)
    if not store.is_own(function.__code__.co_filename):
        try:
            digest.update(Path(function.__code__.co_filename).read_bytes())
        except OSError:  # typed into a session
            digest.update(repr(function.__code__.co_consts).encode())
    if function.__closure__:
        digest.update(serialize.dumps(tuple(cell.cell_contents for cell in function.__closure__)))
    return digest.hexdigest()


class _DiskCache:
    """The cache protocol numba's dispatchers speak, over :mod:`fastgemm.store`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._name = function.__qualname__.replace("<locals>", "").replace(".", "_")
        self._where = f"{function.__module__}.{function.__qualname__}:{function.__code__.co_firstlineno}"

    @property
    def cache_path(self) -> str:
        return str(store.cache_dir())

    def _key(self, signature: Any, codegen: Any) -> str:
        return f"{self._where}|{_content(self._function)}|{signature}|{codegen.magic_tuple()}"

    def load_overload(self, signature: Any, context: Any) -> Any:
        context.refresh()
        payload = store.read(self._name, self._key(signature, context.codegen()))
        if payload is None:
            return None
        try:
            return numba.core.compiler.CompileResult._rebuild(context, *pickle.loads(payload))
        except Exception:  # an entry written by something else: compile again
            return None

    def save_overload(self, signature: Any, result: Any) -> None:
        if result.library.has_dynamic_globals or any(not lifted.can_cache for lifted in result.lifted):
            raise RuntimeError(
                f"{self._where} holds an address as a constant and cannot be cached; pass it as an argument"
            )
        payload = serialize.dumps(result._reduce())
        store.write(self._name, self._key(signature, result.codegen), payload)

    def enable(self) -> None: ...

    def disable(self) -> None: ...

    def flush(self) -> None: ...


def njit(function: Callable[..., Any] | None = None, *, nogil: bool = True, **options: Any) -> Any:
    """Compile a function in nopython mode with the package's options; usable bare or with keywords."""
    if function is None:
        return lambda real: njit(real, nogil=nogil, **options)
    options.setdefault("fastmath", False)
    options.setdefault("error_model", "numpy")
    options.setdefault("pipeline_class", Pipeline)
    options.setdefault("no_cfunc_wrapper", True)  # for functions as values, which no one takes: 9 ms each
    dispatcher = numba.njit(nogil=nogil, **options)(function)
    dispatcher._cache = _DiskCache(function)
    return dispatcher


class _Callback:
    """A C callback compiled (or loaded from disk) when its address is first asked for."""

    address: int

    def __init__(self, signature: Any, function: Callable[..., Any]) -> None:
        self.py_func = function
        self._signature = signature

    def __getattr__(self, name: str) -> Any:
        if name != "address":
            raise AttributeError(name)
        with global_compiler_lock:  # the one lock a fork waits for (a cached_property brings another in Python 3.11)
            if "address" not in self.__dict__:
                self.address = self._compile()
        return self.__dict__["address"]

    def _compile(self) -> int:
        options = {"nogil": True, "fastmath": False, "error_model": "numpy"}
        signature = sigutils.normalize_signature(self._signature)
        callback: Any = CFunc(self.py_func, signature, locals={}, options=options, pipeline_class=Pipeline)
        callback._cache = _DiskCache(self.py_func)
        callback.compile()
        self._keep = callback
        return int(callback.address)


def cfunc(signature: Any) -> Callable[[Callable[..., Any]], _Callback]:
    """A C callback of the given signature; ``.address`` compiles it and is what other code calls."""
    return partial(_Callback, signature)
