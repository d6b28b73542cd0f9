"""Dispatch policies: defaults, spelling, the constraints of the buffers with their numbers, resolved flags."""

import dataclasses

import pytest

import fastgemm as fg
from fastgemm.policy import Policy

A2, WIDE, HOST = fg.arch("ascend_a2"), fg.arch("ascend_950"), fg.arch("host")
FOUR = [fg.Pingpong(), fg.Preload(), fg.PreloadAsync(), fg.PreloadAsyncWithCallback()]
ALL = [*FOUR, fg.HostPanels()]
HALF = fg.Tile((128, 256, 256), (128, 256, 64))


def test_defaults_and_positions():
    assert fg.Pingpong() == fg.Pingpong(2, None)
    assert fg.Preload() == fg.Preload(2, None, None)
    assert fg.PreloadAsync() == fg.PreloadAsync(1, 2, 2, 2, 1, False, None)
    callback = fg.PreloadAsyncWithCallback(1, 2, 4, 2, 1, True, False, before=print, after=len)
    assert (callback.l0a_stages, callback.unit_flag, callback.shuffle_k, callback.before, callback.after) == (
        4,
        True,
        False,
        print,
        len,
    )
    assert fg.HostPanels() == fg.HostPanels(kc=None, pack_b=None, chunks=None)
    for policy in ALL:
        assert policy.staging == "auto"
        assert hash(policy) == hash(dataclasses.replace(policy))
        with pytest.raises(dataclasses.FrozenInstanceError):
            policy.staging = "copy"


def test_text_names_what_differs_from_the_defaults():
    assert str(fg.Preload()) == "Preload()"
    assert str(fg.PreloadAsync(2, 3, staging="copy")) == "PreloadAsync(staging='copy', preload_stages=2, l1_stages=3)"


