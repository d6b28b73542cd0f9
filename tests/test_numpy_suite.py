"""numpy's own tests of matmul, run with `fastgemm.matmul` in the place of `np.matmul`.

What numpy promises and this package does not is in OUT_OF_CONTRACT, with the reason; those tests are checked to fail as the
reason says, so the list cannot grow stale.  `docs/numpy-suite.md` is the same list as a page: `python tests/test_numpy_suite.py`
writes it.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy._core.tests import test_multiarray as numpys
from numpy._core.tests import test_ufunc as numpys_ufunc

import fastgemm as fg

NUMPYS_OWN = np.matmul
PAGE = Path(__file__).resolve().parent.parent / "docs" / "numpy-suite.md"

OBJECT = "object arrays have no arithmetic of fixed size: TypeError with the ways out"
LONG_DOUBLE = "long double is wider than any vector unit computes: TypeError with the ways out"


class Beyond(NamedTuple):
    """A test of numpy's that asks for more than the contract: the error it meets here, and why."""

    error: type[Exception]
    reason: str


OUT_OF_CONTRACT = {
    "TestMatmul.test_matmul_object": Beyond(TypeError, OBJECT),
    "TestMatmul.test_matmul_object_type_scalar": Beyond(TypeError, OBJECT),
    "TestMatmul.test_matmul_empty": Beyond(TypeError, OBJECT + ", of an empty array as well"),
    "TestUfunc.test_vecdot_matvec_vecmat_complex": Beyond(TypeError, OBJECT + " (all before its last line passes)"),
}

# numpy runs MatmulCommon over all its type codes; here over those in the contract, and over the others to see that they raise
# (but for the tests of errors of shape, which come before those of dtype, as in numpy)
TYPES = "".join(code for code in numpys.MatmulCommon.types if code not in "gGO")
NARROWED = {name: name != "test_exceptions" for name in vars(numpys.MatmulCommon) if name.startswith("test_")}

# tests of np.matmul outside its own class
ELSEWHERE = [
    (numpys.TestMethods, "test_arr_mult", "matmul"),
    (numpys.TestMethods, "test_no_dgemv", "matmul"),
    (numpys.TestMethods, "test_dot_matmul_out", None),
    (numpys.TestMethods, "test_dot_matmul_inner_array_casting_fails", None),
    (numpys.TestMethods, "test_matmul_out", None),
    (numpys_ufunc.TestUfunc, "test_vecdot_matvec_vecmat_complex", "matmul"),
]


@pytest.fixture(autouse=True)
def in_place_of_numpys(monkeypatch):
    """Tests that name np.matmul get ours too."""
    monkeypatch.setattr(np, "matmul", fg.matmul)


def _methods(kind):
    return sorted(name for name, _ in inspect.getmembers(kind, inspect.isfunction) if name.startswith("test_"))


class TestMatmul(numpys.TestMatmul):
    """numpy's class, without the tests that are out of contract."""

    matmul = staticmethod(fg.matmul)
    types = TYPES


for _name in OUT_OF_CONTRACT:
    if _name.startswith("TestMatmul."):
        setattr(TestMatmul, _name.partition(".")[2], None)


@pytest.mark.parametrize("name", [name.partition(".")[2] for name in OUT_OF_CONTRACT if name.startswith("TestMatmul.")])
def test_what_is_out_of_contract_fails_as_said(name):
    suite = numpys.TestMatmul()
    suite.matmul = fg.matmul
    with pytest.raises(OUT_OF_CONTRACT[f"TestMatmul.{name}"].error):
        getattr(suite, name)()


@pytest.mark.parametrize("name", sorted(NARROWED))
@pytest.mark.parametrize("code", "gGO")
def test_types_that_are_out_of_contract_raise(name, code):
    suite = TestMatmul()
    suite.types = code * 2  # some tests leave the first type out
    if NARROWED[name]:
        with pytest.raises(TypeError):
            getattr(suite, name)()
    else:
        getattr(suite, name)()


def _elsewhere():
    """(class, test, arguments of one of its cases); of tests parametrized by function, the cases of matmul."""
    for kind, name, function in ELSEWHERE:
        if function is None:
            yield pytest.param(kind, name, {}, id=name)
            continue
        for i, arguments in enumerate(_cases(getattr(kind, name), function)):
            yield pytest.param(kind, name, arguments, id=f"{name}-{i}")


