"""Explanations and pictures: the numbers add up, the text says why, every kind of scheduler can be drawn."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import fastgemm as fg
from fastgemm import explain as ex
from fastgemm.options import Options
from fastgemm.swizzle import ColumnBlockSwizzle

mpl = pytest.importorskip("matplotlib")
mpl.use("Agg")


def plan_of(
    m,
    n,
    k,
    batch=1,
    dtype="f4",
    policy="auto",
    swizzle="auto",
    tile=None,
    cores=None,
    threads=2,
    arch="host",
    reproducible=False,
):
    tile = None if tile is None else fg.Tile.of(tile)
    options = Options(policy, swizzle, tile, cores, threads, fg.arch(arch), reproducible)
    return SimpleNamespace(m=m, n=n, k=k, batch=batch, compute=np.dtype(dtype), options=options)


def test_facts_add_up_and_are_json():
    plan = plan_of(
        500,
        700,
        300,
        3,
        policy=fg.Preload(3, staging="copy"),
        swizzle=fg.IdentitySwizzle(2, 0),
        tile=(128, 256, 64),
        cores=5,
    )
    facts = ex.facts(plan)
    assert json.loads(json.dumps(facts)) == facts
    assert (facts["grid"], facts["k_tiles"], facts["tasks"], facts["waves"]) == ([4, 3], 5, 36, 8)
    assert facts["slots"] == [3, 3]
    assert facts["staging_bytes"] == 3 * (128 + 256) * 64 * 4
    assert facts["shuffle_k"]
    assert facts["unit_flag"]
    scheduler = plan.options.swizzle.bind((500, 700, 300), (128, 256, 64), cores=5, batch=3)
    load = np.zeros(5)
    for row in scheduler.schedule():
        rows, cols, k = scheduler.actual_block_shape((row["m"], row["n"]))
        load[row["core"]] += rows * cols * k
    assert facts["busiest_core"] == load.argmax()
    assert facts["imbalance"] == pytest.approx(load.max() / load.mean())


def test_text_says_what_and_why():
    text = ex.explain(
        plan_of(
            4096, 4096, 4096, policy=fg.PreloadAsync(), tile=(128, 256, 256), arch="ascend_a2", dtype="f2", cores=20
        )
    )
    for words in (
        "PreloadAsync()",
        "M = 4096 = N = 4096",
        "32 x 16 blocks, 16 K tiles",
        "20 cores",
        "26 waves",
        "ShuffleK",
        "A packed, B packed",
        "miss",
    ):
        assert words in text
    text = ex.explain(plan_of(2000, 1500, 3000, policy=fg.Pingpong(), reproducible=True))
    for words in ("reproducible", "A in place, B packed unless a slot holds it", "K from 0", "band"):
        assert words in text


def test_the_balance_case_of_the_swizzle_note():
    """The offset decides balance: 288 against 256 rows on the busiest core."""
    found = [
        ex.facts(
            plan_of(
                160, 6144, 64, policy=fg.Pingpong(), swizzle=fg.IdentitySwizzle(s, 1), tile=(128, 256, 64), cores=20
            )
        )
        for s in (3, 4)
    ]
    assert found[0]["imbalance"] / found[1]["imbalance"] == pytest.approx(288 / 256)


def test_paths_of_auto():
    small = ex.explain(plan_of(100, 60, 50))
    assert "no op stream is planned" in small
    large = ex.facts(plan_of(2000, 1500, 3000))
    assert large["path"] == "stream"
    assert large["policy"] == "HostPanels()"
    assert large["predicted_miss"] is None
    assert "K slab outermost" in ex.schedule_text(large)


def test_split_and_cut_schedulers_are_balanced_by_elements():
    for swizzle in (
        fg.StreamKSwizzle(3, 0),
        fg.SplitKSwizzle(3, 0),
        fg.AswtSwizzle(tail_split=True),
        ColumnBlockSwizzle(),
        fg.SingleCoreSplitKSwizzle(),
    ):
        facts = ex.facts(plan_of(300, 300, 300, policy=fg.Pingpong(), swizzle=swizzle, tile=(100, 100, 100), cores=6))
        assert 1 <= facts["imbalance"] < 2
        assert ex.schedule_text(facts)


def test_huge_schedules_are_not_counted():
    facts = ex.facts(plan_of(10**5, 10**5, 8, policy=fg.Pingpong(), swizzle=fg.RowMajor(), tile=(8, 8, 8)))
    assert facts["imbalance"] is None
    assert "mean work" not in ex.schedule_text(facts)


@pytest.mark.parametrize(
    "swizzle",
    [
        fg.IdentitySwizzle(3, 0),
        fg.RowMajor(),
        fg.SplitKSwizzle(2, 1, factor=2),
        fg.StreamKSwizzle(3, 0),
        fg.L1FullLoadSwizzle(),
        fg.SingleCoreSplitKSwizzle(3, 1),
        fg.AswtSwizzle(tail_split=True),
        ColumnBlockSwizzle(),
    ],
    ids=str,
)
def test_every_scheduler_can_be_drawn(swizzle):
    scheduler = swizzle.bind((6, 7, 4), (1, 1, 1), cores=4, batch=2)
    ax = ex.traversal_picture(scheduler)
    assert str(swizzle) in ax.get_title()
    assert isinstance(swizzle, ColumnBlockSwizzle) or len(ax.texts) == 42
    ax.figure.canvas.draw()
    mpl.pyplot.close(ax.figure)


def test_pictures_take_an_axes_and_a_plan():
    figure, ax = mpl.pyplot.subplots()
    plan = plan_of(500, 700, 300, policy=fg.Preload(), swizzle=fg.IdentitySwizzle(2, 0), tile=(128, 256, 64), cores=5)
    assert ex.traversal_picture(plan, ax=ax, by="core", numbers=False) is ax
    assert not ax.texts
    assert "4 x 3 blocks, 5 cores" in ax.get_title()
    colours = ax.images[0].get_array()
    schedule = plan.options.swizzle.bind((500, 700, 300), (128, 256, 64), cores=5).schedule()
    one = [tuple(colours[m, n]) for core, m, n in schedule[["core", "m", "n"]] if core == 1]
    assert len(set(one)) == 1  # a core has one colour
    mpl.pyplot.close(figure)
    with pytest.raises(ValueError, match="cannot be drawn"):
        ex.traversal_picture(fg.RowMajor().bind((100, 100, 1), (1, 1)))
    with pytest.raises(ValueError, match="by must be"):
        ex.traversal_picture(fg.RowMajor().bind((10, 10, 1), (1, 1)), by="row")
