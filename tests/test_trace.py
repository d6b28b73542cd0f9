"""The op stream: the published sequences, every policy against its slow twin, coverage under every scheduler, resumability."""

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastgemm as fg
from fastgemm import stream
from fastgemm.swizzle import ColumnBlockSwizzle
from fastgemm.trace import Realised

small = settings(max_examples=40, deadline=None)
LOADS = (fg.Op.LOAD_A, fg.Op.LOAD_B)
POLICIES = [
    fg.Pingpong(),
    fg.Pingpong(stages=3, staging="copy"),
    fg.Preload(),
    fg.Preload(stages=3, shuffle_k=False),
    fg.PreloadAsync(),
    fg.PreloadAsync(3, 5, shuffle_k=False, staging="copy"),
    fg.PreloadAsyncWithCallback(2, 3),
    fg.HostPanels(),
    fg.HostPanels(pack_b=False),
]
SWIZZLES = [
    fg.IdentitySwizzle(3, 0),
    fg.IdentitySwizzle(2, 1),
    fg.RowMajor(),
    fg.SplitKSwizzle(2, 0, factor=3),
    fg.TailSplitKSwizzle(3, 1),
    fg.StreamKSwizzle(3, 0),
    fg.SingleCoreSplitKSwizzle(2, 0),
    fg.L1FullLoadSwizzle(1, 0),
    fg.AswtSwizzle(tail_split=True),
    ColumnBlockSwizzle(),
]


def grid_trace(policy, rows, cols, kt, *, swizzle=None, cores=1, batch=1, **keywords):
    """Trace of a grid of one-element tiles."""
    swizzle = swizzle or fg.IdentitySwizzle()
    return fg.trace(
        rows, cols, kt, policy=policy, swizzle=swizzle, tile=(1, 1, 1), cores=cores, batch=batch, **keywords
    )


def ops_of(trace, core=0):
    """(name, batch, m, n, k, slot) of one core's ops, as the oracle has them."""
    rows = []
    for row in trace[trace["core"] == core]:
        op = fg.Op(row["op"])
        slot = int(row["slot"]) if op in (*LOADS, fg.Op.MMAD) else None
        rows.append((op.name, *(int(row[x]) for x in ("batch", "m", "n", "k")), slot))
    return rows


def words(trace):
    """A trace as short words: "A0/1" is LOAD_A of tile 0 into slot 1."""
    short = {"LOAD_A": "A", "LOAD_B": "B", "MMAD": "x"}
    named = [(short.get(op, op.lower()), "XYZ"[n], k, slot) for op, _, _, n, k, slot in ops_of(trace)]
    return " ".join(f"{op}({block})" if slot is None else f"{op}{block}{k}/{slot}" for op, block, k, slot in named)


def test_worked_example_of_preload_async():
    trace = grid_trace(fg.PreloadAsyncWithCallback(shuffle_k=False, staging="copy"), 1, 2, 2)
    assert words(trace) == (
        "AX0/0 BX0/0 AX1/1 BX1/1 xX0/0 AY0/0 BY0/0 xX1/1 before(X) store(X) after(X) "
        "AY1/1 BY1/1 xY0/0 xY1/1 before(Y) store(Y) after(Y)"
    )


def test_pingpong_never_touches_the_next_block_and_goes_on_rotating_slots():
    trace = grid_trace(fg.Pingpong(staging="copy"), 1, 2, 3)
    assert words(trace) == (
        "AX0/0 BX0/0 AX1/1 BX1/1 xX0/0 AX2/0 BX2/0 xX1/1 xX2/0 store(X) "
        "AY0/1 BY0/1 AY1/0 BY1/0 xY0/1 AY2/1 BY2/1 xY1/0 xY2/1 store(Y)"
    )


def test_preload_loads_the_next_blocks_first_tile_during_the_last_multiplication():
    trace = grid_trace(fg.Preload(shuffle_k=False, staging="copy"), 1, 2, 2)
    assert words(trace) == "AX0/0 BX0/0 AX1/1 BX1/1 xX0/0 AY0/0 BY0/0 xX1/1 store(X) AY1/1 BY1/1 xY0/0 xY1/1 store(Y)"