def _cases(test, function):
    cases = [{}]
    for mark in test.pytestmark:
        if mark.name == "parametrize":
            names = [name.strip() for name in mark.args[0].split(",")]
            values = [value if len(names) > 1 else (value,) for value in mark.args[1]]
            cases = [case | dict(zip(names, value, strict=True)) for case in cases for value in values]
    for case in cases:
        key = "func" if "func" in case else "ufunc"
        if case[key].__name__ == function:
            yield case | {key: fg.matmul}


@pytest.mark.parametrize("kind,name,arguments", list(_elsewhere()))
def test_of_matmul_elsewhere_in_numpys_suite(kind, name, arguments):
    case = getattr(kind(), name)
    if (reason := OUT_OF_CONTRACT.get(f"{kind.__name__}.{name}")) is None:
        case(**arguments)
    else:
        with pytest.raises(reason.error):
            case(**arguments)


def test_axes():
    numpys.test_matmul_axes()


@pytest.mark.parametrize("shape", sorted(numpys.TestMatmulInplace.SHAPES))
def test_in_place_shapes(shape):
    """numpy's shapes for ``a @= b``, as matmul(a, b, out=a), which numpy lets repeat the product over axes of a."""
    left, right = numpys.TestMatmulInplace.SHAPES[shape]
    a = np.arange(float(np.prod(left))).reshape(left)
    b = np.arange(np.prod(right)).reshape(right)
    theirs = a.copy()
    try:
        NUMPYS_OWN(theirs, b, out=theirs)
    except ValueError:
        with pytest.raises(ValueError, match="out"):
            fg.matmul(a, b, out=a)
    else:
        assert fg.matmul(a, b, out=a) is a
        np.testing.assert_allclose(a, theirs)


def page():
    """The page docs/numpy-suite.md."""
    lines = [
        "# numpy's tests of matmul",
        "",
        f"numpy's wheel ships its tests. `tests/test_numpy_suite.py` runs those of `matmul` (here: of numpy {_numpy()}) with",
        "`fastgemm.matmul` in its place: the class `TestMatmul` of `numpy/_core/tests/test_multiarray.py`, which brings in",
        "`MatmulCommon`, and the tests of matmul outside it. That file also writes this page.",
        "",
        "| numpy's test | here |",
        "|---|---|",
    ]
    for name in _methods(numpys.TestMatmul):
        lines.append(f"| `TestMatmul.{name}` | {_verdict(name)} |")
    for kind, name, function in ELSEWHERE:
        reason = OUT_OF_CONTRACT.get(f"{kind.__name__}.{name}")
        cases = "" if function is None else ", its cases of matmul"
        lines.append(
            f"| `{kind.__name__}.{name}`{cases} | {'passes' if reason is None else 'out of contract: ' + reason.reason} |"
        )
    lines.append("| `test_matmul_axes` | passes |")
    lines.append("| `TestMatmulInplace.test_shapes` | passes, as `matmul(a, b, out=a)` |")
    passing = sum("out of contract" not in line for line in lines[8:])
    lines += [
        "",
        f"{passing} of {len(lines) - 8} pass. What is out of contract, types left out as well, is run too and must raise:",
        "",
        f"* {OBJECT};",
        f"* {LONG_DOUBLE}.",
        "",
        "`TestMatmulOperator` and `TestMatmulInplace.test_basic` test the `@` operator of `ndarray`, which stays numpy's: this",
        "package patches nothing.",
        "",
    ]
    return "\n".join(lines)


def _verdict(name):
    if reason := OUT_OF_CONTRACT.get(f"TestMatmul.{name}"):
        return f"out of contract: {reason.reason}"
    if NARROWED.get(name):
        return "passes for all types but long double and object (`gGO`), which raise"
    return "passes"


def _numpy():
    return ".".join(np.__version__.split(".")[:2])


def test_the_page_is_up_to_date():
    if _numpy() in PAGE.read_text():  # another numpy may have other tests; the page says which it is of
        assert page() == PAGE.read_text()


if __name__ == "__main__":
    PAGE.write_text(page())
