"""fastgemm: tile-level GEMM machinery on CPU threads, and an accelerator compiler's instruction scheduler over kernel DAGs.

Names resolve on first use: importing the package imports neither numba nor anything that compiles.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# public name -> module that defines it
_NAMES = {
    **dict.fromkeys(["matmul", "warmup"], "api"),
    **dict.fromkeys(["plan", "Plan"], "plan"),
    **dict.fromkeys(
        ["Pingpong", "Preload", "PreloadAsync", "PreloadAsyncWithCallback", "HostPanels"],
        "policy",
    ),
    **dict.fromkeys(["arch", "Arch", "Tile"], "arch"),
    **dict.fromkeys(
        [
            "IdentitySwizzle",
            "DynamicIdentitySwizzle",
            "RowMajor",
            "SplitKSwizzle",
            "TailSplitKSwizzle",
            "StreamKSwizzle",
            "SingleCoreSplitKSwizzle",
            "L1FullLoadSwizzle",
            "ColumnBlockSwizzle",
            "AswtSwizzle",
        ],
        "swizzle",
    ),
    **dict.fromkeys(["trace", "TRACE_DTYPE", "Op"], "trace"),
    **dict.fromkeys(["threads", "set_num_threads", "get_num_threads"], "gemm.threads"),
    **dict.fromkeys(["show_config", "clear_cache"], "config"),
    "selftest": "selfcheck",
    "FastgemmPerformanceWarning": "errors",
}
_MODULES = ("sched",)

__all__ = ["__version__", *_NAMES, *_MODULES]

if TYPE_CHECKING:
    from . import sched as sched
    from .api import matmul as matmul
    from .api import warmup as warmup


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        value = getattr(import_module(f".{_NAMES[name]}", __name__), name)
    elif name in _MODULES:
        value = import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'fastgemm' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(ModuleType):
    """Keeps `fastgemm.trace`, `.plan` and `.arch` the public functions once the modules of the same names are imported.

    The import system binds a submodule on its package under the submodule's name; here the public name wins.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _NAMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
