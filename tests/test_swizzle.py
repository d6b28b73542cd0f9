"""Block schedulers: the published vectors, the order of every scheduler against its slow twin, coverage, edges."""

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fastgemm as fg
from fastgemm.swizzle import ColumnBlockSwizzle, next_start_core, split_factor
from fastgemm.traffic import auto_swizzle, predicted_miss

BANDED = [
    fg.IdentitySwizzle,
    fg.DynamicIdentitySwizzle,
    fg.SplitKSwizzle,
    fg.TailSplitKSwizzle,
    fg.StreamKSwizzle,
    fg.SingleCoreSplitKSwizzle,
    fg.L1FullLoadSwizzle,
]
small = settings(max_examples=60, deadline=None)
extents = st.integers(1, 40)
offsets = st.one_of(st.integers(1, 15), st.sampled_from([40, 2**31, 2**63, 2**70]))


def bound(swizzle, rows, cols, kt=1, cores=1, batch=1):
    """A scheduler of a grid with tiles of one element."""
    return swizzle.bind((rows, cols, kt), (1, 1, 1), cores=cores, batch=batch)


def steps_by_core(scheduler):
    """core -> steps -> pieces (batch, m, n, [K tiles]) from the schedule of one-element tiles."""
    steps = {core: {} for core in range(scheduler.cores)}
    for row in scheduler.schedule().tolist():
        core, step, _, batch, m, n, k0, klen = row[:8]
        steps[core].setdefault(step, []).append((batch, m, n, list(range(k0, k0 + klen))))
    for core, mine in steps.items():
        assert list(mine) == list(range(scheduler.core_loops(core)))
    return {core: list(mine.values()) for core, mine in steps.items()}


def cells(scheduler, value):
    """The grid as the specification prints it: `value(row)` per cell, rows joined by slashes."""
    rows, cols, _ = scheduler.grid
    grid = np.full((rows, cols), -1)
    for row in scheduler.schedule():
        grid[row["m"], row["n"]] = value(row)
    return " / ".join(" ".join(map(str, line)) for line in grid)


@pytest.mark.parametrize(
    ("rows", "cols", "offset", "direction", "expected"),
    [
        (5, 4, 2, 0, "0 2 4 6 / 1 3 5 7 / 14 12 10 8 / 15 13 11 9 / 16 17 18 19"),
        (5, 4, 2, 1, "0 1 18 19 / 2 3 16 17 / 4 5 14 15 / 6 7 12 13 / 8 9 10 11"),
        (4, 5, 3, 0, "0 3 6 9 12 / 1 4 7 10 13 / 2 5 8 11 14 / 19 18 17 16 15"),
        (4, 5, 3, 1, "0 1 2 18 19 / 3 4 5 16 17 / 6 7 8 14 15 / 9 10 11 12 13"),
        (3, 4, 1, 0, "0 1 2 3 / 7 6 5 4 / 8 9 10 11"),
        (3, 4, 1, 1, "0 5 6 11 / 1 4 7 10 / 2 3 8 9"),
        (3, 4, 7, 0, "0 3 6 9 / 1 4 7 10 / 2 5 8 11"),
        (3, 4, 7, 1, "0 1 2 3 / 4 5 6 7 / 8 9 10 11"),
    ],
)
def test_identity_golden_task_grids(rows, cols, offset, direction, expected):
    for swizzle in (
        fg.IdentitySwizzle(offset, direction),
        fg.DynamicIdentitySwizzle().set_swizzle_params(offset, direction),
    ):
        assert cells(bound(swizzle, rows, cols), lambda row: row["task"]) == expected


