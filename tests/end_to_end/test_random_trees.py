"""Random ensembles of trees of every shape: their tables against walks over what a file states, packages against ONNX
Runtime."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from classical_models import VERSIONS, ml, verified
from hypothesis import given, settings
from hypothesis import strategies as st
from node_models import model_of
from onnxruntime_session import session_of
from opaque_functions import run

import modelc
from modelc.frontend.building.build import OnnxNode
from modelc.frontend.classical.tree_tables import Forest, laid_out
from modelc.frontend.classical.trees import read_forest
from modelc.frontend.witness.forests import departure, of_tables, stated_forest
from modelc.ops.opaque import MEANINGS
from modelc.ops.tree_walks import MISSING, MODES

FEATURES = 5
VALUES = [-np.inf, -1.5, -1.0, -0.0, 0.0, 0.5, 1.0, 2.25, np.inf]  # few, so that samples meet splits
Columns = dict[str, list[Any]]


@st.composite
def ensembles(draw: st.DrawFn, kind: str = "target", ordinary: bool = False) -> tuple[Columns, int]:
    """The attributes of an ensemble, and how many targets it has: uneven trees, leaves alone, any number of weights of
    a leaf; one mode for all or several; missing values that go to yes nowhere, everywhere, at some. What is
    `ordinary` has no splits that are NaNs and no leaves without weights, to which ONNX Runtime gives their splits."""
    targets = draw(st.integers(1, 3))
    modes = draw(st.sampled_from([[mode] for mode in MODES] + [["LEQ", "LT"], list(MODES)]))
    tracks = draw(st.sampled_from([[0], [1], [0, 1]]))
    dense = draw(st.booleans())
    splits = VALUES if ordinary else [*VALUES, np.nan]
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    columns: Columns = {f"nodes_{name}": [] for name in (*names, "missing_value_tracks_true")}
    columns |= {f"{kind}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    random = Random(draw(st.integers(0, 1 << 30)))
    for tree in range(draw(st.integers(1, 20))):
        depth, growth = random.choice([(0, 0.0), (1, 1.0), (3, 1.0), (9, 0.7)])
        pending, count = [(0, 0)], 1
        while pending:
            node, level = pending.pop(random.randrange(len(pending)))
            leaf = level >= depth or (level > 0 and random.random() > growth)
            yes, no = (0, 0) if leaf else (count, count + 1)
            row = (tree, node, random.randrange(FEATURES), random.choice(splits),
                   "LEAF" if leaf else f"BRANCH_{random.choice(modes)}", yes, no, random.choice(tracks))  # fmt: skip
            for column, value in zip(list(columns)[:8], row, strict=True):
                columns[column].append(value)
            if not leaf:
                pending += [(yes, level + 1), (no, level + 1)]
                count += 2
            given_to = (
                range(targets) if dense else random.sample(range(targets), random.randint(int(ordinary), targets))
            )
            for target in given_to if leaf else ():
                for column, value in zip(list(columns)[8:], (tree, node, target, random.randrange(-9, 9)), strict=True):
                    columns[column].append(float(value) if column.endswith("weights") else value)
    return columns, targets


def samples(rows: int, dtype: type, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice([*VALUES, np.nan], (rows, FEATURES)).astype(dtype)


def walked(forest: Forest, x: np.ndarray, targets: int) -> np.ndarray:
    """Sums, by the words of the standard."""
    result = np.zeros((len(x), targets))
    for row, root in ((row, root) for row in range(len(x)) for root in forest.roots):
        key = root
        while key in forest.branches:
            feature, split, code, yes, no = forest.branches[key]
            value = x[row, feature]
            mode = next(m for m in MODES if MODES[m] | MISSING == code | MISSING)
            answer = {"LEQ": value <= split, "LT": value < split, "GTE": value >= split, "GT": value > split,
                      "EQ": value == split, "NEQ": value != split}[mode]  # fmt: skip
            key = yes if answer or (code & MISSING and np.isnan(value)) else no
        for target, weight in forest.leaves[key]:
            result[row, target] += weight
    return result


def node_of(columns: Columns) -> OnnxNode:
    return OnnxNode("TreeEnsembleRegressor", "ai.onnx.ml", 3, "trees", ("x",), ("y",), columns, "trees")


def tabled(forest: Forest, node: OnnxNode, targets: int, dtype: type) -> tuple[dict[str, Any], list[np.ndarray]]:
    tables, attrs = laid_out(forest, forest.order(node), FEATURES, targets, np.dtype(dtype))
    tables["weights"] = tables["weights"].astype(dtype)
    return {"aggregate": "add", "targets": targets, **attrs}, [*tables.values()]


@given(ensembles(), st.sampled_from([np.float32, np.float64]))
@settings(max_examples=60)
def test_tables_are_the_forest(drawn: tuple[Columns, int], dtype: type) -> None:
    columns, targets = drawn
    node, x = node_of(columns), samples(12, dtype)
    forest = read_forest(node, "target")
    attrs, tables = tabled(forest, node, targets, dtype)
    (computed,) = MEANINGS["trees"](attrs, x, *tables)
    np.testing.assert_array_equal(computed, walked(forest, x, targets))
    stated = stated_forest("TreeEnsembleRegressor", {name: np.array(values) for name, values in columns.items()})
    assert stated is not None
    assert departure(of_tables(attrs, FEATURES, *tables), stated, targets > 1) is None


@given(ensembles(), st.data())
@settings(max_examples=30)
def test_another_forest_is_told(drawn: tuple[Columns, int], data: st.DataObject) -> None:
    """One leaf's weight, one branch's split, feature or answer for NaNs is another."""
    columns, targets = drawn
    node = node_of(columns)
    attrs, tables = tabled(read_forest(node, "target"), node, targets, np.float32)
    branches = [k for k, mode in enumerate(columns["nodes_modes"]) if mode != "LEAF"]
    changes = ["nodes_values", "nodes_featureids"] if branches else []
    changes += ["target_weights"] if columns["target_weights"] else []
    if not changes:
        return
    name = data.draw(st.sampled_from(changes))
    k = data.draw(st.sampled_from(branches if name.startswith("nodes") else range(len(columns[name]))))
    old = columns[name][k]
    new = (old + 1) % FEATURES if name == "nodes_featureids" else 77.0
    other = {**columns, name: [*columns[name][:k], new, *columns[name][k + 1 :]]}
    stated = stated_forest("TreeEnsembleRegressor", {key: np.array(values) for key, values in other.items()})
    assert stated is not None
    assert departure(of_tables(attrs, FEATURES, *tables), stated, targets > 1) is not None


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(drawn=ensembles(), rows=st.integers(1, 150), aggregate=st.sampled_from(["add", "min", "max"]))
@settings(max_examples=8)
def test_functions_are_their_meaning(
    tmp_path_factory: pytest.TempPathFactory, dtype: type, drawn: tuple[Columns, int], rows: int, aggregate: str
) -> None:
    """In blocks that are full and not, cut anywhere; to the bit, for sums are made in one order."""
    columns, targets = drawn
    node, x = node_of(columns), samples(rows, dtype)
    attrs, tables = tabled(read_forest(node, "target"), node, targets, dtype)
    attrs["aggregate"] = aggregate
    (expected,) = MEANINGS["trees"](attrs, x, *tables)
    outputs, folder = [np.zeros_like(expected)], tmp_path_factory.mktemp("trees")
    (computed,) = run(folder, "trees", attrs, [x, *tables], outputs, (0, 0.3, 0.31, 1))
    np.testing.assert_array_equal(computed, expected)


def test_branches_that_several_lead_to(tmp_path: Path) -> None:
    """They are stored once, and the steps to them are as many as they need be."""
    forest = Forest(leaves={k: [(0, float(k))] for k in range(4)}, roots=["a", "b", "d"])
    leq, missing = MODES["LEQ"], MODES["LEQ"] | MISSING
    forest.branches = {
        "a": (0, 0.5, leq, "b", "d"),
        "b": (1, 0.5, missing, "c", "c"),
        "c": (2, 0.5, leq, "d", 1),
        "d": (3, 0.5, leq, 2, 3),
    }
    node, x = node_of({}), samples(40, np.float32)
    attrs, tables = tabled(forest, node, 1, np.float32)
    (expected,) = MEANINGS["trees"](attrs, x, *tables)
    np.testing.assert_array_equal(expected, walked(forest, x, 1))
    (computed,) = run(tmp_path, "trees", attrs, [x, *tables], [np.zeros_like(expected)])
    np.testing.assert_array_equal(computed, expected)
    assert len(tables[0]) < 16


def drawn_ensembles(count: int) -> list[tuple[Columns, int]]:
    draws: list[list[tuple[Columns, int]]] = []

    @given(st.lists(ensembles(ordinary=True), min_size=count, max_size=count))
    @settings(max_examples=2, database=None)
    def draw(drawn: list[tuple[Columns, int]]) -> None:
        draws.append(drawn)

    draw()
    return draws[-1]


def test_packages_are_as_onnxruntime(tmp_path: Path) -> None:
    """Many ensembles in one model, on more samples than go together and on fewer."""
    nodes = [
        ml("TreeEnsembleRegressor", "many" if k % 2 else "few", f"y{k}", n_targets=targets, **columns)
        for k, (columns, targets) in enumerate(drawn_ensembles(6))
    ]
    feeds = {"many": samples(77, np.float32), "few": samples(3, np.float32, 1)}
    verified(model_of(nodes, feeds, VERSIONS), feeds, tmp_path)


def test_packages_of_any_size_are_as_onnxruntime(tmp_path: Path) -> None:
    nodes = [
        ml("TreeEnsembleRegressor", "x", f"y{k}", n_targets=targets, **columns)
        for k, (columns, targets) in enumerate(drawn_ensembles(3))
    ]
    model = model_of(nodes, {"x": samples(40, np.float32)}, VERSIONS)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    onnx.save(model, tmp_path / "m.onnx")
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "m.modelc", dims={"rows": range(1, 200)}, database=False)
    session = session_of(model)
    with modelc.load(tmp_path / "m.modelc") as package:
        for count in (1, 15, 16, 33, 128, 150):
            x = samples(count, np.float32, count)
            for name, y in package.run({"x": x}).items():
                np.testing.assert_array_equal(y, session.run([name], {"x": x})[0])
