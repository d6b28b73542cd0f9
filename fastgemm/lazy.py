"""Public names of a package that are imported when they are first asked for: ``import fastgemm`` costs a millisecond, and only what
is used pays for numba."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["on_demand"]


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
    module = sys.modules[package]
    public = {*names, *modules}
    module.__dict__["_public"] = names
    module.__class__ = _Package

    def get(name: str) -> Any:
        if name not in public:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = import_module(f".{names.get(name, name)}", package)
        module.__dict__[name] = result = getattr(value, name) if name in names else value
        return result

    return get, lambda: sorted({*module.__dict__, *public})