@pytest.mark.parametrize(
    ("direction", "expected"),
    [
        (0, "0 3 6 9 12 15 / 1 4 7 10 13 16 / 2 5 8 11 14 17 / 13 10 7 4 1 18 / 14 11 8 5 2 19 / 15 12 9 6 3 0"),
        (1, "0 1 2 13 14 15 / 3 4 5 10 11 12 / 6 7 8 7 8 9 / 9 10 11 4 5 6 / 12 13 14 1 2 3 / 15 16 17 18 19 0"),
    ],
)
def test_identity_golden_core_grid_of_the_vendors_figure(direction, expected):
    assert cells(bound(fg.IdentitySwizzle(3, direction), 6, 6, cores=20), lambda row: row["core"]) == expected


@pytest.mark.parametrize(("offset", "most", "busiest"), [(3, 288, {1, 2, 5, 6}), (4, 256, {12, 13, 14, 15})])
def test_offset_decides_balance(offset, most, busiest):
    scheduler = fg.IdentitySwizzle(offset, 1).bind((160, 6144, 256), (128, 256), cores=20)
    load = np.zeros(20, int)
    for row in scheduler.schedule():
        load[row["core"]] += scheduler.actual_block_shape((row["m"], row["n"]))[0]
    assert load.max() == most
    assert busiest <= set(np.flatnonzero(load == most))


def test_full_load_golden():
    scheduler = bound(fg.L1FullLoadSwizzle(1, 0), 5, 4, cores=3)
    expected = "0 3 6 9 / 1 18 15 12 / 4 7 10 13 / 5 2 19 16 / 8 11 14 17"
    assert cells(scheduler, lambda row: row["task"]) == expected


@pytest.mark.parametrize(
    ("kt", "factor", "ranges"), [(7, 3, [(0, 3), (3, 2), (5, 2)]), (8, 3, [(0, 3), (3, 3), (6, 2)])]
)
def test_split_k_golden_slices(kt, factor, ranges):
    scheduler = bound(fg.SplitKSwizzle(factor=factor), 1, 1, kt)
    assert [(p.k, p.k_tiles) for i in range(factor) for p in scheduler.pieces(i)] == ranges


@pytest.mark.parametrize(
    ("problem", "cores", "expected"),
    [
        ((256, 512, 1024), 20, 2),
        ((128, 256, 512), 20, 2),
        ((128, 256, 16384), 20, 16),
        ((512, 512, 8192), 20, 2),
        ((4096, 4096, 9000), 20, 2),
        ((4096, 4096, 40000), 20, 4),
        ((256, 256, 4096), 24, 8),
        ((1024, 1024, 4096), 24, 1),
    ],
)
def test_split_factor_goldens(problem, cores, expected):
    assert split_factor(problem, (128, 256, 256), cores) == expected
    scheduler = fg.SplitKSwizzle(3, 0).bind(problem, (128, 256, 256), cores=cores)
    assert scheduler.core_loops() == expected * scheduler.geometry.blocks


def test_split_k_factor_is_clamped_to_the_k_tiles():
    assert bound(fg.SplitKSwizzle(factor=99), 2, 2, 3).core_loops() == 12
    assert bound(fg.SplitKSwizzle(factor=2), 2, 2, 0).core_loops() == 4
    last = fg.SplitKSwizzle(factor=3).bind((10, 10, 25), (10, 10, 4)).pieces(2)[0]
    assert (last.k, last.k0, last.klen) == (5, 20, 5)  # the last slice takes the ragged tile


@pytest.mark.parametrize(
    ("grid", "kt", "cores", "tail"),
    [
        ((3, 3), 8, 4, [[(0, 2), (2, 2), (4, 2), (6, 2)]]),
        ((3, 5), 7, 6, [[(0, 4), (4, 3)]] * 3),
        ((2, 3), 7, 5, [[(0, 2), (2, 2), (4, 1), (5, 1), (6, 1)]]),
    ],
)
def test_tail_split_k_goldens(grid, kt, cores, tail):
    scheduler = bound(fg.TailSplitKSwizzle(3, 0), *grid, kt, cores)
    normal = grid[0] * grid[1] // cores * cores
    pieces = [scheduler.pieces(i)[0] for i in range(normal, scheduler.core_loops())]
    assert [(p.k, p.k_tiles) for p in pieces] == [x for block in tail for x in block]