def test_the_documented_spelling_of_the_unit_flag():
    assert fg.Pingpong(uint_flag=True).unit_flag is True
    assert fg.PreloadAsyncWithCallback(uint_flag=True) == fg.PreloadAsyncWithCallback(unit_flag=True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fg.Pingpong(stages=1), "stages must be at least 2, got 1"),
        (lambda: fg.Preload(stages=0), "stages must be at least 2, got 0"),
        (lambda: fg.PreloadAsync(2, 2), "preload_stages = 2 must be smaller than l1_stages = 2"),
        (lambda: fg.PreloadAsyncWithCallback(5, 3), "preload_stages = 5 must be smaller than l1_stages = 3"),
        (lambda: fg.PreloadAsync(0, 2), "preload_stages must be at least 1, got 0"),
        (lambda: fg.PreloadAsync(l0c_stages=0), "l0c_stages must be at least 1"),
        (lambda: fg.HostPanels(kc=0), "kc must be at least 1"),
        (lambda: fg.HostPanels(chunks=-1), "chunks must be at least 1"),
        (lambda: fg.Pingpong(staging="view"), "staging must be"),
    ],
)
def test_meaningless_parameters_raise(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_wrong_kinds_raise():
    with pytest.raises(TypeError, match="before must be callable"):
        fg.PreloadAsyncWithCallback(before=3)
    with pytest.raises(TypeError):
        fg.Pingpong(stages=2.5)


@pytest.mark.parametrize("policy", FOUR, ids=str)
@pytest.mark.parametrize("arch", ["host", "ascend_a2", "ascend_950"])
@pytest.mark.parametrize("staging", ["auto", "copy"])
def test_default_tiles_fit(policy, arch, staging):
    profile = fg.arch(arch)
    for dtype in profile.tiles:
        dataclasses.replace(policy, staging=staging).validate(profile, profile.default_tile(dtype), dtype)


def test_deeper_rings_get_shorter_default_tiles():
    policy = fg.PreloadAsync(3, 4)
    for profile in (HOST, A2):
        with pytest.raises(ValueError, match="4 stages"):
            dataclasses.replace(policy, staging="copy").validate(profile, profile.default_tile("float16"), "float16")
        policy.validate(profile, profile.default_tile("float16", stages=4), "float16")


@pytest.mark.parametrize(
    ("policy", "tile", "dtype", "arch", "words"),
    [
        # 3 * (128*256 + 256*256) * 2 = 589824 > 524288
        (
            fg.Pingpong(3),
            HALF,
            "float16",
            A2,
            "3 stages of 128x256 \\+ 256x256 float16 take 589824 bytes; L1 of ascend_a2 has 524288",
        ),
        (fg.PreloadAsync(l1_stages=3), HALF, "float16", A2, "589824 bytes; L1"),
        (
            fg.Pingpong(),
            fg.Tile((256, 128, 256), (256, 128, 80)),
            "float16",
            A2,
            "256x80 float16 take 81920 bytes; L0A of ascend_a2 has 65536",
        ),
        (
            fg.Pingpong(),
            fg.Tile((128, 256, 256), (128, 256, 80)),
            "float16",
            A2,
            "80x256 float16 take 81920 bytes; L0B of ascend_a2 has 65536",
        ),
        (
            fg.Pingpong(),
            fg.Tile((256, 256, 128), (256, 256, 32)),
            "float32",
            A2,
            "1 stages of 256x256 accumulators of 4 bytes take 262144",
        ),
        (fg.PreloadAsync(l0c_stages=2), HALF, "float16", A2, "2 stages of 128x256 accumulators"),
        (
            fg.Pingpong(),
            fg.Tile((128, 256, 256), (64, 256, 64)),
            "float16",
            A2,
            "m and n, got l0 \\(64, 256\\) and l1 \\(128, 256\\)",
        ),
        (
            fg.Pingpong(),
            fg.Tile((128, 256, 64), (128, 256, 128)),
            "float16",
            A2,
            "k = 128 is larger than the l1 tile's k = 64",
        ),
        (
            fg.Pingpong(),
            fg.Tile((120, 256, 256)),
            "float16",
            A2,
            "tile m = 120 is 240 bytes of float16; ascend_a2 takes multiples of 32",
        ),
        (fg.Pingpong(), fg.Tile((128, 256, 48)), "int8", A2, "tile k = 48"),
        (
            fg.PreloadAsync(1, 5),
            fg.Tile((16, 16, 16)),
            "float16",
            A2,
            "L1 slots of A and B take 10 event ids; ascend_a2 has 8",
        ),
        (fg.PreloadAsync(1, 2, 5, 4), fg.Tile((16, 16, 16)), "float16", A2, "L0 slots of A and B take 9 event ids"),
        (fg.Pingpong(unit_flag=True), fg.Tile((128, 256, 512)), "int8", A2, "unit flag does not exist for int8"),
    ],
)
def test_violated_constraints_name_the_numbers(policy, tile, dtype, arch, words):
    with pytest.raises(ValueError, match=words):
        policy.validate(arch, tile, dtype)


def test_constraints_depend_on_the_architecture():
    tile = fg.Tile((256, 256, 128), (256, 256, 32))
    fg.Pingpong().validate(WIDE, tile, "float32")  # its L0C has 256 KiB
    fg.PreloadAsync(1, 5).validate(HOST, fg.Tile((16, 16, 16)), "float16")  # no event ids
    fg.Pingpong().validate(HOST, fg.Tile((3, 5, 7)), "float64")  # no alignment
    big = fg.Tile((4096, 128, 1024))
    with pytest.raises(ValueError, match="L1 of host"):
        fg.Pingpong(staging="copy").validate(HOST, big, "float64")
    assert fg.Pingpong().stages_a(A2)
    assert not fg.Pingpong().stages_a(HOST)


def test_unit_flag_is_on_for_floats_and_off_for_integers():
    assert fg.Pingpong().unit_flag_for("f4")
    assert fg.Preload().unit_flag_for("bfloat16")
    assert not fg.Preload().unit_flag_for("int8")
    assert not fg.Preload(unit_flag=False).unit_flag_for("float16")
    assert not fg.PreloadAsync().unit_flag_for("float16")
    assert fg.PreloadAsync(unit_flag=None).unit_flag_for("float16")


@pytest.mark.parametrize("make", [fg.Preload, fg.PreloadAsync, fg.PreloadAsyncWithCallback])
def test_shuffle_k_is_off_under_reproducible(make):
    assert make().shuffles()
    assert not make().shuffles(reproducible=True)
    assert not make(shuffle_k=False).shuffles()
    assert make(shuffle_k=True).shuffles()
    with pytest.raises(ValueError, match="reproducible=True rules out"):
        make(shuffle_k=True).shuffles(reproducible=True)
    assert not fg.Pingpong().shuffles()
    assert not fg.HostPanels().shuffles()


def test_every_policy_is_one():
    assert all(isinstance(policy, Policy) for policy in ALL)
    assert len({policy.id for policy in ALL}) == 5
