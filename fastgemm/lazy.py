"""Modules and public names that are imported when they are first asked for: ``import fastgemm`` costs a millisecond, and only what
is used pays for numba."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from .forks import hold_across_forks

__all__ = ["module", "on_demand"]

_importing = threading.RLock()


@cache
def _hold() -> None:
    """Not at import: it costs some milliseconds."""
    hold_across_forks(_importing)


def module(name: str, package: str) -> ModuleType:
    """Import a module of the package.

    A fork in another thread waits for it: the child would inherit a lock of the import system that nobody there gives back.
    """
    _hold()
    with _importing:
        return import_module(name, package)


class _Package(ModuleType):
    """Keeps a public name (``fastgemm.trace``, ``fastgemm.sched.machine``) what it is once the module of the same name is imported.

    The import system binds a submodule on its package under the submodule's name; here the public name wins.
    """

    _public: Mapping[str, str]

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in self._public):
            super().__setattr__(name, value)


def on_demand(
    package: str, names: Mapping[str, str], modules: Iterable[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package; ``names`` are its public objects and the modules in it that hold them."""
    own = sys.modules[package]
    public = {*names, *modules}
    own.__dict__["_public"] = names
    own.__class__ = _Package

    def get(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = module(f".{names.get(name, name)}", package)
        own.__dict__[name] = result = getattr(value, name) if name in names else value
        return result

    return get, lambda: sorted({*own.__dict__, *public})