def test_stream_k_goldens():
    scheduler = bound(fg.StreamKSwizzle(), 3, 3, 8, 4)
    assert [scheduler.pieces(i)[0].k_tiles for i in range(8, 12)] == [2, 2, 2, 2]
    scheduler = bound(fg.StreamKSwizzle(), 2, 3, 5, 4)
    blocks = oracle.identity_order(2, 3, 1, 0)
    shares = [[(blocks.index((p.m, p.n)) - 4, p.k, p.k + p.k_tiles) for p in scheduler.pieces(4 + c)] for c in range(4)]
    assert shares == [[(0, 0, 3)], [(0, 3, 5), (1, 0, 1)], [(1, 1, 3)], [(1, 3, 5)]]


@pytest.mark.parametrize("direction", [0, 1])
def test_identity_is_a_bijection_on_all_small_grids(direction):
    for rows in range(1, 14):
        for cols in range(1, 14):
            for offset in range(1, 16):
                schedule = bound(fg.IdentitySwizzle(offset, direction), rows, cols).schedule()
                assert list(zip(schedule["m"].tolist(), schedule["n"].tolist(), strict=True)) == oracle.identity_order(
                    rows, cols, offset, direction
                )


@pytest.mark.parametrize(
    "swizzle", [fg.RowMajor(), fg.AswtSwizzle(), fg.SingleCoreSplitKSwizzle(3, 1), fg.L1FullLoadSwizzle(2, 1)]
)
def test_every_order_is_a_bijection_on_all_small_grids(swizzle):
    for rows in range(1, 14):
        for cols in range(1, 14):
            schedule = bound(swizzle, rows, cols, cores=3).schedule()
            assert (
                len(set(zip(schedule["m"].tolist(), schedule["n"].tolist(), strict=True)))
                == rows * cols
                == len(schedule)
            )


@small
@given(extents, extents, offsets, st.integers(0, 1))
def test_identity_order(rows, cols, offset, direction):
    schedule = bound(fg.IdentitySwizzle(offset, direction), rows, cols).schedule()
    expected = oracle.identity_order(rows, cols, min(offset, 100), direction)
    assert list(zip(schedule["m"].tolist(), schedule["n"].tolist(), strict=True)) == expected


@small
@given(
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(1, 9),
    offsets,
    st.integers(0, 1),
    st.integers(1, 30),
    st.integers(0, 3),
)
def test_every_scheduler_against_its_twin(rows, cols, kt, offset, direction, cores, batch):
    """Each core's steps and the K ranges of their pieces, batches included."""
    near = min(offset, 100)
    order = oracle.identity_order(rows, cols, near, direction)
    whole = [[(m, n, list(range(kt)))] for m, n in order]
    plain = [[(m, n, list(range(kt)))] for m in range(rows) for n in range(cols)]
    window = [[(m, n, list(range(kt)))] for m, n in oracle.aswt_order(rows, cols)]
    twins = {
        fg.IdentitySwizzle(offset, direction): oracle.dealt_out(whole, cores, batch),
        fg.RowMajor(): oracle.dealt_out(plain, cores, batch),
        fg.SplitKSwizzle(offset, direction, factor=4): oracle.dealt_out(
            oracle.split_k_tasks(order, kt, 4), cores, batch
        ),
        fg.TailSplitKSwizzle(offset, direction): oracle.dealt_out(
            oracle.tail_split_k_tasks(order, kt, cores), cores, batch
        ),
        fg.StreamKSwizzle(offset, direction): oracle.dealt_out(oracle.stream_k_tasks(order, kt, cores), cores, batch),
        fg.AswtSwizzle(): oracle.dealt_out(window, cores, batch),
        fg.L1FullLoadSwizzle(offset, direction): oracle.contiguous(order, kt, cores, batch),
        fg.SingleCoreSplitKSwizzle(offset, direction): oracle.single_core(
            oracle.double_snake_order(rows, cols, near, direction), kt, cores, batch
        ),
    }
    for swizzle, expected in twins.items():
        assert steps_by_core(bound(swizzle, rows, cols, kt, cores, batch)) == expected, swizzle


