"""What the package found on this machine and what it would use: ``show_config`` and ``clear_cache``."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, overload

from . import store

__all__ = ["clear_cache", "config_text", "host_name", "show_config"]

_VERSIONS = ("numpy", "numba", "llvmlite")
_OPTIONAL = ("rich", "threadpoolctl", "matplotlib", "pyarrow", "ml_dtypes", "scipy")
# every variable the package reads
_ENVIRONMENT = (
    "FASTGEMM_ISA",
    "FASTGEMM_NUM_THREADS",
    "FASTGEMM_POOL",
    "FASTGEMM_CACHE_DIR",
    "FASTGEMM_TRACEBACK",
    "NUMBA_CACHE_DIR",
    "NUMBA_DISABLE_JIT",
    "OMP_NUM_THREADS",
)
# the instruction-set extensions worth naming: what the kernels of the table, present or to come, ask for
_FEATURES = ("avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512dq", "avx512bw", "avx512vnni", "avx512bf16", "avx512fp16",
             "avxvnni", "amx-tile", "amx-int8", "amx-bf16", "neon", "dotprod", "i8mm", "bf16", "sve", "sve2")  # fmt: skip


@lru_cache(maxsize=1)
def host_name() -> str:
    """The processor as its maker calls it, with what LLVM calls its kind."""
    import llvmlite.binding as llvm

    name = ""
    if sys.platform == "linux":
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:
            lines = []
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{name or platform.processor() or platform.machine()} ({llvm.get_host_cpu_name()})"


def clear_cache() -> int:
    """Remove the compiled code kept on disk, that of older versions too; returns the bytes freed.

    Code already loaded by this process stays in use.
    """
    return store.clear()


@overload
def show_config(mode: Literal["stdout"] = "stdout") -> None: ...
@overload
def show_config(mode: Literal["dicts"]) -> dict[str, Any]: ...
def show_config(mode: Literal["stdout", "dicts"] = "stdout") -> dict[str, Any] | None:
    """Print what the package found and would use, or return it as nested dicts (``mode="dicts"``), as ``numpy.show_config`` does.

    Sections: ``versions``, ``host`` (processor, features, caches), ``kernels`` (the row in use and why, the rows this machine can
    run, the register tiles per element type), ``threads`` (count, where it came from, the pool), ``cache`` (folder, bytes,
    writable), ``environment`` (the variables that are set).  Raises ValueError for another mode.
    """
    if mode not in ("stdout", "dicts"):
        raise ValueError(f"mode is {mode!r}; choose 'stdout' or 'dicts'")
    from .gemm import threads

    facts = {
        "versions": _versions(),
        "host": _host(),
        "kernels": _kernels(),
        "threads": threads.describe(),
        "cache": _cache(),
        "environment": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
    }
    if mode == "dicts":
        return facts
    print(config_text(facts))
    return None


def _versions() -> dict[str, Any]:
    from . import __version__

    found: dict[str, Any] = {"fastgemm": __version__, "python": platform.python_version()}
    for name in _VERSIONS + _OPTIONAL:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            if name in _VERSIONS:
                found[name] = None
    found["free_threaded"] = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return found


def _host() -> dict[str, Any]:
    import llvmlite.binding as llvm

    from .arch import arch

    features = llvm.get_host_cpu_features()
    profile = arch("host")
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": host_name(),
        "features": [name for name in _FEATURES if features.get(name)],
        "caches": {"l1d": profile.l1d, "l2": profile.l2, "last_level": profile.llc_bytes},
        "buffers": {"l1": profile.l1, "l0a": profile.l0a, "l0b": profile.l0b, "l0c": profile.l0c},
    }


def _kernels() -> dict[str, Any]:
    from .gemm import table

    row = table.ISAS[table.host_isa()]
    forced = os.environ.get("FASTGEMM_ISA")
    return {
        "row": row.name,
        "why": "FASTGEMM_ISA is set" if forced else "the best of the rows this machine can run",
        "usable": list(table.usable_isas()),
        "vector_bits": row.bits,
        "fused_multiply_add": row.fma,
        "elements": {
            element.dtype.name: [f"{rows}x{vecs}" for vecs, rows in _tiles(row, element).items()]
            for element in table.ELEMENTS.values()
        },
    }


def _tiles(row: Any, element: Any) -> dict[int, int]:
    """Vectors -> rows of the register tiles; a complex row takes two real ones."""
    return {vecs: rows // (2 if element.paired else 1) for vecs, rows in row.tiles.items()}


def _cache() -> dict[str, Any]:
    folder = store.cache_dir()
    parent = next((place for place in (folder, *folder.parents) if place.exists()), None)
    return {
        "folder": str(folder),
        "bytes": store.size(),
        "bytes_of_all_versions": store.size(all_versions=True),
        "writable": parent is not None and os.access(parent, os.W_OK),
    }


def config_text(facts: dict[str, Any]) -> str:
    """The dicts of :func:`show_config` as indented text."""
    lines: list[str] = []
    _lines(facts, "", lines)
    return "\n".join(lines)


def _lines(facts: dict[str, Any], indent: str, lines: list[str], *, in_bytes: bool = False) -> None:
    width = max((len(str(key)) for key, value in facts.items() if not isinstance(value, dict)), default=0)
    for key, value in facts.items():
        if isinstance(value, dict):
            lines.append(f"{indent}{key}:" + ("" if value else " none set"))
            _lines(value, indent + "  ", lines, in_bytes=key in ("caches", "buffers"))
        else:
            words = _size(value) if in_bytes or key.startswith("bytes") else _words(value)
            lines.append(f"{indent}{str(key):<{width}}  {words}")


def _size(count: int) -> str:
    """Bytes as a person reads them: 32 KiB, 1 MiB, 33.9 MiB."""
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.4g} {unit}"


def _words(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(str(item) for item in value) or "none"
    if value is None:
        return "none"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
