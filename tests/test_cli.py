"""The command line: help, exit codes, tables, JSON, missing extras."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from fastgemm import cli
from fastgemm.cli import COMMANDS, console, main, specs


def run(capsys, *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command, run in this process."""
    code = main(list(words))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys, *words: str):
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


def test_help_names_every_command_and_imports_none():
    code = (
        "import sys; from fastgemm.cli import main; assert main(['--help']) == 0; "
        "print([m for m in sys.modules if m.startswith(('numpy', 'numba', 'rich', 'fastgemm.cli.'))])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"
    for name, (_, summary) in COMMANDS.items():
        assert name in done.stdout and summary in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_an_example_and_the_exit_codes(capsys, name):
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert f"example:\n  fastgemm {name}" in out
    assert "--json" in out
    assert "exit codes: 0 ok, 1 " in out


@pytest.mark.parametrize("name", COMMANDS)
def test_command_is_a_module_with_the_two_functions(name):
    module = COMMANDS[name][0]
    assert find_spec(module) is not None
    source = __import__(module, fromlist=["run"])
    assert callable(source.add_parser) and callable(source.run)


def test_console_script_and_module_are_the_same_program():
    done = subprocess.run([sys.executable, "-m", "fastgemm", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout.startswith("fastgemm ")


@pytest.mark.parametrize(
    "words",
    [(), ("nonsense",), ("trace",), ("trace", "64", "--policy", "nonsense"), ("trace", "64x64"), ("bench", "0"),
     ("bench", "64", "--threads", "0"), ("explain", "64", "--swizzle", "identity:offset=0"), ("selftest", "--callers", "0"),
     ("bench", "64", "--dtype", "nonsense"), ("trace", "64", "--tile", "64x64"), ("info", "--nonsense")],
    ids=" ".join,
)  # fmt: skip
def test_wrong_use_is_exit_code_2_and_one_line(capsys, words):
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert "fastgemm" in err and "Traceback" not in err


def test_a_failed_check_is_exit_code_1(capsys, monkeypatch):
    from fastgemm import selfcheck

    def broken(isa, quick, callers):
        group = selfcheck.Group(f"{isa}: exact")
        group.note(False, "3x5x7, C, C")
        return [group]

    monkeypatch.setattr(selfcheck, "_in_a_process", broken)
    code, out, _ = run(capsys, "selftest", "--quick")
    assert code == 1
    assert "FAILED" in out and "3x5x7, C, C" in out


def test_interrupt_is_exit_code_130(capsys, monkeypatch):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("fastgemm.cli.info.run", interrupted)
    code, _, err = run(capsys, "info")
    assert code == 130 and "interrupted" in err


def test_a_reader_that_leaves_is_no_failure():
    trace = f"{sys.executable} -m fastgemm trace 2048 --policy pingpong --tile 64x64x64 --csv"
    command = f"{trace} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_without_rich_a_table_names_the_extra_and_json_works(capsys, monkeypatch):
    for module in ("rich", "rich.table", "rich.console", "rich.box"):
        monkeypatch.setitem(sys.modules, module, None)
    code, _, err = run(capsys, "trace", "64", "--policy", "pingpong")
    assert code == 2
    assert "pip install 'fastgemm[cli]'" in err
    assert run_json(capsys, "trace", "64", "--policy", "pingpong")["ops"]


def test_a_broken_optional_package_is_not_reported_as_missing(monkeypatch, tmp_path):
    (tmp_path / "brokenextra.py").write_text("import surely_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="surely_not_installed"):
        console.require("brokenextra", "cli", "This")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fastgemm\[plot\]'"):
        console.require("surely_not_installed", "plot", "This")


def test_progress_is_silent_unless_somebody_watches(capsys, monkeypatch):
    console.progress("half way")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    console.progress("half way")
    assert "half way" in capsys.readouterr().err


def test_json_of_numpy_values(capsys):
    console.print_json({"a": np.float32(1.5), "b": np.arange(3), "c": np.dtype("f4")})
    assert json.loads(capsys.readouterr().out) == {"a": 1.5, "b": [0, 1, 2], "c": "float32"}


def test_info_text_and_json_agree(capsys):
    facts = run_json(capsys, "info")
    code, out, _ = run(capsys, "info")
    assert code == 0
    assert facts["kernels"]["row"] in out and facts["cache"]["folder"] in out and facts["threads"]["source"] in out


def test_info_can_clear_the_cache(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("FASTGEMM_CACHE_DIR", str(tmp_path))
    stale = tmp_path / "0123456789abcdef"
    stale.mkdir()
    (stale / "entry.bin").write_bytes(b"x" * 123)
    assert run_json(capsys, "info", "--clear-cache")["cleared_bytes"] == 123
    assert not stale.exists()


def test_trace_table_json_and_csv_hold_the_same_ops(capsys):
    import fastgemm as fg

    words = ("trace", "300x200x100", "--policy", "preload:stages=2,shuffle_k=false", "--swizzle", "identity:offset=2", "--tile",
             "128x128x64", "--cores", "2")  # fmt: skip
    expected = fg.trace(300, 200, 100, policy=fg.Preload(shuffle_k=False), swizzle=fg.IdentitySwizzle(offset=2),
                        tile=fg.Tile(l1=(128, 128, 64), l0=(128, 128, 64)), cores=2, dtype=np.dtype("f4"))  # fmt: skip
    ops = run_json(capsys, *words)["ops"]
    assert len(ops) == len(expected)
    assert [op["op"] for op in ops] == [fg.Op(code).name for code in expected["op"].tolist()]
    assert [op["k"] for op in ops] == expected["k"].tolist()
    code, out, _ = run(capsys, *words, "--csv")
    assert code == 0 and len(out.splitlines()) == 1 + len(expected)
    code, out, _ = run(capsys, *words, "--limit", "5")
    assert code == 0 and f"5 of {len(expected)} ops" in out
    only = run_json(capsys, *words, "--core", "1")["ops"]
    assert {op["core"] for op in only} == {1}


def test_explain_text_json_and_picture(capsys, tmp_path):
    picture = tmp_path / "order.png"
    words = ("explain", "512x384x256", "--policy", "pingpong", "--tile", "128x128x64")
    code, out, err = run(capsys, *words, "--picture", str(picture))
    assert code == 0, err
    assert "Pingpong" in out
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run_json(capsys, *words)


def test_bench_reports_both_sides_and_the_peak(capsys):
    report = run_json(capsys, "bench", "48", "40x30x20", "--dtype", "f4", "--dtype", "f8", "--seconds", "0.01")
    assert report["schema"] == 1 and report["threads"] == 1
    assert [(row["m"], row["n"], row["k"], row["dtype"]) for row in report["rows"]] == [
        (48, 48, 48, "float32"), (40, 30, 20, "float32"), (48, 48, 48, "float64"), (40, 30, 20, "float64"),
    ]  # fmt: skip
    for row in report["rows"]:
        assert row["gflops"] > 0 and row["numpy_gflops"] > 0 and row["peak_gflops"] > 0 and row["pairs"] >= 5
    code, out, _ = run(capsys, "bench", "32", "--dtype", "i4", "--seconds", "0.01")
    assert code == 0 and "geometric mean" in out


def test_warmup_says_what_is_ready(capsys):
    report = run_json(capsys, "warmup", "--dtype", "f4")
    assert report["dtypes"] == ["float32"] and report["cache_bytes"] > 0


def test_demo_is_right_under_every_policy(capsys):
    report = run_json(capsys, "demo", "--seconds", "0.01", "--factor", "2", "--threads", "1", "--no-schedule")
    assert report["ok"]
    assert len(report["rows"]) == 5 and all(row["ok"] for row in report["rows"])
    assert report["rows"][-1]["blocks"] > 0


def test_demo_compares_kernels_with_and_without_the_mutation(capsys):
    from fastgemm import demo
    from fastgemm.cli.demo import _print_kernels

    kernels = demo.schedule_kernels(lambda text: None)
    assert len(kernels) == 3
    assert kernels[0].gain > 2  # the article's mxfp kernel needs several times the cycles without
    assert kernels[2].on.peak < kernels[2].off.peak
    _print_kernels(kernels)
    assert capsys.readouterr().out.count(kernels[2].dag.name) == 2


def test_demo_notices_a_wrong_product():
    from fastgemm import demo

    problem = demo.resampling(np.arange(12.0).reshape(3, 4), 2)
    fine = problem.a @ problem.b
    assert problem.check(fine)[0]
    fine[1, 2] += 0.1
    assert not problem.check(fine)[0]


class TestSpecs:
    def test_policy_with_fields(self):
        import fastgemm as fg

        assert specs.parse_object("auto", specs.POLICIES, "policy") == "auto"
        assert specs.parse_object("preload:stages=3,shuffle_k=true", specs.POLICIES, "policy") == fg.Preload(
            stages=3, shuffle_k=True
        )
        assert specs.parse_object("Host_Panels", specs.POLICIES, "policy") == fg.HostPanels()

    @pytest.mark.parametrize("name", specs.POLICIES)
    def test_every_policy_name_makes_one(self, name):
        assert type(specs.parse_object(name, specs.POLICIES, "policy")).__name__ == specs.POLICIES[name]

    @pytest.mark.parametrize("name", specs.SWIZZLES)
    def test_every_swizzle_name_makes_one(self, name):
        assert type(specs.parse_object(name, specs.SWIZZLES, "swizzle")).__name__ == specs.SWIZZLES[name]

    @pytest.mark.parametrize(
        ("text", "message"),
        [("preload:stages", "not of the form field=value"), ("preload:stages=x y", "is not a value"), ("preload:nope=1", "nope"),
         ("nope", "is not known: choose from auto, ")],
    )  # fmt: skip
    def test_what_is_wrong_is_named(self, text, message):
        with pytest.raises(ValueError, match=message):
            specs.parse_object(text, specs.POLICIES, "policy")

    @pytest.mark.parametrize("text", ["", "0", "3x4", "3x4x0", "3x4x-5", "axbxc", "1.5"])
    def test_bad_shape(self, text):
        with pytest.raises(ValueError, match="MxNxK with positive integers"):
            specs.parse_shape(text)

    def test_shape_and_tile(self):
        import fastgemm as fg

        assert specs.parse_shape("3x4x5") == (3, 4, 5)
        assert specs.parse_shape("7") == (7, 7, 7)
        assert specs.parse_tile("64x96x128/32") == fg.Tile(l1=(64, 96, 128), l0=(64, 96, 32))
        with pytest.raises(ValueError, match="tile"):
            specs.parse_tile("64x96x128/x")


def test_exit_codes_are_the_documented_ones():
    assert (cli.EXIT_OK, cli.EXIT_FAILED, cli.EXIT_USAGE, cli.EXIT_INTERRUPTED) == (0, 1, 2, 130)