@pytest.mark.parametrize("direction", [0, 1])
def test_double_snake_order_on_all_small_grids(direction):
    """Which short last bands are merged differs by direction: a tail of half an offset only in direction 0."""
    for rows in range(1, 11):
        for cols in range(1, 11):
            for offset in range(1, 9):
                schedule = bound(fg.SingleCoreSplitKSwizzle(offset, direction), rows, cols).schedule()
                order = list(zip(schedule["m"].tolist(), schedule["n"].tolist(), strict=True))
                assert order == oracle.double_snake_order(rows, cols, offset, direction)


@pytest.mark.parametrize("direction", [0, 1])
def test_single_core_steps_share_an_edge(direction):
    """Consecutive steps on a K tile keep a row or a column of blocks."""
    for rows in range(1, 9):
        for cols in range(1, 9):
            for offset in (1, 2, 3, 5, 20):
                for cores in (1, 3):
                    scheduler = bound(fg.SingleCoreSplitKSwizzle(offset, direction), rows, cols, 2, cores)
                    for steps in steps_by_core(scheduler).values():
                        for ((_, m, n, ks),), ((_, m2, n2, ks2),) in zip(steps, steps[1:], strict=False):
                            assert ks != ks2 or m == m2 or n == n2


@small
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.integers(2, 12))
def test_stream_k_reduction_ownership(rows, cols, kt, cores):
    """The contributors of a stream block, in order, are the shares that hold its K tiles; its parts are numbered likewise."""
    scheduler = bound(fg.StreamKSwizzle(), rows, cols, kt, cores)
    streamed = rows * cols % cores
    order = oracle.identity_order(rows, cols, 1, 0)[rows * cols - streamed :]
    shares = {block: [] for block in order}
    for i in range(rows * cols - streamed, scheduler.core_loops()):
        for piece in scheduler.pieces(i):
            shares[piece[:2]].append((i - (rows * cols - streamed), piece.part, piece.parts))
    for number, block in enumerate(order):
        assert [share for share, _, _ in shares[block]] == list(scheduler.contributors(number))
        assert [part for _, part, _ in shares[block]] == list(range(len(shares[block])))
        assert {parts for _, _, parts in shares[block]} == {len(shares[block])}
    if streamed:
        assert (scheduler.first_core(0), scheduler.first_core(streamed)) == (0, min(cores, streamed * kt))


def painted(scheduler):
    """How often every element of the result is covered, per batch, by rows with element extents."""
    m, n, _ = scheduler.geometry.problem
    count = np.zeros((scheduler.batch, m, n), int)
    for row in scheduler.schedule():
        count[row["batch"], row["m0"] : row["m0"] + row["rows"], row["n0"] : row["n0"] + row["cols"]] += 1
    return count


@small
@given(
    st.integers(1, 30), st.integers(1, 30), st.integers(1, 7), st.integers(1, 7), st.integers(1, 24), st.integers(1, 2)
)
def test_cut_blocks_cover_every_element_once(m, n, tm, tn, cores, batch):
    for swizzle in (fg.AswtSwizzle(tail_split=True), ColumnBlockSwizzle()):
        scheduler = swizzle.bind((m, n, 3), (tm, tn, 2), cores=cores, batch=batch)
        assert (painted(scheduler) == 1).all()
        widths = [row["cols"] for row in scheduler.schedule()]
        assert min(widths) >= 1


