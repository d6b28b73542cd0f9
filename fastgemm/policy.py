"""Dispatch policies: in which order a core stages tiles, multiplies, writes back and calls back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from .layout import (
    P_CALLBACK,
    P_POLICY,
    P_PRELOAD,
    P_SHUFFLE,
    P_STAGE_A,
    P_STAGE_B,
    P_STAGES,
    PolicyId,
    Realised,
)

__all__ = ["HostPanels", "Pingpong", "Policy", "Preload", "PreloadAsync", "PreloadAsyncWithCallback"]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the policies have in common."""

    id: ClassVar[PolicyId]
    staging: str = "auto"

    def resolved_shuffle(self, reproducible: bool) -> bool:
        return False

    def fields(self, *, host: bool, reproducible: bool) -> dict[int, int]:
        """Values for the P vector."""
        in_place = host and self.staging == "auto"
        return {
            P_POLICY: self.id,
            P_STAGES: getattr(self, "stages", getattr(self, "l1_stages", 1)),
            P_PRELOAD: getattr(self, "preload_stages", 1),
            P_SHUFFLE: self.resolved_shuffle(reproducible),
            P_CALLBACK: self.id == PolicyId.PRELOAD_ASYNC_WITH_CALLBACK,
            P_STAGE_A: Realised.IN_PLACE if in_place else Realised.COPIED,
            P_STAGE_B: Realised.CACHED if in_place else Realised.COPIED,
        }


@dataclass(frozen=True)
class Pingpong(Policy):
    id: ClassVar[PolicyId] = PolicyId.PINGPONG
    stages: int = 2
    unit_flag: bool | None = None


@dataclass(frozen=True)
class Preload(Policy):
    id: ClassVar[PolicyId] = PolicyId.PRELOAD
    stages: int = 2
    unit_flag: bool | None = None
    shuffle_k: bool | None = None

    def resolved_shuffle(self, reproducible: bool) -> bool:
        return not reproducible if self.shuffle_k is None else self.shuffle_k


@dataclass(frozen=True)
class PreloadAsync(Policy):
    id: ClassVar[PolicyId] = PolicyId.PRELOAD_ASYNC
    preload_stages: int = 1
    l1_stages: int = 2
    l0a_stages: int = 2
    l0b_stages: int = 2
    l0c_stages: int = 1
    unit_flag: bool | None = False
    shuffle_k: bool | None = None

    def resolved_shuffle(self, reproducible: bool) -> bool:
        return not reproducible if self.shuffle_k is None else self.shuffle_k


@dataclass(frozen=True)
class PreloadAsyncWithCallback(PreloadAsync):
    id: ClassVar[PolicyId] = PolicyId.PRELOAD_ASYNC_WITH_CALLBACK
    before: Callable[..., Any] | None = None
    after: Callable[..., Any] | None = None


@dataclass(frozen=True)
class HostPanels(Policy):
    id: ClassVar[PolicyId] = PolicyId.HOST_PANELS
    kc: int | None = None
    pack_b: bool | None = None
    chunks: int | None = None

    def fields(self, *, host: bool, reproducible: bool) -> dict[int, int]:
        fields = super().fields(host=host, reproducible=reproducible)
        fields[P_STAGE_A] = Realised.IN_PLACE
        fields[P_STAGE_B] = Realised.IN_PLACE if self.pack_b is False else Realised.CACHED
        return fields
