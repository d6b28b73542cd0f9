"""fastgemm: tile-level GEMM machinery on CPU threads, and an accelerator compiler's instruction scheduler over kernel DAGs.

Names resolve on first use: importing the package imports neither numba nor anything that compiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import on_demand

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

if TYPE_CHECKING:  # for type checkers and editors
    from . import sched as sched
    from .api import matmul as matmul
    from .api import warmup as warmup
    from .arch import Arch as Arch
    from .arch import Tile as Tile
    from .arch import arch as arch
    from .config import clear_cache as clear_cache
    from .config import show_config as show_config
    from .errors import FastgemmPerformanceWarning as FastgemmPerformanceWarning
    from .gemm.threads import get_num_threads as get_num_threads
    from .gemm.threads import set_num_threads as set_num_threads
    from .gemm.threads import threads as threads
    from .plan import Plan as Plan
    from .plan import plan as plan
    from .policy import HostPanels as HostPanels
    from .policy import Pingpong as Pingpong
    from .policy import Preload as Preload
    from .policy import PreloadAsync as PreloadAsync
    from .policy import PreloadAsyncWithCallback as PreloadAsyncWithCallback
    from .selfcheck import selftest as selftest
    from .swizzle import AswtSwizzle as AswtSwizzle
    from .swizzle import ColumnBlockSwizzle as ColumnBlockSwizzle
    from .swizzle import DynamicIdentitySwizzle as DynamicIdentitySwizzle
    from .swizzle import IdentitySwizzle as IdentitySwizzle
    from .swizzle import L1FullLoadSwizzle as L1FullLoadSwizzle
    from .swizzle import RowMajor as RowMajor
    from .swizzle import SingleCoreSplitKSwizzle as SingleCoreSplitKSwizzle
    from .swizzle import SplitKSwizzle as SplitKSwizzle
    from .swizzle import StreamKSwizzle as StreamKSwizzle
    from .swizzle import TailSplitKSwizzle as TailSplitKSwizzle
    from .trace import TRACE_DTYPE as TRACE_DTYPE
    from .trace import Op as Op
    from .trace import trace as trace


__getattr__, __dir__ = on_demand(__name__, _NAMES, _MODULES)
