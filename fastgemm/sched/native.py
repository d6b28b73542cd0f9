"""What the jitted scheduler needs beside `fastgemm.vectors`: pointers from addresses and into the middle of a vector."""

from __future__ import annotations

from collections import namedtuple

from numba import types
from numba.extending import intrinsic

__all__ = ["State", "at_address", "shifted"]

# the state every function of the scheduler takes: packed instructions, their dynamic rows, the work vector (int32), scalars,
# unit records and the model (int64), the log (int32); see `fastgemm.sched.layout`
State = namedtuple("State", ["node", "live", "work", "c", "unit", "model", "log"])


@intrinsic
def at_address(typingctx, address):  # type: ignore[no-untyped-def]
    """The int32 vector at an address."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int32)(types.int64), generate


@intrinsic
def shifted(typingctx, vector, count):  # type: ignore[no-untyped-def]
    """The vector from its element `count` on."""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.gep(arguments[0], [arguments[1]])

    return vector(vector, types.int64), generate
