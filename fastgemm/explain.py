"""What a call will do and why, in words and in numbers: policy, swizzle, tile, waves, balance, cache, memory.

`facts` gives the numbers, `explain` the text; both take a plan, which is anything with the attributes m, n, k, batch (axes or a
number), compute (the dtype multiplied) and options.  `traversal_picture` in `fastgemm.pictures` draws the order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import layout as L
from .arch import arch as arch_of
from .gemm.choose import Schedule, schedule
from .options import Options
from .pictures import traversal_picture
from .scheduler import Scheduler
from .traffic import band_bytes, predicted_miss, size_text

__all__ = ["balance", "explain", "facts", "problem_facts", "schedule_text", "traversal_picture"]

# a schedule of this many tasks is summed up in some tens of milliseconds
_COUNTED_TASKS = 1_000_000


def facts(plan: Any) -> dict[str, Any]:
    """What a plan chose, as numbers and strings that JSON can hold."""
    batch = plan.batch if isinstance(plan.batch, int) else math.prod(plan.batch)
    return problem_facts((plan.m, plan.n, plan.k), batch, np.dtype(plan.compute), plan.options)


def explain(plan: Any) -> str:
    """What a plan chose and why, in a few lines."""
    return schedule_text(facts(plan))


def problem_facts(problem: tuple[int, int, int], batch: int, dtype: np.dtype[Any], options: Options) -> dict[str, Any]:
    """The facts of a stack of `batch` products (M, N, K) under these options."""
    from .gemm.table import host_isa
    from .gemm.threads import resolve

    arch, threads = arch_of(options.arch), resolve(options.threads)
    found: dict[str, Any] = {
        "problem": list(problem),
        "batch": batch,
        "dtype": dtype.name,
        "arch": arch.name,
        "threads": threads,
        "kernels": host_isa(),
        "reproducible": options.reproducible,
    }
    if _all_auto(options) and arch.host:
        from .trace import in_place_shares

        shares = in_place_shares(problem, min(batch, 1), dtype, threads, options.reproducible)
        if shares is not None:
            return found | {
                "path": "in place",
                "policy": "HostPanels()",
                "why": "B is small or A has few rows: packing would not pay",
            }
    chosen = schedule(problem, dtype, options, threads)
    scheduler = chosen.swizzle.bind(problem, chosen.tile, cores=chosen.cores, batch=batch)
    found |= {
        "path": "stream",
        "policy": str(chosen.policy),
        "swizzle": str(chosen.swizzle),
        "why": chosen.why,
        "tile": list(chosen.tile),
        "grid": list(scheduler.grid[:2]),
        "k_tiles": scheduler.grid[2],
        "cores": chosen.cores,
        "tasks": scheduler.core_loops() * batch,
    }
    found |= _policy_facts(chosen, dtype, options, scheduler)
    found |= {"waves": _waves(scheduler)} | balance(scheduler) | _cache_facts(chosen, problem, dtype, arch.llc_bytes)
    return found


def _all_auto(options: Options) -> bool:
    return options.policy == "auto" and options.swizzle == "auto" and options.tile is None and options.cores is None


def _policy_facts(chosen: Schedule, dtype: np.dtype[Any], options: Options, scheduler: Scheduler) -> dict[str, Any]:
    """Slots and their memory, K order, flags."""
    policy = chosen.policy
    fields = policy.fields(host=chosen.host, reproducible=options.reproducible)
    m, n, k = chosen.tile
    columns = policy.id == L.PolicyId.HOST_PANELS
    held = "packed once per K slab" if columns else "packed unless a slot holds it"
    slots_b = scheduler.grid[1] if columns else policy.slots().l1
    staged_a = policy.slots().l1 if fields[L.P_STAGE_A] == L.COPIED else 0
    staged_b = 0 if fields[L.P_STAGE_B] == L.IN_PLACE else slots_b
    return {
        "a": "in place" if staged_a == 0 else "packed",
        "b": "in place" if staged_b == 0 else held if fields[L.P_STAGE_B] == L.CACHED else "packed",
        "slots": [staged_a, staged_b],
        "staging_bytes": int((staged_a * m * k + staged_b * n * k) * dtype.itemsize),
        "shuffle_k": bool(fields[L.P_SHUFFLE]),
        "unit_flag": policy.unit_flag_for(dtype),
    }


def _waves(scheduler: Scheduler) -> int:
    """Steps of the core that makes most."""
    from .schedule import step_counts

    counts = np.empty(scheduler.cores, np.int64)
    step_counts(scheduler.vector, counts)
    return int(counts.max())


def balance(scheduler: Scheduler) -> dict[str, Any]:
    """Multiplications of the busiest core over the mean: 1 is perfect.  Counted, or None above a million tasks."""
    total = scheduler.core_loops() * scheduler.batch
    if not 0 < total <= _COUNTED_TASKS:
        return {"busiest_core": None, "imbalance": None}
    rows = scheduler.schedule()
    (m, n, _), (tm, tn, _) = scheduler.geometry.problem, scheduler.geometry.tile
    if scheduler.swizzle.cuts_blocks:
        area = rows["rows"] * rows["cols"]
    else:
        area = np.minimum(tm, m - tm * rows["m"].astype(np.int64)) * np.minimum(tn, n - tn * rows["n"].astype(np.int64))
    load = np.bincount(rows["core"], weights=area * rows["klen"].astype(float), minlength=scheduler.cores)
    mean = load.mean()
    return {"busiest_core": int(load.argmax()), "imbalance": float(load.max() / mean) if mean else None}


def _cache_facts(
    chosen: Schedule, problem: tuple[int, int, int], dtype: np.dtype[Any], llc_bytes: int
) -> dict[str, Any]:
    """Band and predicted misses; the law is about policies that walk all of K per block."""
    swizzle = chosen.swizzle
    offset, direction = getattr(swizzle, "offset", None), getattr(swizzle, "direction", None)
    band = None
    if offset is not None and direction is not None:
        band = int(band_bytes(problem, chosen.tile, dtype.itemsize, offset, direction))
    if chosen.policy.id == L.PolicyId.HOST_PANELS:
        miss, remark = (
            None,
            "K slab outermost: a slab of B is read from the cache by all rows, A is read once per block column",
        )
    else:
        miss, remark = predicted_miss(problem, chosen.tile, dtype.itemsize, swizzle, chosen.cores, llc_bytes)
    return {"llc_bytes": llc_bytes, "band_bytes": band, "predicted_miss": miss, "cache_remark": remark}


def schedule_text(found: dict[str, Any]) -> str:
    """The text of `facts`."""
    m, n, k = found["problem"]
    batch = f"{found['batch']} x " if found["batch"] != 1 else ""
    machine = f"{found['arch']}, {_counted(found['threads'], 'thread')}, {found['kernels']} kernels"
    head = f"{batch}({m} x {k}) @ ({k} x {n}) {found['dtype']} on {machine}"
    if found["reproducible"]:
        head += ", reproducible"
    if found["path"] == "in place":
        return f"{head}\npath      in place: no op stream is planned, A and B are read where they lie\nwhy       {found['why']}"
    rows, cols = found["grid"]
    slots_a, slots_b = found["slots"]
    lines = [
        ("policy", found["policy"]),
        ("swizzle", f"{found['swizzle']}: {found['why']}"),
        (
            "tile",
            f"{'x'.join(map(str, found['tile']))}: grid of {rows} x {cols} blocks, {_counted(found['k_tiles'], 'K tile')}",
        ),
        (
            "cores",
            ", ".join(_counted(found[f"{noun}s"], noun) for noun in ("core", "task", "wave")) + _imbalance(found),
        ),
        ("staging", f"A {found['a']}, B {found['b']}: {_slots(slots_a, slots_b)}, {size_text(found['staging_bytes'])}"),
        (
            "order",
            f"K {'starts at the core index (ShuffleK)' if found['shuffle_k'] else 'from 0'}; unit flag {_on(found['unit_flag'])}",
        ),
    ]
    if found["band_bytes"] is not None:
        lines.append(
            ("band", f"{size_text(found['band_bytes'])} of a last-level cache of {size_text(found['llc_bytes'])}")
        )
    miss = (
        "" if found["predicted_miss"] is None else f"{found['predicted_miss']:.1%} of the tile loads miss (predicted); "
    )
    lines.append(("cache", miss + found["cache_remark"]))
    return "\n".join([head, *(f"{name:<9} {text}" for name, text in lines)])


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _on(flag: bool) -> str:
    return "on" if flag else "off"


def _slots(slots_a: int, slots_b: int) -> str:
    parts = [f"{count} of {name}" for name, count in (("A", slots_a), ("B", slots_b)) if count]
    return f"slots: {' and '.join(parts) or 'none'}"


def _imbalance(found: dict[str, Any]) -> str:
    if found["imbalance"] is None:
        return ""
    return f"; the busiest core (core {found['busiest_core']}) has {found['imbalance']:.3g} times the mean work"