def test_shuffle_k_starts_at_the_core_and_wraps():
    trace = grid_trace(fg.Preload(staging="copy"), 1, 6, 3, cores=5)
    for core in range(5):
        mine = trace[(trace["core"] == core) & (trace["op"] == fg.Op.MMAD)]
        assert mine["k"].tolist() == [(core + j) % 3 for j in range(3)] * (2 if core == 0 else 1)
    # the next block's tile loaded ahead is the shuffled first one too
    ahead = trace[(trace["core"] == 0) & (trace["op"] == fg.Op.LOAD_A) & (trace["n"] == 5)]
    assert ahead["k"].tolist() == [0, 1, 2]


def test_short_tile_under_shuffle_and_first_executed_step():
    P = stream.encode((4, 4, 10), (4, 4, 4), policy=fg.Preload(), swizzle=fg.RowMajor(), cores=3, batch=3)
    S, op = stream.new_state(P), stream.new_op()
    stream.start(P, 2, S)
    seen = []
    while stream.advance(P, S, op):
        if op[stream.OP] == stream.MMAD:
            seen.append([int(op[x]) for x in (stream.K, stream.KLEN, stream.K0, stream.FIRST, stream.LAST)])
    assert seen == [[2, 2, 8, 1, 0], [0, 4, 0, 0, 0], [1, 4, 4, 0, 1]]


def test_preload_carries_over_to_the_next_batch():
    trace = grid_trace(fg.Preload(shuffle_k=False, staging="copy"), 1, 1, 1, batch=3)
    assert [(op, batch) for op, batch, *_ in ops_of(trace)] == [
        ("LOAD_A", 0), ("LOAD_B", 0), ("LOAD_A", 1), ("LOAD_B", 1), ("MMAD", 0), ("STORE", 0),
        ("LOAD_A", 2), ("LOAD_B", 2), ("MMAD", 1), ("STORE", 1), ("MMAD", 2), ("STORE", 2),
    ]  # fmt: skip


def test_second_half_of_a_cross_task_is_not_loaded_ahead():
    trace = grid_trace(fg.Preload(shuffle_k=False, staging="copy"), 2, 3, 5, swizzle=fg.StreamKSwizzle(), cores=4)
    mine = ops_of(trace, core=1)
    cross = [x for x in mine if x[2:4] in ((1, 1), (1, 0))]
    store = cross.index(("STORE", 0, 1, 1, 3, None))
    assert cross[store + 1][0] == "LOAD_A"  # block (1, 0) begins after block (1, 1) is stored
    ahead = [x for x in mine if x[2:4] == (1, 1)][0]
    assert mine.index(ahead) < mine.index(("STORE", 0, 0, 1, 0, None))  # the task itself is loaded ahead


@small
@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(1, 3),
    st.booleans(),
    st.data(),
)
def test_policies_against_their_twins(rows, cols, kt, cores, batch, shuffle, data):
    stages = data.draw(st.integers(2, 4))
    ahead = data.draw(st.integers(1, stages - 1))
    order = oracle.identity_order(rows, cols, 2, 0)
    tasks = data.draw(st.sampled_from(["whole", "split", "stream"]))
    swizzle, made = {
        "whole": (fg.IdentitySwizzle(2, 0), [[(m, n, list(range(kt)))] for m, n in order]),
        "split": (fg.SplitKSwizzle(2, 0, factor=3), oracle.split_k_tasks(order, kt, 3)),
        "stream": (fg.StreamKSwizzle(2, 0), oracle.stream_k_tasks(order, kt, cores)),
    }[tasks]
    steps = oracle.dealt_out(made, cores, batch)
    asynchronous = {"shuffle": shuffle, "preload_stages": ahead, "l1_stages": stages}
    keywords = {"shuffle_k": shuffle, "staging": "copy"}
    runs = [
        (fg.Pingpong(stages, staging="copy"), lambda c: oracle.pingpong(steps[c], stages)),
        (fg.Preload(stages, **keywords), lambda c: oracle.preload(steps[c], c, shuffle, stages)),
        (fg.PreloadAsync(ahead, stages, **keywords), lambda c: oracle.preload_async(steps[c], c, **asynchronous)),
        (
            fg.PreloadAsyncWithCallback(ahead, stages, **keywords),
            lambda c: oracle.preload_async(steps[c], c, **asynchronous, callbacks=True),
        ),
        (fg.HostPanels(), lambda c: oracle.host_panels(steps[c], kt)),
    ]
    for policy, expected in runs:
        trace = grid_trace(policy, rows, cols, kt, swizzle=swizzle, cores=cores, batch=batch)
        for core in range(cores):
            assert ops_of(trace, core) == expected(core), (policy, core)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("swizzle", SWIZZLES, ids=str)
