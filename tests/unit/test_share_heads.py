"""Heads of queries that share keys and values: these are not repeated."""

import pytest
from pass_graphs import applied, ops

GROUPED = """
input q: float32[2, 6, 5, 8]
input p: float32[2, 6, 5, 7]
input k: float32[2, 3, 7, 8]
const one: int64[5] = [2, 3, 1, 7, 8]
const many: int64[5] = [1, 1, 2, 1, 1]
const heads: int64[4] = [2, 6, 7, 8]
o = Reshape(k, one)
e = Expand(o, many)
r = Reshape(e, heads)
"""


@pytest.mark.parametrize(
    "product", ["t = Transpose(r) perm=(0, 1, 3, 2)\nY = MatMul(q, t)", "Y = MatMul(p, r)"], ids=["keys", "values"]
)
def test_a_product_reads_what_is_shared(product: str) -> None:
    after = applied("share_heads", f"{GROUPED}{product}\noutput Y")
    assert "Expand" not in ops(after) and "MatMul" in ops(after)


def test_what_is_repeated_otherwise_stays() -> None:
    text = GROUPED.replace("[2, 3, 1, 7, 8]", "[2, 1, 3, 7, 8]").replace("[1, 1, 2, 1, 1]", "[1, 2, 1, 1, 1]")
    assert "Expand" in ops(applied("share_heads", f"{text}Y = MatMul(p, r)\noutput Y"))
