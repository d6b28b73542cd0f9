"""The package as an artefact: what importing it loads, what its archives hold, and the house rules on its source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import lint
import pytest

import fastgemm

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fastgemm"

HEAVY = ("numba", "llvmlite", "scipy", "matplotlib", "rich", "pyarrow")


def python(code: str, *options: str) -> str:
    """Standard output of a fresh interpreter that runs ``code``."""
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing_that_compiles():
    loaded = python(f"import sys, fastgemm; print([name for name in {HEAVY} if name in sys.modules])", "-W", "error")
    assert loaded.strip() == "[]"


def test_importing_the_api_module_loads_no_numba():
    loaded = python(
        f"import sys, fastgemm.api; print([name for name in {HEAVY} if name in sys.modules])", "-W", "error"
    )
    assert loaded.strip() == "[]"


def test_every_public_name_resolves_and_is_documented():
    for name in fastgemm.__all__:
        value = getattr(fastgemm, name)
        assert name in dir(fastgemm)
        if callable(value):
            assert value.__doc__, f"fastgemm.{name} has no docstring"


@pytest.mark.parametrize("package", [fastgemm, fastgemm.sched], ids=lambda package: package.__name__)
def test_type_checkers_see_every_public_name(package):
    tree = ast.parse(Path(package.__file__).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level == 1]
    seen = {alias.asname: node.module for node in imports for alias in node.names if alias.asname}
    assert seen == {**package._NAMES, **dict.fromkeys(package._MODULES)}


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        _ = fastgemm.matmull


def test_a_function_stays_the_function_when_the_module_of_its_name_is_imported():
    import fastgemm.plan
    import fastgemm.trace  # noqa: F401

    assert callable(fastgemm.plan)
    assert callable(fastgemm.trace)


def test_version_is_one():
    from importlib.metadata import version

    assert version("fastgemm") == fastgemm.__version__
    assert f"version: {fastgemm.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"[{fastgemm.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """Wheel and source distribution, built from a copy of the tree by the installed setuptools (no network)."""
    if not _can_build():
        pytest.skip("building needs setuptools 77 or newer (extra 'test')")
    import shutil

    base = tmp_path_factory.mktemp("build")
    tree = base / "tree"
    skip = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, tree, ignore=skip)
    backend = "from setuptools import build_meta as b; print(b.build_sdist('out')); print(b.build_wheel('out'))"
    done = subprocess.run([sys.executable, "-c", backend], cwd=tree, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tree / "out").glob("*.whl")
    (sdist,) = (tree / "out").glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as zipped, tarfile.open(sdist) as tarred:
        return wheel.name, set(zipped.namelist()), {name.partition("/")[2] for name in tarred.getnames()}


def _can_build() -> bool:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return int(version("setuptools").partition(".")[0]) >= 77
    except PackageNotFoundError:
        return False


def test_wheel_is_pure_and_complete(archives):
    name, files, _ = archives
    assert name.endswith("-py3-none-any.whl")
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in PACKAGE.rglob("*")
        if path.suffix in (".py", ".json", ".gz", ".typed")
    }
    assert expected <= files
    strangers = {file for file in files if not file.startswith(("fastgemm/", "fastgemm-"))}
    assert not strangers, "only the package and its metadata belong in the wheel"
    assert any(file.endswith("licenses/LICENSE") for file in files)


def test_sdist_holds_what_testing_it_needs(archives):
    _, _, files = archives
    for needed in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "setup.cfg", "tests/lint.py"):
        assert needed in files
    assert any(file.startswith("docs/") and file.endswith(".md") for file in files)


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")]), ids=lambda page: page.name)
def test_links_of_a_page_resolve(page):
    targets = re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


def test_every_page_is_linked_from_another():
    pages = {page: page.read_text(encoding="utf-8") for page in ROOT.glob("docs/*.md")}
    orphans = [
        page.name
        for page in pages
        if page.name != "index.md"
        and not any(f"]({page.name})" in text for other, text in pages.items() if other != page)
    ]
    assert orphans == []


@pytest.mark.parametrize("rule", lint.RULES, ids=lambda rule: rule.__name__)
def test_house_rule(rule):
    findings = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = lint.Module.read(path, ROOT)
        findings += [f"{path.relative_to(ROOT)}:{line}: {text}" for line, text in rule(module)]
    assert not findings, "\n".join(findings)


# one bad module per rule: the rule has to object to it
BAD = {
    "jitted_by_the_house_decorator": "from numba import njit\n\n@njit(fastmath=True)\ndef f(x):\n    return x\n",
    "ir_is_built_in_one_place": "from llvmlite import ir\n",
    "linked_code_allocates_nothing": "@entry\ndef f(n):\n    return pointer(np.empty(n, np.int64))\n",
    "modules_stay_short": "x = 1\n" * 601,
    "functions_stay_short": "def f():\n" + "    x = 1\n" * 90,
    "nothing_unfinished": "def f():\n    raise NotImplementedError('later')\n",
    "no_machine_paths": 'CACHE = "' + "/wo" + 'rk/main/cache"\n',
    "public_functions_are_annotated": "def f(x):\n    return x\n",
    "modules_say_what_they_are": "x = 1\n",
    "no_room_for_leftovers": "x = 1\n",
}
ALSO_BAD = [
    ("jitted_by_the_house_decorator", "import numba\n\n@numba.njit\ndef f(x):\n    return x\n"),
    (
        "jitted_by_the_house_decorator",
        "from fastgemm.jit import njit\n\n@njit(fastmath=True)\ndef f(x):\n    return x\n",
    ),
    ("ir_is_built_in_one_place", "import llvmlite.ir as ir\n"),
    ("ir_is_built_in_one_place", "TEXT = 'define void @f(i64 %x) {'\n"),
    ("functions_stay_short", f"def f({', '.join(f'a{i}' for i in range(15))}):\n    pass\n"),
    ("nothing_unfinished", "x = 1  # TO" + "DO: more\n"),
]


@pytest.mark.parametrize(("rule", "source"), [*BAD.items(), *ALSO_BAD])
def test_house_rule_can_fail(rule, source):
    module = lint.Module.parse("fastgemm.utils", source)
    assert list(getattr(lint, rule)(module))


def test_every_house_rule_has_a_bad_example():
    assert set(BAD) == {rule.__name__ for rule in lint.RULES}


def test_house_rules_accept_the_house_decorator():
    module = lint.Module.parse(
        "fastgemm.gemm.x", '"""Doc."""\nfrom ..jit import njit\n\n@njit\ndef f(x):\n    return x\n'
    )
    assert [finding for rule in lint.RULES for finding in rule(module)] == []