def test_every_block_and_k_tile_is_multiplied_once(policy, swizzle):
    """Counted element by element, for ragged grids, several batches and any number of cores."""
    for (m, n, k), tile, cores, batch in [
        ((9, 7, 10), (2, 3, 4), 1, 1),
        ((9, 7, 10), (2, 3, 4), 4, 2),
        ((4, 5, 3), (4, 5, 3), 7, 3),
        ((3, 8, 9), (1, 2, 2), 40, 1),
    ]:
        trace = fg.trace(m, n, k, policy=policy, swizzle=swizzle, tile=tile, cores=cores, batch=batch)
        done = np.zeros((batch, m, n, k), int)
        stored = np.zeros((batch, m, n, k), int)
        for row in trace[np.isin(trace["op"], [fg.Op.MMAD, fg.Op.STORE])]:
            area = (
                row["batch"],
                slice(row["m0"], row["m0"] + row["rows"]),
                slice(row["n0"], row["n0"] + row["cols"]),
                slice(row["k0"], row["k0"] + row["klen"]),
            )
            (done if row["op"] == fg.Op.MMAD else stored)[area] += 1
        assert (done == 1).all()
        assert (stored == 1).all()


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_tile_is_in_its_slot_when_it_is_multiplied(policy):
    """Replays the slots: what MMAD finds in SLOT and SLOT_B is its own tile, also where a load was left out as cached."""
    for swizzle in (
        fg.IdentitySwizzle(2, 0),
        fg.StreamKSwizzle(),
        fg.SingleCoreSplitKSwizzle(2, 1),
        fg.AswtSwizzle(tail_split=True),
    ):
        P = stream.encode((7, 6, 8), (2, 2, 3), policy=policy, swizzle=swizzle, cores=5, batch=2)
        S, op = stream.new_state(P), stream.new_op()
        for core in range(5):
            stream.start(P, core, S)
            a, b = {}, {}
            while stream.advance(P, S, op):
                tile_a = tuple(op[[stream.BATCH, stream.K, stream.M0, stream.ROWS]].tolist())
                tile_b = tuple(op[[stream.BATCH, stream.K, stream.N0, stream.COLS]].tolist())
                if op[stream.OP] == stream.LOAD_A and op[stream.REALISED] == stream.COPIED:
                    a[op[stream.SLOT]] = tile_a
                elif op[stream.OP] == stream.LOAD_B and op[stream.REALISED] == stream.COPIED:
                    b[op[stream.SLOT_B]] = tile_b
                elif op[stream.OP] == stream.LOAD_B and op[stream.REALISED] == stream.CACHED:
                    assert b[op[stream.SLOT_B]] == tile_b
                elif op[stream.OP] == stream.MMAD:
                    assert P[stream.P_STAGE_A] == stream.IN_PLACE or a[op[stream.SLOT]] == tile_a
                    assert P[stream.P_STAGE_B] == stream.IN_PLACE or b[op[stream.SLOT_B]] == tile_b


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_loads_in_flight_are_bounded(policy):
    asynchronous = isinstance(policy, fg.PreloadAsync)
    bound = policy.preload_stages + 1 if asynchronous else 1 if isinstance(policy, fg.HostPanels) else 2
    trace = grid_trace(policy, 4, 3, 5, cores=2, batch=2)
    for core in range(2):
        flying = most = 0
        for op in trace["op"][trace["core"] == core]:
            flying += int(op == fg.Op.LOAD_A) - int(op == fg.Op.MMAD)
            most = max(most, flying)
        assert most == bound
        assert flying == 0
    if asynchronous:
        assert bound <= policy.l1_stages


def test_exposed_loads_per_block():
    """Loads a core must wait for, as nothing is left to multiply: one per block for Pingpong, one in all otherwise."""

    def exposed(policy):
        count = pending = 0
        for op in grid_trace(policy, 3, 4, 3)["op"]:
            count += op == fg.Op.LOAD_A and pending == 0
            pending += int(op == fg.Op.LOAD_A) - int(op == fg.Op.MMAD)
        return count

    assert exposed(fg.Pingpong(staging="copy")) == 12
    assert exposed(fg.Preload(staging="copy")) == 1
    assert exposed(fg.PreloadAsync(staging="copy")) == 1


