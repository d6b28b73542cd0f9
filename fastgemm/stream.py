"""The op stream: what every core does, op by op, from one problem, one tile, one scheduler and one policy.

Three flat int64 vectors, all numbers at named indices of `fastgemm.layout` (re-exported here):

``P = encode(problem, tile, policy=..., swizzle=..., cores=...)``
    one problem and everything that decides its order.  Read only; all cores and threads share it.
``S = new_state(P)``; ``start(P, core, S)``
    the state of one core's machine.  `start` resets it, so one S serves any number of cores in turn; two threads need two.
``op = new_op()``; ``advance(P, S, op) -> bool``
    writes the core's next op; False when the core is done (and again for every further call).  Nothing is allocated and S
    holds everything, so a consumer may stop after any op (to call back into Python at BEFORE and AFTER) and go on later.

Fields of an op (`op[OP]`, ...):

======================  ================================================================================================
OP                      LOAD_A, LOAD_B, MMAD, STORE, BEFORE or AFTER
TASK, BATCH, GROUP      task number counted through the batches, batch, group
M, N, K                 coordinates in tiles; K of STORE, BEFORE and AFTER is the first K tile of the piece
M0, ROWS, N0, COLS      the rows and columns covered, in elements (tails are already short)
K0, KLEN                the K range in elements: of the tile; for STORE, BEFORE and AFTER of the whole piece
SLOT, SLOT_B            L1 slots.  SLOT_B differs from SLOT only where B has its own slots (REALISED below)
FIRST, LAST             on loads and MMAD: first and last *executed* K step of the piece.  MMAD with FIRST resets the
                        accumulator (K may be any tile under ShuffleK); after MMAD with LAST the result is complete
PART, PARTS             the piece is part PART of PARTS along K: with PARTS > 1 the store is a partial result
REALISED                of a load: COPIED into the slot, IN_PLACE (a view), CACHED (the slot still holds the tile)
======================  ================================================================================================

A piece with an empty K range makes no load and no MMAD; its STORE has KLEN 0 and stores zeros.

Scheduler side: ``core_steps(P, core)`` and ``core_piece(P, core, step, out, at=0) -> number of pieces`` (PIECE_* fields, up
to MAX_PIECES pieces of PIECE_SIZE numbers from out[at]; there must be room for MAX_PIECES).

Slots.  Under `staging="copy"` A and B of a tile share the slot number of the policy's ring (P_STAGES slots of one A and one B
tile).  Under `staging="auto"` on a host A is a view and B has P_SLOTS_B slots of its own, replaced least recently used, so a
tile that is still there is not packed again.  HostPanels has one B slot per block column (slot = N) and P_SLOTS_B columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from . import layout as L
from .jit import njit
from .layout import *  # noqa: F403
from .layout import PolicyId
from .machines import emit, host_panels, pingpong, preload, preload_async
from .schedule_maps import piece_of, steps_of
from .scheduler import encode_geometry
from .swizzle import Geometry
from .vectors import inner, pointer

if TYPE_CHECKING:
    from .policy import Policy
    from .swizzle import Swizzle

_PINGPONG, _PRELOAD, _HOST_PANELS = int(PolicyId.PINGPONG), int(PolicyId.PRELOAD), int(PolicyId.HOST_PANELS)


def encode(
    problem: tuple[int, int, int],
    tile: tuple[int, int, int],
    *,
    policy: Policy,
    swizzle: Swizzle,
    cores: int = 1,
    batch: int = 1,
    host: bool = True,
    reproducible: bool = False,
    shared_b: bool = False,
    slots_b: int | None = None,
    start_core: int = 0,
    group: int = 0,
) -> np.ndarray:
    """The vector P for problem (M, N, K) and L1 tile (m, n, k), both in elements.

    `host` says that `staging="auto"` may read A in place; `shared_b` that all batches multiply the same B; `slots_b` sets the
    number of B slots (default: the policy's stages; HostPanels: always the block columns).
    """
    tm, tn, tk = tile
    tk = getattr(policy, "kc", None) or tk
    geometry = Geometry(problem, (tm, tn, tk), cores, batch)
    P = encode_geometry(geometry, swizzle, start_core)
    P[[L.P_GROUP, L.P_SHARED_B]] = group, shared_b
    for index, value in policy.fields(host=host, reproducible=reproducible).items():
        P[index] = value
    P[L.P_DIRECT_B] = policy.id == PolicyId.HOST_PANELS
    P[L.P_SLOTS_B] = max(1, geometry.grid[1]) if P[L.P_DIRECT_B] else slots_b or P[L.P_STAGES]
    return P


def new_state(P: np.ndarray) -> np.ndarray:
    """A state vector large enough for any core of P."""
    size = L.S_TAGS + P[L.P_SLOTS_B] * L.TAG_SIZE + P[L.P_STAGES] + P[L.P_PRELOAD] * L.ENTRY_SIZE
    return np.zeros(size, np.int64)


def new_op() -> np.ndarray:
    """A vector for one op."""
    return np.zeros(L.OP_SIZE, np.int64)


@njit
def core_steps(P, core):
    """Number of steps the scheduler gives the core."""
    return steps_of(pointer(P), core)


@njit
def core_piece(P, core, step, out, at=0):
    """Write the pieces of the core's step from out[at] on; returns how many there are (0, 1 or 2)."""
    return piece_of(pointer(P), core, step, pointer(out), at)


@inner
def restart(P, core, steps, S):
    """:func:`start` over pointers, the number of the core's steps given."""
    size = L.S_TAGS + P[L.P_SLOTS_B] * L.TAG_SIZE + P[L.P_STAGES] + P[L.P_PRELOAD] * L.ENTRY_SIZE
    for i in range(size):
        S[i] = 0
    S[L.S_CORE] = core
    S[L.S_STEPS] = steps
    S[L.S_WINDOW_BATCH] = -1
    for slot in range(P[L.P_SLOTS_B]):
        S[L.S_TAGS + slot * L.TAG_SIZE + L.TAG_K] = -1


@njit
def start(P, core, S):
    """Put the machine of `core` at its beginning."""
    restart(pointer(P), core, steps_of(pointer(P), core), pointer(S))


@inner
def decide(P, S):
    """Ask the machine of the policy; False when the core is done."""
    policy = P[L.P_POLICY]
    if policy == _PINGPONG:
        return pingpong(P, S)
    if policy == _PRELOAD:
        return preload(P, S)
    if policy == _HOST_PANELS:
        return host_panels(P, S)
    return preload_async(P, S)


@njit
def advance(P, S, op):
    """Write the core's next op; False when there is none."""
    more = decide(pointer(P), pointer(S))
    if more:
        emit(pointer(P), pointer(S), pointer(op))
    return more
