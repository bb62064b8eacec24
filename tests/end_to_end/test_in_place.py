"""Outputs in the place of inputs: which pairs a Nest allows, where the plan puts them, what is computed there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_model as small
from hypothesis import given
from hypothesis import strategies as st
from lifetimes import LIVES
from nest_texts import parse_nest
from onnx import helper
from tiny_package import NATIVE_TRIPLE, skip_without_tools

import modelc
from modelc.codegen.lower.in_place import in_place
from modelc.compile.config import load_config
from modelc.package import read_package
from modelc.plan.memory import Lifetime, plan_memory

HEAD = "nest t(A: float32[8, 4]; B: float32[8, 4]; Y: float32[8, 4]) -> (Y)\n  phase\n    for i:8\n      for j:4\n"
MAP = "        assign s[i=i, j=j] assign\n          Y[i, j] = A[{a}] + B[{b}]\n"


@pytest.mark.parametrize(
    ("a", "b", "places"),
    [
        ("i, j", "i, j", ("A", "B")),
        ("i, j", "7 - i, j", ("A",)),
        ("i, 3 - j", "0, j", ()),
    ],
)
def test_what_is_read_only_where_it_is_replaced(a: str, b: str, places: tuple[str, ...]) -> None:
    found = in_place(parse_nest(HEAD + MAP.format(a=a, b=b)))
    assert found == ({"Y": places} if places else {})


def test_not_what_another_block_reads_too() -> None:
    text = (
        HEAD
        + MAP.format(a="i, j", b="i, j")
        + "  phase\n    for k:1\n      assign u[k=k] assign\n        Z[k] = A[0, k]\n"
    )
    text = text.replace("Y: float32[8, 4]) -> (Y)", "Y: float32[8, 4]; Z: float32[1]) -> (Y, Z)")
    assert in_place(parse_nest(text)) == {"Y": ("B",)}


def test_not_where_a_sum_is_made() -> None:
    text = HEAD.replace("B: float32[8, 4]; ", "") + (
        "        init s[i=i, j=j] add\n          Y[i, j] = float32(0.0)\n"
        "        for k:4\n          update s[i=i, j=j, k=k] add\n            Y[i, j] += A[i, j]\n"
    )
    assert in_place(parse_nest(text)) == {}


@pytest.mark.parametrize("other", ["A: float32[4, 8]", "A: float32[8, 4] strides(1, 8)", "A: int32[8, 4]"])
def test_not_where_storage_differs(other: str) -> None:
    index = "j, i" if "[4, 8]" in other else "i, j"
    text = (
        (HEAD + MAP.format(a=index, b="i, j"))
        .replace("A: float32[8, 4]", other)
        .replace(f"A[{index}]", f"float32(A[{index}])" if "int32" in other else f"A[{index}]")
    )
    assert in_place(parse_nest(text)) == {"Y": ("B",)}


@given(LIVES, st.randoms())
def test_a_buffer_lies_where_the_one_that_it_replaces_was(items: list[Lifetime], random) -> None:
    taken: dict[str, str] = {}
    for new in items:
        olds = [
            o for o in items if o.last == new.first > o.first and o.bytes == new.bytes and o.name not in taken.values()
        ]
        if olds and random.random() < 0.7:
            taken[new.name] = random.choice(olds).name
    offsets, size = plan_memory(items, taken)
    assert offsets.keys() == {i.name for i in items}
    assert all(offsets[new] == offsets[old] for new, old in taken.items())
    for k, a in enumerate(items):
        assert offsets[a.name] + a.bytes <= size or not a.bytes
        for b in items[:k]:
            replaced = taken.get(a.name) == b.name or taken.get(b.name) == a.name
            if a.first <= b.last and b.first <= a.last and a.bytes and b.bytes and not replaced:
                low, high = sorted((a, b), key=lambda i: offsets[i.name])
                assert offsets[low.name] + low.bytes <= offsets[high.name]


def residuals(path: Path, convolutions: int) -> Path:
    """Three residual blocks of so many convolutions."""
    rng, nodes, weights, x = np.random.default_rng(0), [helper.make_node("Relu", ["x"], ["r"])], {}, "r"
    for block in range(3):
        y = x
        for k in range(convolutions):
            w, c = f"w{block}{k}", f"c{block}{k}"
            weights[w] = (rng.standard_normal((32, 32, 3, 3)) / 20).astype(np.float32)
            nodes += [
                helper.make_node("Conv", [y, w], [c], pads=[1, 1, 1, 1]),
                helper.make_node("Relu", [c], [f"{c}r"]),
            ]
            y = f"{c}r"
        nodes.append(helper.make_node("Add", [y, x], [f"s{block}"]))
        x = f"s{block}"
    nodes.append(helper.make_node("Softmax", [x], ["y"], axis=1))
    shape = [1, 32, 12, 12]
    return small.save(path, nodes, {"x": shape}, {"y": shape}, weights)


@pytest.mark.parametrize("convolutions", [1, 2])
def test_residuals_are_added_in_place(tmp_path: Path, convolutions: int) -> None:
    """Not where a convolution reads what is around: the package would fail its verification."""
    skip_without_tools(NATIVE_TRIPLE)
    package = tmp_path / "residuals.modelc"
    direct = load_config().allowing(winograd=False)  # transforms in a phase of their own have read everything before
    result = modelc.compile(residuals(tmp_path / "residuals.onnx", convolutions), config=direct, output=package)
    assert result.report is not None and result.report.passed
    (variant,) = read_package(package).manifest.variants
    places = {tensor.name: tensor.offset for tensor in variant.memory}
    assert len({places[name] for name in ("r", "s0", "s1")}) == (1 if convolutions > 1 else 2)