def test_load_counts_per_block():
    for policy in (fg.Pingpong(staging="copy"), fg.Preload(staging="copy"), fg.PreloadAsync(staging="copy")):
        trace = grid_trace(policy, 3, 4, 5, cores=2)
        for op in LOADS:
            loads = trace[trace["op"] == op]
            assert (loads["realised"] == Realised.COPIED).all()
            assert np.unique(loads[["m", "n"]], return_counts=True)[1].tolist() == [5] * 12
    panels = grid_trace(fg.HostPanels(), 3, 4, 5, cores=2)
    loads_b = panels[panels["op"] == fg.Op.LOAD_B]
    # core 0 has blocks in all four columns, core 1 too: one load per core, slab and column
    assert np.unique(loads_b[["core", "k", "n"]], return_counts=True)[1].tolist() == [1] * 40


def test_host_keeps_b_tiles_in_its_slots():
    """Down a column of blocks with Kt <= slots, B is packed once; A is always a view."""
    trace = grid_trace(fg.Pingpong(), 5, 2, 2, swizzle=fg.IdentitySwizzle(5, 0))
    loads_b = trace[trace["op"] == fg.Op.LOAD_B]
    assert (loads_b["realised"] == Realised.COPIED).sum() == 4  # two columns of two tiles
    assert (trace["realised"][trace["op"] == fg.Op.LOAD_A] == Realised.IN_PLACE).all()
    shared = grid_trace(fg.Pingpong(), 1, 1, 2, batch=4, shared_b=True)
    assert (shared["realised"] == Realised.COPIED).sum() == 2  # one B for all batches
    assert (grid_trace(fg.Pingpong(), 1, 1, 2, batch=4)["realised"] == Realised.COPIED).sum() == 8


def test_callbacks_surround_every_store_in_block_order():
    policy = fg.PreloadAsyncWithCallback(3, 4)
    trace = grid_trace(policy, 4, 3, 2, swizzle=fg.IdentitySwizzle(2, 1), cores=3, batch=2)
    for core in range(3):
        mine = trace[trace["core"] == core]
        around = mine[np.isin(mine["op"], [fg.Op.BEFORE, fg.Op.STORE, fg.Op.AFTER])]
        assert around["op"].tolist() == [fg.Op.BEFORE, fg.Op.STORE, fg.Op.AFTER] * (len(around) // 3)
        assert around["task"][::3].tolist() == list(range(core, 24, 3))
        for task in around["task"][::3]:
            block = np.flatnonzero(mine["task"] == task)
            assert [fg.Op(mine["op"][i]).name for i in block[-3:]] == ["BEFORE", "STORE", "AFTER"]
    assert not np.isin(grid_trace(fg.PreloadAsync(), 2, 2, 2)["op"], [fg.Op.BEFORE, fg.Op.AFTER]).any()


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_machines_resume_after_any_op(policy):
    """Ten cores advanced in turn, one op at a time, give the streams each gives alone; a finished core stays finished."""
    P = stream.encode((6, 5, 7), (2, 2, 2), policy=policy, swizzle=fg.StreamKSwizzle(2, 0), cores=10, batch=2)
    op = stream.new_op()
    alone = []
    S = stream.new_state(P)
    for core in range(10):
        stream.start(P, core, S)
        alone.append([])
        while stream.advance(P, S, op):
            alone[-1].append(op.tolist())
        assert not stream.advance(P, S, op)
    states = [stream.new_state(P) for _ in range(10)]
    for core, state in enumerate(states):
        stream.start(P, core, state)
    mixed = [[] for _ in range(10)]
    running = set(range(10))
    while running:
        for core in sorted(running):
            if stream.advance(P, states[core], op):
                mixed[core].append(op.tolist())
            else:
                running.discard(core)
    assert mixed == alone


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_empty_extents(policy):
    for extents, batch in (((0, 4, 4), 1), ((4, 0, 4), 1), ((4, 4, 4), 0)):
        assert len(fg.trace(*extents, policy=policy, swizzle=fg.RowMajor(), tile=(2, 2, 2), cores=3, batch=batch)) == 0
    trace = fg.trace(4, 6, 0, policy=policy, swizzle=fg.RowMajor(), tile=(2, 2, 2), cores=4, batch=2)
    assert not np.isin(trace["op"], [*LOADS, fg.Op.MMAD]).any()  # an empty sum is stored as zeros
    stores = trace[trace["op"] == fg.Op.STORE]
    assert (stores["klen"] == 0).all()
    assert len(np.unique(stores[["batch", "m", "n"]])) == len(stores) == 12


def test_trace_fields_and_defaults():
    trace = fg.trace(300, 200, 500, policy=fg.Preload(), threads=2)
    assert trace.dtype == fg.TRACE_DTYPE
    assert fg.TRACE_DTYPE.names[:12] == (
        "core",
        "step",
        "op",
        "task",
        "batch",
        "group",
        "m",
        "n",
        "k",
        "slot",
        "klen",
        "realised",
    )
    for core in np.unique(trace["core"]):
        mine = trace[trace["core"] == core]
        assert mine["step"].tolist() == list(range(len(mine)))
    ascend = fg.trace(512, 512, 512, policy=fg.Pingpong(), cores=4, dtype="f2", arch="ascend_a2")
    assert (ascend["realised"][np.isin(ascend["op"], LOADS)] == Realised.COPIED).all()
    assert ascend["rows"].max() == 128
    assert ascend["cols"].max() == 256
    many = fg.trace(2, 2, 2, policy=fg.Preload(), swizzle=fg.RowMajor(), tile=(1, 1, 1), cores=1000)
    assert np.unique(many["core"]).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("m", "n", "k", "batch", "threads"),
    [(40, 30, 20, 1, 2), (200, 190, 180, 1, 2), (8, 900, 700, 1, 2), (9, 9, 9, 700, 3)],
)
@pytest.mark.parametrize("reproducible", [False, True])
def test_small_products_plan_no_stream_and_say_so(m, n, k, batch, threads, reproducible):
    """One block per share of the job, everything read in place; every product of elements once."""
    trace = fg.trace(m, n, k, batch=batch, threads=threads, reproducible=reproducible)
    assert (trace["realised"][np.isin(trace["op"], LOADS)] == Realised.IN_PLACE).all()
    assert len(np.unique(trace["core"])) == (1 if m * n * k * batch <= 60**3 else trace["core"].max() + 1)
    done = np.zeros((batch, m, n), int)
    for row in trace[trace["op"] == fg.Op.MMAD]:
        done[row["batch"], row["m0"] : row["m0"] + row["rows"], row["n0"] : row["n0"] + row["cols"]] += row["klen"]
    assert (done == k).all()


