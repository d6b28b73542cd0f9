"""show_config, clear_cache and selftest."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fastgemm as fg
from fastgemm import config, peak, selfcheck


def test_config_has_every_section_and_is_json():
    facts = fg.show_config(mode="dicts")
    assert {"versions", "host", "kernels", "threads", "cache", "environment"} == set(facts)
    assert json.loads(json.dumps(facts)) == facts
    assert facts["versions"]["fastgemm"] == fg.__version__
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["kernels"]["row"] in facts["kernels"]["usable"]
    assert facts["threads"]["threads"] == fg.get_num_threads()
    assert facts["cache"]["bytes_of_all_versions"] >= facts["cache"]["bytes"] >= 0


def test_config_prints_by_default(capsys):
    assert fg.show_config() is None
    out = capsys.readouterr().out
    for word in ("versions:", "kernels:", "threads:", "cache:", fg.__version__, "folder"):
        assert word in out


def test_config_names_a_wrong_mode():
    with pytest.raises(ValueError, match="mode is 'yaml'; choose 'stdout' or 'dicts'"):
        fg.show_config(mode="yaml")


@pytest.fixture
def row_read_afresh():
    """The variable is read once a process."""
    from fastgemm.gemm.table import host_isa

    host_isa.cache_clear()
    yield
    host_isa.cache_clear()


def test_config_shows_the_environment_and_the_forced_row(monkeypatch, row_read_afresh):
    monkeypatch.setenv("FASTGEMM_ISA", "generic")
    facts = fg.show_config(mode="dicts")
    assert facts["environment"]["FASTGEMM_ISA"] == "generic"
    assert facts["kernels"]["row"] == "generic" and facts["kernels"]["why"] == "FASTGEMM_ISA is set"


def test_config_survives_a_cache_folder_that_cannot_be(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FASTGEMM_CACHE_DIR", str(tmp_path / "file"))
    assert fg.show_config(mode="dicts")["cache"]["bytes"] == 0


def test_text_shows_nested_sections_and_sizes():
    text = config.config_text(
        {"a": {"bytes": 1 << 20, "on": True, "list": [1, 2]}, "caches": {"l1d": 32768}, "b": {}, "c": None}
    )
    expected = [
        "a:",
        "  bytes  1 MiB",
        "  on     yes",
        "  list   1 2",
        "caches:",
        "  l1d  32 KiB",
        "b: none set",
        "c  none",
    ]
    assert text.splitlines() == expected


def test_clear_cache_removes_every_version_and_nothing_else(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTGEMM_CACHE_DIR", str(tmp_path))
    for name in ("0123456789abcdef", "f" * 16, "somebody else's"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "entry.bin").write_bytes(b"x" * 10)
    assert fg.clear_cache() == 20
    assert fg.clear_cache() == 0
    assert [folder.name for folder in tmp_path.iterdir()] == ["somebody else's"]


def test_selftest_passes_here():
    report = fg.selftest(quick=True)
    assert report.ok, report.summary()
    assert report.isas == fg.show_config(mode="dicts")["kernels"]["usable"]
    assert all(group.checks for group in report.groups)
    assert json.loads(json.dumps(report.to_dict()))["ok"]


def test_selftest_refuses_what_cannot_be_run():
    with pytest.raises(ValueError, match="isas names sse9; this machine can run "):
        fg.selftest(isas=["sse9"])
    with pytest.raises(ValueError, match="callers is 0"):
        fg.selftest(callers=0)


def test_selftest_finds_a_wrong_kernel(monkeypatch):
    right = fg.matmul

    def wrong(a, b, out=None, **options):
        result = right(a, b, out, **options)
        if result.ndim == 2 and result.shape[0] > 16:
            result[16, 0] += 1
        return result

    monkeypatch.setattr(fg, "matmul", wrong)
    groups = selfcheck.run_checks(quick=True)
    assert {group.name for group in groups if group.failed} >= {"float32, exact", "policies, exact", "rounding"}
    assert next(group for group in groups if group.name == "float32, exact").detail == "129x1x33, C, C"


@pytest.mark.parametrize(("code", "said"), [("raise SystemExit(3)", "code 3"), ("import os; os.abort()", "code -6")])
def test_selftest_survives_a_crash(monkeypatch, code, said):
    real = selfcheck.subprocess.run

    def crashing(command, **options):
        return real([command[0], "-c", code], **options)

    monkeypatch.setattr(selfcheck.subprocess, "run", crashing)
    report = fg.selftest(isas=["generic"])
    assert not report.ok
    assert report.groups[0].failed == 1 and said in report.groups[0].detail


def test_peak_probe_measures_something_on_one_thread_and_two():
    assert peak.peak_probe(np.dtype("f4"))(0.001) > 0
    assert peak.peak_probe(np.dtype("c16"), threads=2)(0.001) > 0
    assert peak.peak_probe(np.dtype("i4")) is None