def test_column_block_gives_every_core_equal_columns():
    schedule = ColumnBlockSwizzle().bind((8, 103, 4), (4, 8), cores=5).schedule()
    columns = [schedule["cols"][schedule["core"] == core].sum() // 2 for core in range(5)]
    assert columns == [21, 21, 21, 20, 20]
    assert schedule["m"][schedule["core"] == 0].tolist() == [0, 1] * 3  # m varies fastest


def test_aswt_rounds_and_rolling_start():
    scheduler = bound(fg.AswtSwizzle(), 13, 13, cores=20)
    assert cells(scheduler, lambda row: row["task"]).split(" / ")[0].startswith("0 4 8 12 16")
    assert [scheduler.core_loops(core) for core in (0, 8, 9, 19)] == [9, 9, 8, 8]  # 169 = 8 * 20 + 9
    assert next_start_core(169, 20) == 9
    from fastgemm.scheduler import encode_geometry
    from fastgemm.stream import core_steps

    rolled = encode_geometry(scheduler.geometry, scheduler.swizzle, start_core=15)
    assert [int(core_steps(rolled, core)) for core in (14, 15, 19, 0, 3, 4)] == [8, 9, 9, 9, 9, 8]


def test_aswt_tail_split_counts_come_from_the_edge_tile():
    # 3 blocks on 20 cores: 6 cores per block; the edge tile of 100 x 7 is cut into 2 x 3 pieces (the row count shrinks first)
    scheduler = fg.AswtSwizzle(tail_split=True).bind((100, 2 * 128 + 7, 64), (128, 128), cores=20)
    schedule = scheduler.schedule()
    assert scheduler.swizzle.cuts(scheduler.geometry) == (2, 3)
    assert [scheduler.core_loops(c) for c in (0, 17, 18)] == [1, 1, 0]
    first = schedule[schedule["task"] == 0]
    assert first[["m0", "n0", "rows", "cols"]].tolist() == [
        (0, 0, 50, 43), (50, 0, 50, 43), (0, 43, 50, 43), (50, 43, 50, 43), (0, 86, 50, 42), (50, 86, 50, 42),
    ]  # fmt: skip


@pytest.mark.parametrize("make", BANDED)
@pytest.mark.parametrize(("offset", "direction"), [(0, 0), (-1, 1), (1, 2), (3, -1)])
def test_meaningless_parameters_raise(make, offset, direction):
    with pytest.raises(ValueError, match="at least 1|0 .bands of rows. or 1"):
        make(offset, direction)


def test_dynamic_parameters_are_checked_and_reach_bound_schedulers():
    swizzle = fg.DynamicIdentitySwizzle()
    scheduler = bound(swizzle, 3, 4)
    assert cells(scheduler, lambda row: row["task"]) == "0 1 2 3 / 7 6 5 4 / 8 9 10 11"
    assert scheduler.set_swizzle_params(7, 1) is scheduler
    assert cells(scheduler, lambda row: row["task"]) == "0 1 2 3 / 4 5 6 7 / 8 9 10 11"
    swizzle.set_swizzle_params(1, 1)
    assert scheduler.block_coord(4) == (1, 1, 0)
    for bad in ((0, 0), (1, 2)):
        with pytest.raises(ValueError, match="swizzle"):
            swizzle.set_swizzle_params(*bad)
    with pytest.raises(TypeError, match="fixed parameters"):
        bound(fg.IdentitySwizzle(), 3, 4).set_swizzle_params(2, 0)
    with pytest.raises(TypeError):
        hash(swizzle)


def test_three_ways_to_construct():
    swizzle = fg.IdentitySwizzle(2, 0)
    late = swizzle.bind()
    with pytest.raises(ValueError, match="bound to no problem"):
        late.core_loops()
    late.update((5, 4, 7), (1, 1))
    direct = swizzle.bind((5, 4, 7), (1, 1))
    known = swizzle.bind((5, 4, 7), (1, 1), (5, 4))
    assert late.block_coord(13) == direct.block_coord(13) == known.block_coord(13) == (3, 1, 0)
    assert known.update((3, 4, 7), (1, 1), (3, 4)).core_loops() == 12
    with pytest.raises(ValueError, match=r"which is \(3, 4\)"):
        known.update((3, 4, 7), (1, 1), (3, 5))
    with pytest.raises(ValueError, match="both a problem and a tile"):
        swizzle.bind((3, 4, 7))
    with pytest.raises(ValueError, match="needs a problem"):
        swizzle.bind(loops=(3, 4))
    with pytest.raises(ValueError, match="at least 1"):
        swizzle.bind((3, 4, 7), (0, 1))


def test_batches_and_block_shapes():
    scheduler = fg.IdentitySwizzle(3, 0).bind((300, 500, 70), (128, 256, 32), cores=4, batch=3)
    assert (scheduler.core_loops(), scheduler.batch_idx(0), scheduler.batch_idx(17)) == (6, 0, 2)
    assert scheduler.block_coord(13) == scheduler.block_coord(1)
    assert scheduler.actual_block_shape((0, 0)) == (128, 256, 70)
    assert scheduler.actual_block_shape((2, 1)) == (44, 244, 70)
    assert fg.RowMajor().bind((256, 256, 4), (128, 128)).actual_block_shape((1, 1, 0)) == (128, 128, 4)
    for i in (-1, 18):
        with pytest.raises(IndexError, match="18 tasks"):
            scheduler.block_coord(i)
    with pytest.raises(IndexError, match="4 cores"):
        scheduler.core_loops(4)
    with pytest.raises(ValueError, match="outside the grid"):
        scheduler.actual_block_shape((3, 0))
    split = fg.SplitKSwizzle(factor=3).bind((10, 10, 25), (10, 10, 4))
    assert split.actual_block_shape((0, 0, 5), task=2) == (10, 10, 5)
    with pytest.raises(ValueError, match="does not compute"):
        fg.SplitKSwizzle(factor=3).bind((10, 20, 25), (10, 10, 4)).actual_block_shape((0, 1), task=0)


@pytest.mark.parametrize(
    "swizzle", [*(make(3, 1) for make in BANDED), fg.RowMajor(), fg.AswtSwizzle(tail_split=True), ColumnBlockSwizzle()]
)
def test_empty_problems_have_empty_schedules(swizzle):
    for problem, batch in (((0, 5, 5), 1), ((5, 0, 5), 1), ((0, 0, 0), 1), ((5, 5, 5), 0)):
        scheduler = swizzle.bind(problem, (2, 2, 2), cores=3, batch=batch)
        assert len(scheduler.schedule()) == 0
        assert [scheduler.core_loops(core) for core in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("swizzle", [*(make(3, 1) for make in BANDED), fg.RowMajor(), fg.AswtSwizzle()])
def test_an_empty_k_still_visits_every_block_once(swizzle):
    schedule = swizzle.bind((4, 5, 0), (2, 2, 2), cores=4).schedule()
    assert {(row["m"], row["n"], row["klen"]) for row in schedule} == {(m, n, 0) for m in range(2) for n in range(3)}
    assert len(schedule) == 6


def test_schedule_fields_and_order():
    schedule = bound(fg.IdentitySwizzle(2, 0), 5, 4, 3, cores=3).schedule()
    assert schedule.dtype.names == ("core", "step", "task", "batch", "m", "n", "k0", "klen")
    assert schedule["task"].tolist() == list(range(20))
    assert schedule["step"].tolist() == [i // 3 for i in range(20)]
    assert (schedule["klen"] == 3).all()


def test_large_grids_stay_exact():
    scheduler = fg.IdentitySwizzle(2**40, 0).bind((2**40, 2**40, 2**33), (2**15, 2**20, 2**10))
    assert scheduler.core_loops() == 2**45
    assert scheduler.block_coord(2**44 + 5) == (5, 2**19, 0)
    assert scheduler.pieces(2**45 - 1)[0].m0 == 2**40 - 2**15


def test_auto_swizzle_takes_the_largest_band_that_fits():
    swizzle, reason = auto_swizzle((4096, 4096, 4096), (128, 256, 256), 4, 32 << 20)
    assert (swizzle.offset, swizzle.direction) == (12, 0)  # 12 * 128 * 4096 * 4 = 24 MiB = 0.75 * 32 MiB
    assert "24 MiB" in reason
    assert "M = 4096 = N = 4096" in reason
    assert auto_swizzle((4096, 4096, 4096), (128, 256), 4, 32 << 20, rule="code")[0] == fg.IdentitySwizzle(6, 1)
    assert auto_swizzle((4097, 4096, 64), (128, 256), 4, 32 << 20, rule="code")[0].direction == 0
    assert auto_swizzle((100, 4096, 64), (128, 256), 4, 32 << 20)[0] == fg.IdentitySwizzle(16, 1)  # all columns fit
    assert auto_swizzle((10**6, 10, 10**6), (128, 256), 4, 32 << 20)[0] == fg.IdentitySwizzle(1, 0)  # not even one
    assert auto_swizzle((0, 0, 0), (128, 256), 4, 32 << 20)[0] == fg.IdentitySwizzle(1, 0)
    with pytest.raises(ValueError, match="rule"):
        auto_swizzle((1, 1, 1), (1, 1), 4, 1, rule="guess")


@pytest.mark.parametrize(
    ("extent", "itemsize", "cores", "cache", "direction", "hits"),
    [
        (16384, 2, 24, 192, 0, {3: 0.825, 4: 0.870, 6: 0.907, 8: 0.929, 12: 0.947, 20: 0.961, 24: 0.964}),
        (16384, 2, 24, 192, 1, {2: 0.870, 3: 0.907, 5: 0.940, 8: 0.957, 12: 0.964, 16: 0.974, 24: None}),
        (16384, 2, 20, 96, 1, {3: 0.888, 5: 0.929, 8: 0.950, 12: None}),
        (4096, 4, 1, 32, 0, {3: 0.815, 4: 0.849, 6: 0.870, 12: 0.919, 16: None}),
        (4096, 4, 4, 32, 1, {2: 0.849, 3: 0.870, 4: 0.898, 6: 0.918, 8: None}),
    ],
)
def test_predicted_hits_follow_the_cache_simulation(extent, itemsize, cores, cache, direction, hits):
    """Within 0.03 of the simulated hit rates before the cliff, silent behind it."""
    for offset, expected in hits.items():
        swizzle = fg.IdentitySwizzle(offset, direction)
        miss, remark = predicted_miss((extent,) * 3, (128, 256), itemsize, swizzle, cores, cache << 20)
        if expected is None:
            assert miss is None
            assert "cliff" in remark
        else:
            assert 1 - miss == pytest.approx(expected, abs=0.03)


def test_predicted_hits_of_row_major_and_of_problems_that_fit():
    def hit(extent, itemsize, cores, cache):
        return 1 - predicted_miss((extent,) * 3, (128, 256), itemsize, fg.RowMajor(), cores, cache << 20)[0]

    assert hit(16384, 2, 24, 192) == pytest.approx(0.316, abs=0.01)
    assert [hit(4096, 4, cores, 32) for cores in (1, 4, 8, 16)] == pytest.approx([0.312, 0.312, 0.292, 0.312], abs=0.01)
    assert hit(4096, 2, 24, 192) == pytest.approx(0.958, abs=0.01)
    assert predicted_miss((0, 5, 5), (1, 1), 4, fg.RowMajor(), 1, 100)[0] is None
    assert predicted_miss((900, 900, 900), (1, 1), 4, fg.StreamKSwizzle(), 1, 100)[0] is None
