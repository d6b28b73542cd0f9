"""The scheduler half of fastgemm: kernel DAGs, machines as data, AMD's CoExec pre-RA scheduler, DAG mutations, evaluation.

Names resolve on first use, so that importing the package compiles nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

# public name -> module that defines it
_NAMES = {
    "Dag": "dag",
    **dict.fromkeys(["DagError", "EdgeKind", "Flag", "Flavor", "OperandKind", "Reason"], "model"),
    **dict.fromkeys(["Machine", "machine", "machines"], "machine"),
    **dict.fromkeys(["Region", "read_corpus"], "corpus"),
    **dict.fromkeys(["Schedule", "schedule"], "scheduling"),
    **dict.fromkeys(["Profile", "profile", "profiles", "rungs"], "ladders"),
    **dict.fromkeys(["Replay", "fidelity", "replay"], "replaying"),
    **dict.fromkeys(["Batch", "schedule_batch"], "batching"),
    **dict.fromkeys(["load", "save"], "files"),
    **dict.fromkeys(["mutate", "mutations"], "mutation"),
    **dict.fromkeys(["Evaluation", "evaluate"], "evaluation"),
    **dict.fromkeys(["StaticMachine", "static_machine"], "inorder"),
    **dict.fromkeys(["Bounds", "bounds"], "lower_bounds"),
    **dict.fromkeys(["compare", "report"], "comparison"),
}
_MODULES = ("synthetic",)

__all__ = [*_NAMES, *_MODULES]

if TYPE_CHECKING:
    from .dag import Dag as Dag
    from .machine import Machine as Machine
    from .machine import machine as machine


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(f".{_NAMES[name]}", __name__), name)
    elif name in _MODULES:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps `fastgemm.sched.machine` the public function once the module of the same name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _NAMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
