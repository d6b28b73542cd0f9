"""The keywords of `matmul` and `plan`, read and checked once.

:class:`Options` is what the engine sees: policy, swizzle, tile and the like. :class:`Request` adds what numpy's matmul has as well,
which is settled before the engine.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np

from .dtypes import as_dtype
from .lazy import module

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from .arch import Arch, Tile
    from .policy import Policy
    from .swizzle import Swizzle

__all__ = ["DEFAULTS", "DEFAULT_REQUEST", "KEYWORDS", "MatmulOptions", "Options", "Request", "matmul_signature"]


class MatmulOptions(TypedDict, total=False):
    """The keywords of :func:`fastgemm.matmul` and :func:`fastgemm.plan`."""

    policy: Policy | Literal["auto"]
    swizzle: Swizzle | Literal["auto"]
    tile: Tile | tuple[int, int, int] | None
    cores: int | None
    threads: int | None
    dtype: DTypeLike | None
    acc_dtype: DTypeLike | None
    casting: Literal["no", "equiv", "safe", "same_kind", "unsafe"]
    order: Literal["K", "A", "C", "F"] | None
    axes: list[Any] | None
    arch: str | Arch
    epilogue: None
    reproducible: bool


KEYWORDS: dict[str, Any] = {
    "policy": "auto",
    "swizzle": "auto",
    "tile": None,
    "cores": None,
    "threads": None,
    "dtype": None,
    "acc_dtype": None,
    "casting": "same_kind",
    "order": "K",
    "axes": None,
    "arch": "host",
    "epilogue": None,
    "reproducible": False,
}


def matmul_signature(out: bool = True) -> inspect.Signature:
    """``(a, b, out=None, *, policy='auto', ...)``, or without `out`: what ``help()`` and editors show."""
    plain, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("a", plain), inspect.Parameter("b", plain)]
    if out:
        parameters.append(inspect.Parameter("out", plain, default=None))
    hints = MatmulOptions.__annotations__
    for name, default in KEYWORDS.items():
        hint = hints[name]
        annotation = hint.__forward_arg__ if hasattr(hint, "__forward_arg__") else hint
        parameters.append(inspect.Parameter(name, keyword, default=default, annotation=annotation))
    return inspect.Signature(parameters)


@dataclass(frozen=True)
class Options:
    """How the engine is to run: every value checked, ``"auto"`` and None where the engine chooses."""

    policy: Policy | Literal["auto"] = "auto"
    swizzle: Swizzle | Literal["auto"] = "auto"
    tile: Tile | None = None
    cores: int | None = None
    threads: int | None = None
    arch: str | Arch = "host"
    reproducible: bool = False


@dataclass(frozen=True)
class Request:
    """All keywords of one call, checked for themselves; whether they suit the operands is seen when those are known."""

    engine: Options
    dtype: np.dtype[Any] | None = None
    acc_dtype: np.dtype[Any] | None = None
    casting: str = "same_kind"
    order: str | None = "K"
    axes: list[Any] | None = field(default=None, hash=False)

    @classmethod
    def read(cls, function: str, keywords: Mapping[str, Any]) -> Request:
        """The request of these keywords; `function` is named where one is unknown."""
        if not keywords:
            return DEFAULT_REQUEST
        key = (function, *[(name, value, value.__class__) for name, value in keywords.items()])
        if all(entry[2] in _PLAIN for entry in key[1:]):
            return _read_once(key)
        return cls._read(function, keywords)

    @classmethod
    def _read(cls, function: str, keywords: Mapping[str, Any]) -> Request:
        unknown = keywords.keys() - KEYWORDS.keys()
        if unknown:
            raise TypeError(
                f"{function}() got an unexpected keyword argument {min(unknown)!r}; the keywords are {', '.join(KEYWORDS)}"
            )
        if keywords.get("epilogue") is not None:
            raise ValueError(
                f"{function}: epilogue={keywords['epilogue']!r}: fused epilogues do not exist yet; only None is taken"
            )
        dtype, acc_dtype = keywords.get("dtype"), keywords.get("acc_dtype")
        return cls(
            engine=_read_options(function, keywords),
            dtype=None if dtype is None else as_dtype(dtype, "dtype"),
            acc_dtype=None if acc_dtype is None else as_dtype(acc_dtype, "acc_dtype"),
            casting=keywords.get("casting", "same_kind"),
            order=keywords.get("order", "K"),
            axes=keywords.get("axes"),
        )


# Keywords of these types only are read once for all calls that give the same; objects with state of their own never are, and
# nothing a caller made is kept alive.
_PLAIN = frozenset((bool, int, str, type, type(None)))


@lru_cache(maxsize=512)
def _read_once(key: tuple[Any, ...]) -> Request:
    return Request._read(key[0], {name: value for name, value, _ in key[1:]})


def _read_options(function: str, keywords: Mapping[str, Any]) -> Options:
    arch = keywords.get("arch", "host")
    if arch != "host":
        module(".arch", __package__).arch(arch)  # raises for what is none; a name stays a name, which pickles
    reproducible = keywords.get("reproducible", False)
    if not isinstance(reproducible, bool | np.bool_):
        raise TypeError(f"{function}: reproducible must be True or False, not {reproducible!r}")
    options = Options(
        policy=_policy(function, keywords.get("policy", "auto")),
        swizzle=_swizzle(function, keywords.get("swizzle", "auto")),
        tile=_tile(function, keywords.get("tile")),
        cores=_count(function, "cores", keywords.get("cores")),
        threads=_count(function, "threads", keywords.get("threads")),
        arch=arch,
        reproducible=bool(reproducible),
    )
    return DEFAULTS if options == DEFAULTS else options


def _count(function: str, name: str, value: Any) -> int | None:
    if value is None:
        return None
    try:
        count = operator.index(value)
    except TypeError:
        count = 0
    if count < 1 or isinstance(value, bool):
        kind = TypeError if isinstance(value, bool) or not hasattr(value, "__index__") else ValueError
        raise kind(f"{function}: {name} must be None or an integer of at least 1, not {value!r}")
    return count


def _policy(function: str, value: Any) -> Any:
    if isinstance(value, str) and value == "auto":
        return value
    if not isinstance(value, module(".policy", __package__).Policy):
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(f'{function}: policy must be "auto" or a dispatch policy such as fastgemm.Pingpong(), not {value!r}')
    return value


def _swizzle(function: str, value: Any) -> Any:
    if isinstance(value, str) and value == "auto":
        return value
    swizzles = module(".swizzle", __package__)
    if isinstance(value, swizzles.DynamicIdentitySwizzle):  # a call and a plan take its parameters as they are now
        return swizzles.IdentitySwizzle(value.offset, value.direction)
    if not isinstance(value, swizzles.Swizzle):
        kind = ValueError if isinstance(value, str) else TypeError
        raise kind(
            f'{function}: swizzle must be "auto" or a block scheduler such as fastgemm.IdentitySwizzle(3, 0), not {value!r}'
        )
    return value


def _tile(function: str, value: Any) -> Any:
    if value is None:
        return None
    kind = module(".arch", __package__).Tile
    if isinstance(value, kind):
        return value
    if isinstance(value, tuple | list) and len(value) == 3:
        extents = tuple(_count(function, f"tile[{i}]", extent) for i, extent in enumerate(value))
        if None not in extents:
            return kind(l1=extents)
    raise TypeError(
        f"{function}: tile must be None, a fastgemm.Tile, or the extents (m, n, k) of a block, not {value!r}"
    )


DEFAULTS = Options()
DEFAULT_REQUEST = Request(DEFAULTS)
