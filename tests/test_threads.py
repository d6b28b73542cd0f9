"""How many threads a call may use: who decides, in which order, and what is refused; the cgroup quota from made-up files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastgemm as fg
from fastgemm.gemm import cgroup
from fastgemm.gemm import threads as counts

NAMES = ("FASTGEMM_NUM_THREADS", "OMP_NUM_THREADS", "FASTGEMM_POOL")


@pytest.fixture(autouse=True)
def automatic(monkeypatch):
    """No number is set, neither by the environment nor by an earlier test."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    counts.set_num_threads(None)
    yield
    monkeypatch.undo()
    counts.set_num_threads(None)


def fresh(code: str, **environment: str) -> str:
    """Standard output of a fresh interpreter with just these of the variables set."""
    settings = {name: value for name, value in os.environ.items() if name not in NAMES} | environment
    command = [sys.executable, "-W", "error", "-c", "import os, fastgemm as fg\n" + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=settings)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_public_names_are_these_functions():
    assert fg.get_num_threads is counts.get_num_threads
    assert fg.set_num_threads is counts.set_num_threads
    assert fg.threads is counts.threads


def test_the_host_decides_when_nobody_else_does():
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cgroup.cpu_quota()
    expected = available if quota is None else max(1, min(available, int(quota)))
    assert fg.get_num_threads() == expected
    assert "affinity mask" in counts.describe()["source"]


def test_the_order_of_those_who_decide(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "11")
    counts.set_num_threads(None)
    assert (fg.get_num_threads(), counts.describe()["source"]) == (11, "OMP_NUM_THREADS=11")
    monkeypatch.setenv("FASTGEMM_NUM_THREADS", "12")
    counts.set_num_threads(None)
    assert (fg.get_num_threads(), counts.describe()["source"]) == (12, "FASTGEMM_NUM_THREADS=12")
    fg.set_num_threads(13)
    assert (fg.get_num_threads(), counts.describe()["source"]) == (13, "set_num_threads(13)")
    with fg.threads(14):
        assert (fg.get_num_threads(), counts.describe()["source"]) == (14, "fastgemm.threads(14)")
        assert counts.resolve(15) == 15
        assert counts.resolve(None) == 14
    assert counts.resolve(None) == 13


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"OMP_NUM_THREADS": "3"}, "3"),
        ({"OMP_NUM_THREADS": "3,2"}, "3"),
        ({"OMP_NUM_THREADS": " 4 "}, "4"),
        ({"OMP_NUM_THREADS": "5", "FASTGEMM_NUM_THREADS": "6"}, "6"),
        ({"OMP_NUM_THREADS": "5", "FASTGEMM_NUM_THREADS": ""}, "5"),
    ],
)
def test_the_environment_of_a_process(environment, expected):
    assert fresh("print(fg.get_num_threads())", **environment) == expected


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity mask on this system")
def test_the_affinity_mask_of_a_process():
    one = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(fg.get_num_threads())"
    assert fresh(one) == "1"
    assert fresh(one, OMP_NUM_THREADS="7") == "7"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_looks_at_its_own_mask_but_keeps_what_was_set():
    code = """
before = fg.get_num_threads()
def child(expected):
    if os.fork() == 0:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        os._exit(fg.get_num_threads() != expected)
    return os.waitstatus_to_exitcode(os.wait()[1])
print(child(1), fg.get_num_threads() == before)
fg.set_num_threads(9)
print(child(9))
"""
    assert fresh(code).split() == ["0", "True", "0"]


@pytest.mark.parametrize("value", ["many", "0", "-1", "2.5", "513", "1e2"])
def test_a_bad_number_in_our_own_variable_is_named(monkeypatch, value):
    monkeypatch.setenv("FASTGEMM_NUM_THREADS", value)
    with pytest.raises(ValueError, match=f"FASTGEMM_NUM_THREADS.*between 1 and 512.*'{value}'"):
        counts.set_num_threads(None)


@pytest.mark.parametrize("value", ["many", "0", "-1", "", ",", "2.5"])
def test_a_bad_number_for_openmp_is_passed_over(monkeypatch, value):
    expected = fg.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    counts.set_num_threads(None)
    assert fg.get_num_threads() == expected


def test_a_huge_number_for_openmp_is_capped(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "100000")
    counts.set_num_threads(None)
    assert fg.get_num_threads() == counts.MAX_THREADS


@pytest.mark.parametrize("setter", [fg.set_num_threads, fg.threads, counts.resolve])
def test_what_is_no_number_of_threads_is_refused(setter):
    for value in (0, -1, 513, 10**30):
        with pytest.raises(ValueError, match=rf"between 1 and 512, got {value}"):
            setter(value)
    for value in ("2", 2.0, True, [2]):
        with pytest.raises(TypeError, match="must be an integer"):
            setter(value)
    setter(np.int16(3))


def test_blocks_nest_and_end_with_exceptions():
    base = fg.get_num_threads()
    with fg.threads(3):
        with pytest.raises(LookupError), fg.threads(5):
            assert fg.get_num_threads() == 5
            raise LookupError
        assert fg.get_num_threads() == 3
        fg.set_num_threads(7)
        assert fg.get_num_threads() == 3
    assert fg.get_num_threads() == 7
    fg.set_num_threads(None)
    assert fg.get_num_threads() == base


