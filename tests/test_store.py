"""The disk cache of compiled code: what is damaged, missing, read-only or outdated costs a compilation and nothing else."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import store_work
from hypothesis import given
from hypothesis import strategies as st

from fastgemm import store

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "fastgemm"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty cache of this process."""
    monkeypatch.setenv("FASTGEMM_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _copy_package(target: Path) -> Path:
    shutil.copytree(PACKAGE, target / "fastgemm", ignore=shutil.ignore_patterns("__pycache__"))
    return target


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start(code, cache folder) -> a process with a package of its own: an edit of the real one outdates every entry."""
    tree = _copy_package(tmp_path_factory.mktemp("tree"))

    def run(code: str, cache: Path | str | None, *, path: Path = tree, **environment: str) -> subprocess.Popen[str]:
        cleared = ("FASTGEMM_CACHE_DIR", "NUMBA_CACHE_DIR")
        settings = {name: value for name, value in os.environ.items() if name not in cleared}
        settings |= {"PYTHONPATH": os.pathsep.join([str(path), str(tree), str(HERE)]), **environment}
        if cache:
            settings["FASTGEMM_CACHE_DIR"] = str(cache)
        command = [sys.executable, "-W", "error", "-c", code]
        return subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=path, env=settings
        )

    return run


def finish(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=180)
    assert (process.returncode, err) == (0, "")
    return out.strip()


COMPUTE = "import store_work; print(store_work.compute())"
LOAD = "import store_work; print(store_work.compute_without_compiler())"


# --- entries


@given(st.binary(max_size=200), st.text(max_size=20))
def test_what_is_written_is_read(tmp_path_factory, payload, key):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTGEMM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "roundtrip"))
        assert store.write("entry", key, payload)
        assert store.read("entry", key) == payload


@given(st.data())
def test_a_damaged_entry_counts_as_absent(tmp_path_factory, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTGEMM_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "damage"))
        assert store.write("entry", "key", b"payload")
        (file,) = store.cache_dir().glob("entry-*.bin")
        whole = file.read_bytes()
        damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)), label="kept")])
        if damaged and data.draw(st.booleans(), label="flip"):
            damaged[data.draw(st.integers(0, len(damaged) - 1), label="at")] ^= data.draw(st.integers(1, 255))
        file.write_bytes(damaged)
        assert store.read("entry", "key") == (b"payload" if damaged == whole else None)


def test_keys_are_kept_apart(folder):
    for key in ("a", "b"):
        store.write("entry", key, key.encode())
    assert [store.read("entry", key) for key in ("a", "b", "c")] == [b"a", b"b", None]
    assert store.read("other", "a") is None


def test_size_and_clear_count_only_what_is_ours(folder):
    store.write("entry", "key", b"x" * 100)
    (folder / "precious").mkdir()
    (folder / "precious" / "thesis.txt").write_text("years of work")
    old = folder / "0123456789abcdef"
    old.mkdir()
    (old / "entry-1.bin").write_bytes(b"y" * 50)
    assert store.size() == 132
    assert store.size(all_versions=True) == 182
    assert store.clear() == 182
    assert store.size(all_versions=True) == 0
    assert [path.name for path in folder.iterdir()] == ["precious"]
    assert (folder / "precious" / "thesis.txt").read_text() == "years of work"
    assert store.clear() == 0


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"FASTGEMM_CACHE_DIR": "/a", "NUMBA_CACHE_DIR": "/b", "XDG_CACHE_HOME": "/c"}, "/a"),
        ({"NUMBA_CACHE_DIR": "/b", "XDG_CACHE_HOME": "/c"}, "/b/fastgemm"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/fastgemm"),
        ({"HOME": "/d"}, "/d/.cache/fastgemm"),
    ],
)
@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="other systems have their own cache folder")
def test_who_names_the_folder(monkeypatch, environment, expected):
    for name in ("FASTGEMM_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert str(store.cache_dir().parent) == expected


# --- a home that is not there


@pytest.fixture
def homeless(monkeypatch, tmp_path):
    for name in ("FASTGEMM_CACHE_DIR", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)

    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", staticmethod(nobody))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_without_a_home_the_cache_is_private_and_temporary(homeless):
    assert store.write("entry", "key", b"payload")
    assert store.read("entry", "key") == b"payload"
    (private,) = homeless.iterdir()
    assert private.name.startswith("fastgemm-")
    if os.name == "posix":
        assert private.stat().st_mode & 0o077 == 0
    assert store.clear() > 0


@pytest.mark.skipif(os.name != "posix", reason="POSIX modes")
def test_a_temporary_folder_others_can_write_to_is_not_read(homeless):
    assert store.write("entry", "key", b"payload")
    (private,) = homeless.iterdir()
    private.chmod(0o777)  # somebody else may have put code there
    assert store.read("entry", "key") is None
    assert not store.write("entry", "key", b"payload")
    assert store.size() == 0 and store.clear() == 0


# --- compiled functions


def test_a_second_process_loads_and_does_not_compile(tmp_path, start):
    assert finish(start(COMPUTE, tmp_path)) == store_work.EXPECTED
    assert finish(start(LOAD, tmp_path)) == store_work.EXPECTED


def test_eight_processes_fill_one_empty_cache(tmp_path, start):
    together = [start(COMPUTE, tmp_path) for _ in range(8)]
    assert [finish(process) for process in together] == [store_work.EXPECTED] * 8
    (stamp,) = tmp_path.iterdir()
    assert {file.suffix for file in stamp.iterdir()} == {".bin"}, "no temporary file is left"
    assert finish(start(LOAD, tmp_path)) == store_work.EXPECTED


def _sealed(payload: bytes) -> bytes:
    return hashlib.sha256(payload).digest() + payload


DAMAGE = {
    "empty": lambda whole: b"",
    "truncated": lambda whole: whole[: len(whole) // 2],
    "flipped": lambda whole: whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:],
    "not a pickle": lambda whole: _sealed(b"no pickle at all"),
    "another pickle": lambda whole: _sealed(pickle.dumps({"answer": 42})),
    "a pickle of what is gone": lambda whole: _sealed(b"cno_such_module\nno_such_name\n."),
    "too long": lambda whole: whole + whole,
}


def test_damaged_entries_are_compiled_again_and_repaired(tmp_path, start):
    assert finish(start(COMPUTE, tmp_path / "whole")) == store_work.EXPECTED
    running = {}
    for name, damage in DAMAGE.items():
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        for file in (tmp_path / name).rglob("*.bin"):
            file.write_bytes(damage(file.read_bytes()))
        running[name] = start(COMPUTE, tmp_path / name)
    for name, process in running.items():
        assert finish(process) == store_work.EXPECTED, name
    repaired = {name: start(LOAD, tmp_path / name) for name in DAMAGE}
    for name, process in repaired.items():
        assert finish(process) == store_work.EXPECTED, name


def test_a_killed_writer_leaves_nothing_that_is_read(tmp_path, start):
    assert finish(start(COMPUTE, tmp_path)) == store_work.EXPECTED
    for file in list(tmp_path.rglob("*.bin")):
        os.rename(file, file.with_name(file.name + "k1ll3d"))
    assert finish(start(COMPUTE, tmp_path)) == store_work.EXPECTED


def test_a_folder_that_cannot_be_made_is_survived(tmp_path, start):
    (tmp_path / "file").write_text("in the way")
    assert finish(start(COMPUTE, tmp_path / "file")) == store_work.EXPECTED
    if sys.platform == "linux":
        assert finish(start(COMPUTE, "/proc/none/such")) == store_work.EXPECTED


def test_a_read_only_folder_is_survived_and_read(tmp_path, start):
    """Entries are loaded from a read-only cache, and what is missing there is compiled each time."""
    assert finish(start(COMPUTE, tmp_path)) == store_work.EXPECTED
    (stamp,) = tmp_path.iterdir()
    gone, *kept = sorted(stamp.glob("weigh-*.bin"))
    gone.unlink()
    # Modes do not stop the superuser: let the calls themselves fail as they would.
    guard = """
import errno, os, tempfile
def refuse(*args, **keywords): raise OSError(errno.EROFS, os.strerror(errno.EROFS))
tempfile.mkstemp = os.replace = os.mkdir = refuse
"""
    stamp.chmod(0o555)
    try:
        assert finish(start(guard + COMPUTE, tmp_path)) == store_work.EXPECTED
    finally:
        stamp.chmod(0o755)
    assert sorted(stamp.glob("weigh-*.bin")) == kept


def test_a_full_disk_leaves_no_half_entry(folder, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert not store.write("entry", "key", b"payload")
    assert list(store.cache_dir().iterdir()) == []


def test_an_edited_helper_in_another_file_is_noticed(tmp_path, start):
    tree = _copy_package(tmp_path / "tree")
    helper = tree / "fastgemm" / "extra_helper.py"
    user = "from .extra_helper import helper\nfrom .jit import njit\n\n@njit\ndef use(x):\n    return helper(x) + 1\n"
    (tree / "fastgemm" / "extra_user.py").write_text(user)
    code = "from fastgemm.extra_user import use; import fastgemm; print(use(10), fastgemm.__file__)"
    for factor in (2, 3):
        helper.write_text(f"from .jit import njit\n\n@njit\ndef helper(x):\n    return {factor} * x\n")
        result, where = finish(start(code, tmp_path / "cache", path=tree)).split()
        assert Path(where).is_relative_to(tree)
        assert int(result) == factor * 10 + 1


def test_an_edited_function_outside_the_package_is_noticed(tmp_path, start):
    for factor in (2, 3):
        text = f"from fastgemm.jit import njit\n\n@njit\ndef use(x):\n    return {factor} * x\n"
        (tmp_path / "mine.py").write_text(text)
        code = "import sys; sys.dont_write_bytecode = True; import mine; print(mine.use(10))"
        assert finish(start(code, tmp_path / "cache", path=tmp_path)) == str(factor * 10)


def test_another_processor_has_entries_of_its_own(tmp_path, start):
    assert finish(start(COMPUTE, tmp_path)) == store_work.EXPECTED
    before = len(list(tmp_path.rglob("*.bin")))
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert finish(start(COMPUTE, tmp_path, **generic)) == store_work.EXPECTED
    assert len(list(tmp_path.rglob("*.bin"))) == 2 * before
