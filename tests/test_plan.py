"""Plans: made once, run many times and from many threads, explained, traced, written down."""

from __future__ import annotations

import inspect
import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_matmul import integers, same

import fastgemm as fg
from fastgemm.options import KEYWORDS

A = integers((48, 70), "f", 1)
B = integers((70, 33), "f", 2)


def test_a_plan_knows_extents_and_dtypes():
    p = fg.plan(np.empty((3, 1, 5, 7), "f2"), np.empty((4, 7, 6), "i1"))
    assert (p.m, p.n, p.k, p.batch, p.shape) == (5, 6, 7, (3, 4), (3, 4, 5, 6))
    assert (p.dtype, p.compute) == (np.float16, np.float32)
    assert fg.plan(A, B, axes=[(0, 1), (0, 1), (1, 0)]).shape == (33, 48)
    assert fg.plan(A[0], B[:, 0]).shape == ()


def test_a_plan_takes_the_keywords_of_matmul_and_their_errors():
    parameters = inspect.signature(fg.plan).parameters
    assert list(parameters) == ["a", "b", *KEYWORDS]
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'tiles'"):
        fg.plan(A, B, tiles=3)
    with pytest.raises(ValueError, match=r"\(48, 70\).*\(48, 70\)"):
        fg.plan(A, A)
    with pytest.raises(ValueError, match="cores"):
        fg.plan(A, B, cores=0)
    with pytest.raises(TypeError, match="Cannot cast"):
        fg.plan(A, B, dtype=np.int32)


@pytest.mark.parametrize("options", [{}, {"cores": 3}, {"dtype": "f8"}, {"order": "F"}, {"reproducible": True}])
def test_a_plan_runs_as_matmul_does(options):
    p = fg.plan(A, B, **options)
    want = fg.matmul(A, B, **options)
    for _ in range(2):
        got = p.run(A, B)
        same(got, want)
        assert got.strides == want.strides
    out = np.full(want.shape, np.nan, want.dtype)
    assert p.run(A, B, out) is out
    same(out, want)
    same(p.run(np.asfortranarray(A), B[::-1][::-1]), want)
    same(p.run(A.astype(A.dtype.newbyteorder()), B), want)
    same(p.run(A, B.tolist() if p.b_dtype == np.float64 else B), want)


def test_a_plan_refuses_what_it_was_not_made_for():
    p = fg.plan(A, B)
    with pytest.raises(ValueError, match=r"a has shape \(47, 70\).*\(48, 70\)"):
        p.run(A[1:], B)
    with pytest.raises(ValueError, match=r"b has shape \(70, 32\).*\(70, 33\)"):
        p.run(A, B[:, 1:])
    with pytest.raises(TypeError, match="b has dtype float64.*float32"):
        p.run(A, B.astype("f8"))
    with pytest.raises(ValueError, match="out has shape"):
        p.run(A, B, np.zeros((2, 2), "f4"))


def test_a_plan_runs_from_many_threads():
    p = fg.plan(A, B)
    want = A @ B
    with ThreadPoolExecutor(8) as pool:
        for got in pool.map(lambda _: p.run(A, B), range(64)):
            same(got, want)


def test_a_plan_can_be_pickled_and_compared():
    for arch in ("ascend_a2", "host"):
        p = fg.plan(A, B, cores=2, policy=fg.Pingpong(), arch=arch)
        again = pickle.loads(pickle.dumps(p))
        assert again == p
        assert hash(again) == hash(p)
    same(again.run(A, B), A @ B)


def test_to_dict_is_json_and_says_what_was_asked_and_chosen():
    for p in (
        fg.plan(A, B),
        fg.plan(A, B, policy=fg.Pingpong(), swizzle=fg.IdentitySwizzle(3, 1), tile=(32, 32, 32), cores=2),
        fg.plan(A.astype("i4"), B.astype("i4")),
        fg.plan(A[:0], B),
    ):
        again = json.loads(json.dumps(p.to_dict()))
        assert again["schema"] == 1
        assert (again["m"], again["n"], again["k"]) == (p.m, p.n, p.k)
        assert again["result"] == {"shape": list(p.shape), "dtype": p.dtype.name}
        assert (again["chosen"] is not None) == p.planned
    assert "Pingpong" in str(fg.plan(A, B, policy=fg.Pingpong()).to_dict()["options"]["policy"])


def test_explain_names_what_was_chosen():
    text = fg.plan(A, B, policy=fg.Pingpong(), swizzle=fg.IdentitySwizzle(3, 1), tile=(32, 32, 32), cores=2).explain()
    for word in ("48", "33", "70", "Pingpong", "Identity"):
        assert word in text
    assert "float32" in fg.plan(A, B).explain()
    assert "float16, multiplied and summed in float32" in fg.plan(A.astype("e"), B.astype("e")).explain()
    assert "plain path" in fg.plan(A.astype("i4"), B.astype("i4")).explain()
    assert "empty" in fg.plan(A[:0], B).explain()


def test_the_trace_of_a_plan_is_that_of_its_problem():
    options = {
        "policy": fg.Pingpong(),
        "swizzle": fg.IdentitySwizzle(3, 1),
        "tile": fg.Tile(l1=(32, 32, 32)),
        "cores": 2,
    }
    ops = fg.plan(A, B, **options).trace()
    assert ops.dtype == fg.TRACE_DTYPE
    assert (ops == fg.trace(48, 33, 70, **options)).all()
    assert len(fg.plan(A.astype("i4"), B.astype("i4")).trace()) == 0