def test_a_block_decorates_a_function():
    before = fg.get_num_threads()

    @fg.threads(4)
    def inner() -> int:
        return fg.get_num_threads()

    assert [inner(), inner()] == [4, 4]
    assert fg.get_num_threads() == before


def test_a_block_belongs_to_its_context():
    seen = []
    with fg.threads(5):
        thread = threading.Thread(target=lambda: seen.append(fg.get_num_threads()))
        thread.start()
        thread.join()
    assert seen == [fg.get_num_threads()]


@given(st.lists(st.integers(1, 512), max_size=6))
def test_any_nest_of_blocks_unwinds(numbers):
    before = fg.get_num_threads()
    blocks = [fg.threads(number) for number in numbers]
    for block, number in zip(blocks, numbers, strict=True):
        block.__enter__()
        assert fg.get_num_threads() == number
    for block, outer in zip(reversed(blocks), [*reversed(numbers[:-1]), before], strict=False):
        block.__exit__(None, None, None)
        assert fg.get_num_threads() == outer


def test_describe_says_it_all():
    found = counts.describe()
    assert set(found) == {"threads", "source", "processors", "affinity", "quota", "pool"}
    assert found["pool"] in ("futex", "portable")
    assert found["threads"] >= 1


@pytest.mark.parametrize("value", ["fast", "FUTEX"])
def test_an_unknown_pool_is_named(monkeypatch, value):
    monkeypatch.setenv("FASTGEMM_POOL", value)
    with pytest.raises(ValueError, match=f"FASTGEMM_POOL must be.*{value}"):
        counts.pool_kind()


@pytest.mark.parametrize(("platform", "machine"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "ppc64le")])
def test_other_systems_take_the_portable_pool(monkeypatch, platform, machine):
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert counts.pool_kind() == "portable"
    monkeypatch.setenv("FASTGEMM_POOL", "futex")
    with pytest.raises(ValueError, match="needs Linux"):
        counts.pool_kind()


# --- cgroups: (files below the root, quota in processors)

V2 = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 20 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:29 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n"
)
MOUNTS, GROUP = "proc/self/mountinfo", "proc/self/cgroup"
CASES = {
    "version 2": ({MOUNTS: V2, GROUP: "0::/box\n", "sys/fs/cgroup/box/cpu.max": "150000 100000\n"}, 1.5),
    "version 2 without a limit": ({MOUNTS: V2, GROUP: "0::/box\n", "sys/fs/cgroup/box/cpu.max": "max 100000\n"}, None),
    "the tighter group above counts": (
        {
            MOUNTS: V2,
            GROUP: "0::/slice/box\n",
            "sys/fs/cgroup/slice/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/slice/box/cpu.max": "400000 100000\n",
        },
        2.0,
    ),
    "a namespace shows its own root": ({MOUNTS: V2, GROUP: "0::/\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),
    "a group outside the mount": (
        {
            MOUNTS: V2.replace(" / /sys", " /docker/abc /sys"),
            GROUP: "0::/elsewhere\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
        },
        0.5,
    ),
    "a mount of a part of the hierarchy": (
        {
            MOUNTS: V2.replace(" / /sys", " /docker/abc /sys"),
            GROUP: "0::/docker/abc/inner\n",
            "sys/fs/cgroup/inner/cpu.max": "700000 100000\n",
        },
        7.0,
    ),
    "version 1": (
        {
            MOUNTS: V1,
            GROUP: "5:memory:/box\n4:cpu,cpuacct:/box\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
        },
        2.5,
    ),
    "version 1 without a limit": (
        {
            MOUNTS: V1,
            GROUP: "4:cpu,cpuacct:/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        None,
    ),
    "both versions at once": (
        {
            MOUNTS: V1 + V2.replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"),
            GROUP: "4:cpu,cpuacct:/\n0::/\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "400000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        4.0,
    ),
    "damaged files": ({MOUNTS: V2 + "30 20\n\n - \n", GROUP: "0::/box\nx\n", "sys/fs/cgroup/box/cpu.max": "?"}, None),
    "a period of nothing": ({MOUNTS: V2, GROUP: "0::/\n", "sys/fs/cgroup/cpu.max": "100 0\n"}, None),
    "no such files": ({}, None),
}


def _lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize("case", CASES)
def test_quota_of_a_cgroup(tmp_path, case):
    files, expected = CASES[case]
    assert cgroup.cpu_quota(_lay(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("quota", "count"), [("50000", 1), ("100000", 1), ("299999", 2), ("300000", 3), ("9900000", 8)]
)
def test_whole_processors_of_a_quota_count(tmp_path, monkeypatch, quota, count):
    root = _lay(tmp_path, {MOUNTS: V2, GROUP: "0::/\n", "sys/fs/cgroup/cpu.max": f"{quota} 100000\n"})
    real = cgroup.cpu_quota
    monkeypatch.setattr(cgroup, "cpu_quota", lambda: real(root))
    monkeypatch.setattr(counts, "_processors", lambda: 8)
    counts.set_num_threads(None)
    assert fg.get_num_threads() == count
    assert ("cgroup" in counts.describe()["source"]) == (count < 8)
    assert counts.describe()["quota"] == int(quota) / 100000