def test_large_products_pack_b_once_per_slab():
    trace = fg.trace(1000, 1200, 2000, threads=1)
    loads_b = trace[trace["op"] == fg.Op.LOAD_B]
    assert (loads_b["realised"] == Realised.COPIED).all()
    assert loads_b["klen"].sum() * 1200 == (loads_b["klen"] * loads_b["cols"]).sum() == 2000 * 1200


def test_trace_refuses_what_cannot_run():
    with pytest.raises(ValueError, match="stages of"):
        fg.trace(512, 512, 512, policy=fg.Pingpong(stages=4), tile=(128, 256, 256), dtype="f2", arch="ascend_a2")
    with pytest.raises(ValueError, match="reproducible"):
        fg.trace(5, 5, 5, policy=fg.Preload(shuffle_k=True), reproducible=True)
    with pytest.raises(ValueError, match="policy must be"):
        fg.trace(5, 5, 5, policy="pingpong")
    with pytest.raises(ValueError, match="swizzle must be"):
        fg.trace(5, 5, 5, swizzle="none")
    with pytest.raises(ValueError, match="cores"):
        fg.trace(5, 5, 5, cores=0)
    with pytest.raises(ValueError, match="negative"):
        fg.trace(5, -1, 5)


def test_offsets_are_64_bit():
    P = stream.encode(
        (2**36, 2**36, 2**34), (2**35, 2**35, 2**33), policy=fg.Pingpong(), swizzle=fg.RowMajor(), cores=4
    )
    S, op = stream.new_state(P), stream.new_op()
    stream.start(P, 3, S)
    for _ in range(3):
        assert stream.advance(P, S, op)
    assert op[[stream.M0, stream.N0, stream.K0, stream.KLEN]].tolist() == [2**35, 2**35, 2**33, 2**33]


def test_a_trace_nobody_could_hold_is_refused_at_once():
    with pytest.raises(ValueError, match="larger tile"):
        fg.trace(10**8, 10**8, 10**8)
