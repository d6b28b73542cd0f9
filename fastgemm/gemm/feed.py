"""The machines of the op stream as C functions for the executor: ``machine(stepping, core, ask)``.

``stepping`` holds the addresses of P, of the core's S and of its op; ``ask`` is START or ADVANCE; an op code of -1 ends the stream.
There are two: the one with every policy and scheduler, and one that knows HostPanels over row-major blocks alone, which is all that
``policy="auto"`` needs and compiles in a quarter of the time.  Both are made of the same functions.
"""

from __future__ import annotations

import numpy as np
from numba import types

from .. import layout as L
from ..jit import cfunc
from ..machines import emit, panels, taker
from ..schedule_maps import row_major_piece, row_major_steps, steps_of
from ..stream import decide, restart
from .emit_call import load_i64, words
from .mainloop import START

__all__ = ["machine_address"]

_MACHINE = types.void(types.int64, types.int64, types.int64)


@cfunc(_MACHINE)
def every_policy(stepping, core, ask):  # type: ignore[no-untyped-def]
    """Any policy under any scheduler."""
    p, s, op = words(load_i64(stepping)), words(load_i64(stepping + 8)), words(load_i64(stepping + 16))
    if ask == START:
        restart(p, core, steps_of(p, core), s)
    elif decide(p, s):
        emit(p, s, op)
    else:
        op[L.OP] = -1


_row_panels = panels(taker(row_major_piece))


@cfunc(_MACHINE)
def row_major_panels(stepping, core, ask):  # type: ignore[no-untyped-def]
    """HostPanels under RowMajor."""
    p, s, op = words(load_i64(stepping)), words(load_i64(stepping + 8)), words(load_i64(stepping + 16))
    if ask == START:
        restart(p, core, row_major_steps(p, core), s)
    elif _row_panels(p, s):
        emit(p, s, op)
    else:
        op[L.OP] = -1


def machine_address(p: np.ndarray) -> int:
    """The machine for the policy and scheduler of P."""
    own = p[L.P_POLICY] == L.PolicyId.HOST_PANELS and p[L.P_SCHEDULER] == L.SchedulerId.ROW_MAJOR
    return (row_major_panels if own else every_policy).address
