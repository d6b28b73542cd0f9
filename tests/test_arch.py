"""Architecture profiles: the vendor's figures, detected caches, default tiles."""

import sys

import numpy as np
import pytest

import fastgemm as fg
from fastgemm.arch import Arch, Caches, detect_caches, evened, host_arch

KIB, MIB = 1 << 10, 1 << 20


def fake_cpu(root, cpu, caches):
    """A sysfs folder: caches are (level, type, size, shared_cpu_list)."""
    for number, (level, kind, size, shared) in enumerate(caches):
        entry = root / f"cpu{cpu}" / "cache" / f"index{number}"
        entry.mkdir(parents=True)
        for name, text in (("level", str(level)), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (entry / name).write_text(text + "\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sysfs is Linux's")
def test_caches_from_sysfs(tmp_path):
    fake_cpu(
        tmp_path,
        0,
        [
            (1, "Data", "48K", "0,64"),
            (1, "Instruction", "32K", "0,64"),
            (2, "Unified", "2048K", "0,64"),
            (3, "Unified", "60M", "0-31,64-95"),
        ],
    )
    assert detect_caches(tmp_path) == Caches(48 * KIB, 2 * MIB, 60 * MIB, 64, "sysfs")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sysfs is Linux's")
def test_caches_without_a_third_level_and_without_a_description(tmp_path):
    fake_cpu(tmp_path, 3, [(1, "Data", "64K", "3"), (2, "Unified", "1M", "0-3")])
    assert detect_caches(tmp_path) == Caches(64 * KIB, MIB, MIB, 4, "sysfs")
    empty = detect_caches(tmp_path / "none")
    assert (empty.l1d, empty.l2, empty.llc, empty.source) == (32 * KIB, 512 * KIB, 8 * MIB, "default")
    (tmp_path / "cpu3" / "cache" / "index0" / "size").write_text("a lot")
    assert detect_caches(tmp_path).source == "default"


def test_vendor_profiles():
    a2, wide = fg.arch("ascend_a2"), fg.arch("ascend_950")
    assert [x // KIB for x in (a2.l1, a2.l0a, a2.l0b, a2.l0c)] == [512, 64, 64, 128]
    assert [x // KIB for x in (wide.l1, wide.l0a, wide.l0b, wide.l0c)] == [512, 64, 64, 256]
    assert (a2.cores, a2.llc_bytes, a2.events, a2.align, a2.host) == (24, 192 * MIB, 8, 32, False)
    assert a2.default_tile("f2") == fg.Tile((128, 256, 256), (128, 256, 64))
    assert a2.default_tile(np.float32) == fg.Tile((128, 128, 256), (128, 128, 64))
    assert wide.default_tile("f4") == fg.Tile((256, 256, 128), (256, 256, 32))
    assert a2.default_tile("int8") == fg.Tile((128, 256, 512), (128, 256, 128))
    assert a2.default_tile("int4") == fg.Tile((128, 256, 1024), (128, 256, 256))
    assert a2.default_tile("f2", (10, 10, 10)).l1 == (128, 256, 256)  # a device's tile does not shrink
    with pytest.raises(ValueError, match="no default tile for float128|no default tile for longdouble"):
        a2.default_tile(np.longdouble)


def test_host_profile():
    host = fg.arch("host")
    assert host is fg.arch()
    assert host.host
    assert host.cores >= 1
    assert host.llc_bytes >= host.l2 >= host.l1d > 0
    assert fg.arch(host) is host
    with pytest.raises(ValueError, match="known are host, ascend_a2, ascend_950"):
        fg.arch("tpu")


@pytest.mark.parametrize(
    ("caches", "cpus", "l1"),
    [
        (Caches(32 * KIB, MIB, 32 * MIB, 2, "sysfs"), 2, 8 * MIB),  # half of the share of two
        (Caches(32 * KIB, MIB, 32 * MIB, 16, "sysfs"), 64, MIB),
        (Caches(48 * KIB, 2 * MIB, 60 * MIB, 64, "sysfs"), 4, 60 * MIB // 8),  # only four of the sharers are ours
        (Caches(32 * KIB, 256 * KIB, 256 * KIB, 1, "default"), 1, 256 * KIB),
    ],
)
def test_host_tiles_fit_every_machine(caches, cpus, l1):
    profile = host_arch(caches, cpus)
    assert profile.l1 == l1
    for dtype in profile.tiles:
        tile = profile.default_tile(dtype)
        fg.Pingpong(staging="copy").validate(profile, tile, dtype)
        assert tile.l1[:2] == (384, 384) or l1 < MIB


def test_host_tiles_shrink_to_the_problem_evenly():
    profile = host_arch(Caches(32 * KIB, MIB, 32 * MIB, 2, "sysfs"), 2)
    assert profile.default_tile("f4").l1 == (384, 384, 1152)
    assert profile.default_tile("f4", (100, 1000, 2000)).l1 == (100, 336, 1000)
    assert profile.default_tile("f4", (0, 5, 1)).l1 == (1, 5, 1)
    assert [evened(1000, 448), evened(448, 448), evened(449, 448), evened(7, 3, 1)] == [336, 448, 232, 3]


def test_own_profiles_pass():
    own = Arch(
        "tiny", l1=1024, l0a=512, l0b=512, l0c=1024, llc_bytes=4096, cores=3, tiles={"float32": fg.Tile((8, 8, 8))}
    )
    assert fg.arch(own) is own
    assert own.default_tile("f4", stages=3).l1 == (8, 8, 8)
    with pytest.raises(ValueError, match="L1 of tiny"):
        fg.Pingpong().validate(own, fg.Tile((16, 16, 16)), "f4")


@pytest.mark.parametrize("bad", [(1, 2), (1, 2, 0), (1, 2, 3, 4)])
def test_tiles_have_three_positive_extents(bad):
    with pytest.raises(ValueError, match="three positive extents"):
        fg.Tile(bad)
    with pytest.raises(ValueError, match="l0"):
        fg.Tile((1, 2, 3), bad)


def test_tile_of():
    tile = fg.Tile((np.int64(4), 5, 6))
    assert tile.l1 == (4, 5, 6)
    assert fg.Tile.of(tile) is tile
    assert fg.Tile.of((4, 5, 6)) == tile
