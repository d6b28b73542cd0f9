"""Profiles: which rungs a scheduler asks in which order, and which rules of the model it follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import layout as L
from .machine import COEXEC_CLASSES, Machine
from .model import DagError, Flavor, Reason

__all__ = ["Profile", "profile", "profiles", "rungs"]

_CRITICAL, _DEPENDENCY = Reason.CRIT_RESOURCE, Reason.CRIT_RESOURCE_DEP
# rung -> its steps and the reason each prints; the jitted side of a step is `fastgemm.sched.ladder_steps.step_key`
RUNGS: dict[str, tuple[tuple[int, Reason], ...]] = {
    "physreg": ((L.S_BIAS, Reason.PHYS_REG),),
    "excess": ((L.S_EXCESS, Reason.REG_EXCESS),),
    "stall": ((L.S_STALL, Reason.STALL),),
    "effective_stall": ((L.S_STALL, Reason.EFFECTIVE_STALL),),
    "stall_and_missed": ((L.S_COST, Reason.EFFECTIVE_STALL), (L.S_MISSED, Reason.EFFECTIVE_STALL)),
    "memory_pipeline": ((L.S_PIPELINE, Reason.MEMORY_PIPELINE),),
    "memory_pipeline_any": ((L.S_PIPELINE_ANY, Reason.MEMORY_PIPELINE),),
    "slot": ((L.S_SLOT, Reason.COEXEC_SLOT),),
    "kill_proximity": ((L.S_KILLS, Reason.REG_CRITICAL),),
    "shadow_mix": (
        (L.S_MIX_SCORE, Reason.SHADOW_MIX),
        (L.S_MIX_LOOK, Reason.SHADOW_MIX),
        (L.S_MIX_MATCH, Reason.SHADOW_MIX),
    ),
    "critical": ((L.S_RANK, _CRITICAL), (L.S_ENABLES_DS, _CRITICAL), (L.S_LISTED, _CRITICAL)),
    "critical_shared": ((L.S_RANK, _CRITICAL), (L.S_LISTED_WMMA, _CRITICAL)),
    "dependency": ((L.S_ENABLES, _DEPENDENCY),),
    "dependency_shared": ((L.S_ENABLES_ALL, _DEPENDENCY),),
    "loop_order": ((L.S_LOOP, _DEPENDENCY),),
    "priority": ((L.S_LISTED, _DEPENDENCY),),
    "cluster": ((L.S_CLUSTER, Reason.CLUSTER),),
    "weak": ((L.S_WEAK, Reason.WEAK),),
    "order": ((L.S_ORDER, Reason.ORDER),),
}
_MOST_STEPS = (L.M_CLASS - L.M_LADDER) // 2
_STALLS = {"fifo": L.K_FIFO, "fence": L.K_FENCE, "raw": L.K_RAW, "war": L.K_WAR, "carried": L.K_CARRIED}
_VECTOR_OPS = (L.G_WMMA, L.G_WMMA_FREE, L.G_TRANS, L.G_VALU1, L.G_VALUN)


@dataclass(frozen=True)
class Profile:
    """A scheduler: its ladder and the rules around it.

    `rungs` are names of `rungs()`.  `hazards` turns the pre-RA hazard state on.  `stalls` are the waits, beside ready cycle,
    matrix unit and hazards, that the effective stall counts: "fifo", "fence", "raw", "war", "carried".  `exposure` turns on
    the unit records of the late build (remaining and exposed cycles, roofline, planned windows); `ds_buffer` divides DS totals
    by the machine's FIFO.  `trans_blocks`, `vector_blocks`, `shadow_blocks` name the hazard groups that wait after a TRANS op,
    after a multi-cycle vector op, and in both shadows at once.
    """

    name: str
    rungs: tuple[str, ...]
    note: str = ""
    machine: str = "gfx1250"
    hazards: bool = True
    stalls: tuple[str, ...] = ()
    exposure: bool = False
    ds_buffer: bool = True
    scalar_wait: bool = False
    skip_implicit_def: bool = False
    fence_class: str = "SALU"
    valun_class: str = "VALU"
    trans_blocks: tuple[int, ...] = (L.G_TRANS, L.G_VALUN)
    vector_blocks: tuple[int, ...] = (*_VECTOR_OPS, L.G_VECTOR_COPY)
    shadow_blocks: tuple[int, ...] = (L.G_VALU1, L.G_VALUN, L.G_VECTOR_COPY, L.G_TRANS, L.G_WMMA, L.G_WMMA_FREE)
    large_region: int = 1 << 30  # nodes beyond which the look-ahead search visits only `search_budget` nodes
    search_budget: int = 32

    def __post_init__(self) -> None:
        for rung in self.rungs:
            if rung not in RUNGS:
                raise DagError(f"rung {rung!r} of profile {self.name!r} is none of {', '.join(RUNGS)}")
        if len(self.steps) > _MOST_STEPS:
            raise DagError(
                f"the rungs of profile {self.name!r} have {len(self.steps)} steps, {_MOST_STEPS} are possible"
            )
        for stall in self.stalls:
            if stall not in _STALLS:
                raise DagError(f"stall {stall!r} of profile {self.name!r} is none of {', '.join(_STALLS)}")

    @property
    def steps(self) -> tuple[tuple[int, Reason], ...]:
        """The steps of all rungs in order, each with the reason it prints."""
        return tuple(step for rung in self.rungs for step in RUNGS[rung])

    def replace(self, **changes: Any) -> Profile:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def without(self, *names: str) -> Profile:
        """A copy without some rungs."""
        missing = [name for name in names if name not in self.rungs]
        if missing:
            raise DagError(f"profile {self.name!r} has no rung {missing[0]!r}; it has {', '.join(self.rungs)}")
        return replace(self, rungs=tuple(rung for rung in self.rungs if rung not in names))

    def with_rung(self, name: str, *, before: str | None = None, after: str | None = None) -> Profile:
        """A copy with a rung added before or after another one, or at the end."""
        anchor = before or after
        if anchor is not None and anchor not in self.rungs:
            raise DagError(f"profile {self.name!r} has no rung {anchor!r}; it has {', '.join(self.rungs)}")
        place = len(self.rungs) if anchor is None else self.rungs.index(anchor) + (after is not None and before is None)
        return replace(self, rungs=(*self.rungs[:place], name, *self.rungs[place:]))

    def model(self, machine: Machine) -> NDArray[np.int64]:
        """The numbers the jitted scheduler reads: this profile on a machine."""
        return _model(self, machine)


def rungs() -> tuple[str, ...]:
    """Names of all rungs a profile can be made of."""
    return tuple(RUNGS)


_LATE = Profile(
    name="llvm24-late",
    note="The late compiler build of the corpus, pick for pick.",
    rungs=(
        "physreg",
        "excess",
        "stall_and_missed",
        "memory_pipeline",
        "slot",
        "shadow_mix",
        "critical_shared",
        "dependency_shared",
        "loop_order",
        "priority",
        "order",
    ),
    machine="llvm24-late",
    stalls=("fifo", "fence", "raw", "war"),
    exposure=True,
    scalar_wait=True,
    skip_implicit_def=True,
    fence_class="CTRL",
    trans_blocks=(L.G_TRANS, L.G_VALUN, L.G_DMA),
    vector_blocks=(*_VECTOR_OPS, L.G_DMA),
    shadow_blocks=(L.G_WMMA, L.G_WMMA_FREE),
    large_region=2048,
)
_EARLY_RUNGS = ("physreg", "excess", "stall", "critical", "dependency", "order")
_PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="llvm24-early",
            note="The early compiler build of the corpus, pick for pick.",
            rungs=_EARLY_RUNGS,
            machine="llvm24-early",
            hazards=False,
            ds_buffer=False,
        ),
        _LATE,
        Profile(
            name="upstream",
            note="The ladder of LLVM's own lit tests (background 2.2).",
            rungs=("physreg", "excess", "effective_stall", "critical", "dependency", "weak", "order"),
            machine="upstream",
            stalls=("fifo", "fence"),
        ),
        _LATE.replace(
            name="article",
            note="The late ladder with the published article's differences; no recorded schedule pins it.",
            machine="gfx1250",
            scalar_wait=False,
            skip_implicit_def=False,
            valun_class="",
            trans_blocks=(L.G_TRANS, L.G_VALUN),
            vector_blocks=(*_VECTOR_OPS, L.G_VECTOR_COPY),
            shadow_blocks=(L.G_VALU1, L.G_VALUN, L.G_VECTOR_COPY, L.G_TRANS, L.G_WMMA, L.G_WMMA_FREE),
            large_region=1 << 30,
        ),
    )
}


def profiles() -> tuple[str, ...]:
    """Names of the packaged profiles."""
    return tuple(_PROFILES)


def profile(name: str | Profile = "llvm24-late", *, rungs: Iterable[str] | None = None) -> Profile:
    """A packaged profile by name, optionally with another ladder; a `Profile` comes back as it is."""
    found = name if isinstance(name, Profile) else _PROFILES.get(name)
    if found is None:
        raise DagError(f"no profile called {name!r}; there are {', '.join(_PROFILES)}")
    return found if rungs is None else replace(found, name=f"{found.name} (own rungs)", rungs=tuple(rungs))


def _groups(names: Iterable[int]) -> int:
    return sum(1 << group for group in names)


# hazard group -> class; Fence and multi-cycle vector ops depend on the profile
_GROUP_CLASS = {
    L.G_WMMA: "WMMA",
    L.G_TRANS: "TRANS",
    L.G_VALU1: "VALU",
    L.G_VECTOR_COPY: "VALU",
    L.G_DMA: "VALU",
    L.G_DS: "DS",
    L.G_VMEM: "VMEM",
    L.G_SMEM: "SMEM",
    L.G_SALU: "SALU",
    L.G_SALU_FREE: "SALU",
    L.G_OTHER: "CTRL",
    L.G_OTHER_FREE: "CTRL",
    L.G_WMMA_FREE: "WMMA",
}
_FLAVOR_GROUP = (
    L.G_WMMA,
    L.G_VALU1,
    L.G_TRANS,
    L.G_VALUN,
    L.G_VMEM,
    L.G_SMEM,
    L.G_DS,
    L.G_SALU,
    L.G_DMA,
    L.G_FENCE,
    L.G_OTHER,
)
_NOWHERE = 7 + 1  # a class no stage admits


@lru_cache(maxsize=64)
def _model(profile: Profile, machine: Machine) -> NDArray[np.int64]:
    tables = machine.tables
    m = np.zeros(L.M_WINDOWS + len(machine.windows) * L.WINDOW_WORDS, dtype=np.int64)
    data = machine.data
    m[L.M_HAZARDS], m[L.M_EXPOSURE] = profile.hazards, profile.exposure
    m[L.M_STALLS] = sum(1 << _STALLS[name] for name in profile.stalls)
    m[L.M_DS_BUFFER] = machine.ds_fifo if profile.ds_buffer else 0
    m[L.M_AVAILABLE_LIMIT], m[L.M_GATE] = machine.available_limit, machine.pressure_gate
    m[L.M_TRANS_SHADOW] = data["trans_shadow"]
    if profile.scalar_wait:
        m[L.M_AFTER_READ], m[L.M_AFTER_WRITE] = data["scalar_after_read"], data["scalar_after_write"]
    m[L.M_VISIBLE], m[L.M_VISIBLE_WMMA] = data["visible_latency"]
    m[L.M_TRANS_GROUPS], m[L.M_VECTOR_GROUPS] = _groups(profile.trans_blocks), _groups(profile.vector_blocks)
    m[L.M_SCALAR_GROUPS] = _groups((L.G_SALU, L.G_FENCE, L.G_OTHER))
    m[L.M_SHADOW_GROUPS], m[L.M_SKIP_STEP] = _groups(profile.shadow_blocks), profile.skip_implicit_def
    m[L.M_LARGE], m[L.M_BUDGET] = profile.large_region, profile.search_budget
    steps = profile.steps
    own = [reason < Reason.EFFECTIVE_STALL for _, reason in steps]
    m[L.M_STEPS], m[L.M_OWN_STEPS] = len(steps), own.index(False) if False in own else len(steps)
    m[L.M_LADDER : L.M_LADDER + 2 * len(steps)] = np.array(steps, dtype=np.int64).ravel()
    classes = {
        **_GROUP_CLASS,
        L.G_VALUN: profile.valun_class,
        L.G_FENCE: profile.fence_class,
        L.G_FENCE_FREE: profile.fence_class,
    }
    number = {name: i for i, name in enumerate(COEXEC_CLASSES)} | {"": _NOWHERE}
    for group, name in classes.items():
        m[L.M_CLASS + group] = number[name]
    for flavor in Flavor:
        m[L.M_FLAVOR_CLASS + flavor] = number[classes[_FLAVOR_GROUP[flavor]]]
    kinds = [int(sum(1 << number[c] for c in ("CTRL", "SALU", "DS", "VMEM", "SMEM"))), 0xFF & ~(1 << number["TRANS"])]
    for row in range(len(machine.windows)):
        base = L.M_WINDOWS + row * L.WINDOW_WORDS
        length = int(tables.length[row])
        counts = tables.counts[row, :length]
        m[base : base + 3] = length, int((counts == 1).sum()), int(((counts >= 2) & (counts <= 4)).sum())
        for stage in range(length):
            admits = int(tables.admits[row, stage])
            if admits not in kinds:
                kinds.append(admits)
            waits = [_wait(tables.admits[row, :length], stage, c) for c in range(L.CLASSES + 1)]
            words = [
                admits,
                counts[stage],
                tables.prefer[row, stage],
                tables.avoid[row, stage],
                kinds.index(admits),
                *waits,
            ]
            m[base + 4 + stage * L.STAGE : base + 4 + (stage + 1) * L.STAGE] = words
    if len(kinds) > 22:
        raise DagError(f"machine {machine.name!r} has {len(kinds)} different sets of admitted classes; 22 are possible")
    m[L.M_KINDS] = len(kinds)
    m[L.M_KIND_ADMITS : L.M_KIND_ADMITS + len(kinds)] = kinds
    m.setflags(write=False)
    return m


def _wait(admits: NDArray[np.int64], stage: int, kind: int) -> int:
    """Cycles from a stage to the next one that admits a class, else to the window's end."""
    for later in range(stage, admits.size):
        if admits[later] >> kind & 1:
            return later - stage
    return int(admits.size) - stage
