"""Ensembles of decision trees: what TreeEnsembleRegressor, TreeEnsembleClassifier and TreeEnsemble state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.classical.linear import (
    CLASSICAL,
    ML,
    best,
    both,
    cast,
    chosen,
    labels_of,
    number,
    positive,
    refuse_strings,
    rows,
    transformed,
)
from modelc.frontend.classical.support_vectors import SUPPORT_VECTORS
from modelc.frontend.classical.tree_tables import Forest, Key, laid_out
from modelc.ir.expr import DTYPES
from modelc.ops.tree_walks import MISSING, MODES

CODES = {f"BRANCH_{mode}": code for mode, code in MODES.items()}  # of the attribute nodes_modes
BY_NUMBER = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")  # of the same in TreeEnsemble, where 6 is a set of values
MEMBER = 6
TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def emit_trees(b: Builder, n: OnnxNode, forest: Forest, x: str, targets: int, aggregate: str, dtype: str) -> str:
    """Scores [samples, targets] of dtype `dtype`."""
    x = rows(b, n, x)
    features = b.shape(x)[1]
    for feature, *_ in forest.branches.values():
        if not 0 <= feature < features:
            raise n.fail(f"expected features from 0 to {features - 1}, found {feature}")
    if any(not 0 <= t < targets for leaf in forest.leaves.values() for t, _ in leaf) or targets < 1:
        raise n.fail(f"expected targets from 0 to {targets - 1}, found others")
    fold = {"AVERAGE": "add", "SUM": "add", "MIN": "min", "MAX": "max"}.get(aggregate)
    if fold is None:
        raise n.fail(f"expected aggregate_function {', '.join(AGGREGATES)}, found {aggregate!r}")
    tables, attrs = laid_out(forest, forest.order(n), features, targets, DTYPES[b.value(x).dtype])
    tables["weights"] = tables["weights"].astype(DTYPES[dtype])
    given = [b.constant(data, f"{n.outputs[0]}_{name}") for name, data in tables.items()]
    scores = b.emit(n, "Trees", (x, *given), {"aggregate": fold, "targets": targets, **attrs})
    if aggregate == "AVERAGE":
        scores = b.emit(n, "Div", (scores, number(b, n, len(forest.roots), dtype)))
    return scores


# --- operator sets up to 4 ------------------------------------------------------------------------------------------


def _list(n: OnnxNode, name: str, count: int | None, default: Any = None) -> Sequence[Any]:
    entries = n.attrs.get(f"{name}_as_tensor", n.attrs.get(name))
    if entries is None or not len(entries):
        entries = [default] * (count or 0)
    if count is not None and len(entries) != count:
        raise n.fail(f"expected {count} entries in {name}, found {len(entries)}")
    return entries if isinstance(entries, tuple) else np.asarray(entries).reshape(-1).tolist()


def read_forest(n: OnnxNode, kind: str) -> Forest:
    """From the attributes of TreeEnsembleRegressor (`kind` target) and TreeEnsembleClassifier (class)."""
    ids = n.attrs.get("nodes_nodeids") or ()
    count, forest = len(ids), Forest()
    columns: Mapping[str, Sequence[Any]] = {
        name: _list(n, f"nodes_{name}", count, default)
        for name, default in (
            ("treeids", 0), ("nodeids", 0), ("featureids", 0), ("values", 0.0), ("modes", "LEAF"), ("truenodeids", 0),
            ("falsenodeids", 0), ("missing_value_tracks_true", 0),
        )
    }  # fmt: skip
    trees: set[int] = set()
    for tree, node, feature, split, mode, yes, no, missing in zip(*columns.values(), strict=True):
        key = (tree, node)
        if key in forest.branches or key in forest.leaves:
            raise n.fail(f"expected every node of a tree once, found node {node} of tree {tree} twice")
        if tree not in trees:
            forest.roots.append(key)
            trees.add(tree)
        if mode == "LEAF":
            forest.leaves[key] = []
        elif mode in CODES:
            code = CODES[mode] | (MISSING if missing else 0)
            forest.branches[key] = (feature, split, code, (tree, yes), (tree, no))
        else:
            raise n.fail(f"expected nodes_modes LEAF or one of {', '.join(CODES)}, found {mode!r}")
    given = n.attrs.get(f"{kind}_nodeids") or ()
    names = [f"{kind}_{name}" for name in ("treeids", "nodeids", "ids", "weights")]
    for tree, node, target, weight in zip(*(_list(n, name, len(given)) for name in names), strict=True):
        if (tree, node) not in forest.leaves:
            raise n.fail(f"expected weights of leaves, found one of node {node} of tree {tree}")
        forest.leaves[tree, node].append((target, weight))
    return forest


def _input(b: Builder, n: OnnxNode) -> str:
    x = n.inputs[0]
    return x if b.value(x).dtype == "float64" else cast(b, n, x, "float32")


def _base(n: OnnxNode) -> Sequence[float]:
    return _list(n, "base_values", None)


def _regressor(b: Builder, n: OnnxNode) -> None:
    targets = int(n.attrs.get("n_targets", 1))
    aggregate = str(n.attrs.get("aggregate_function", "SUM"))
    scores = emit_trees(b, n, read_forest(n, "target"), _input(b, n), targets, aggregate, "float32")
    base = _base(n)
    if len(base) not in (0, 1, targets):
        raise n.fail(f"expected {targets} base_values, found {len(base)}")
    if len(base):
        scores = b.emit(n, "Add", (scores, number(b, n, base, "float32")))
    transformed(b, n, scores, str(n.attrs.get("post_transform", "NONE")), n.outputs[0])


def _classifier(b: Builder, n: OnnxNode) -> None:
    """Of two classes whose weights all go to one, that is the second: a probability if none is negative, else a
    distance (ONNX Runtime's reading)."""
    refuse_strings(n, "classlabels_strings")
    labels = labels_of(n, "classlabels_int64s", 1)
    forest, count, transform = read_forest(n, "class"), len(labels), str(n.attrs.get("post_transform", "NONE"))
    weights = [(t, w) for leaf in forest.leaves.values() for t, w in leaf]
    base, alone = _base(n), count == 2 and len({t for t, _ in weights}) == 1
    if alone:
        forest.leaves = {key: [(0, w) for _, w in leaf] for key, leaf in forest.leaves.items()}
    scores = emit_trees(b, n, forest, _input(b, n), 1 if alone else count, "SUM", "float32")
    if alone and len(base):
        scores = b.emit(n, "Add", (scores, number(b, n, base[-1], "float32")))
    elif len(base):
        if len(base) != count:
            raise n.fail(f"expected {count} base_values, found {len(base)}")
        scores = b.emit(n, "Add", (scores, number(b, n, base, "float32")))
    signed = any(w < 0 for _, w in weights)
    if n.wants(0):
        index = positive(b, n, scores, 0.0 if signed else 0.5) if alone else best(b, n, scores)
        chosen(b, n, index, labels, n.outputs[0])
    if n.wants(1) and alone:
        both(b, n, scores, transform if signed else "NONE", n.outputs[1], signed)
    elif n.wants(1):
        transformed(b, n, scores, transform, n.outputs[1])


# --- operator set 5 -------------------------------------------------------------------------------------------------


def _ensemble(b: Builder, n: OnnxNode) -> None:
    attrs = n.attrs
    splits = np.asarray(attrs["nodes_splits"]).reshape(-1)
    count, dtype = len(splits), b.value(n.inputs[0]).dtype
    names = ("featureids", "modes", "truenodeids", "trueleafs", "falsenodeids", "falseleafs")
    columns = [_list(n, f"nodes_{name}", count) for name in names]
    missing = _list(n, "nodes_missing_value_tracks_true", count, 0)
    sets = _sets(np.asarray(attrs.get("membership_values", ())))
    weights = np.asarray(attrs["leaf_weights"]).reshape(-1).tolist()
    targets = _list(n, "leaf_targetids", len(weights))
    forest = Forest(leaves={("leaf", k): [(t, w)] for k, (t, w) in enumerate(zip(targets, weights, strict=True))})
    for k, (feature, mode, yes, yes_leaf, no, no_leaf) in enumerate(zip(*columns, strict=True)):
        then, otherwise = (("leaf" if leaf else k_, v) for leaf, v, k_ in ((yes_leaf, yes, "n"), (no_leaf, no, "n")))
        extra = MISSING if missing[k] else 0
        if mode == MEMBER:
            if not sets:
                raise n.fail("expected membership_values for every node that asks for membership, found fewer")
            values = sets.pop(0)
            for j, value in enumerate(values):  # one question after the other
                last = j + 1 == len(values)
                key: Key = ("n", k) if not j else ("member", k, j)
                code = MODES["EQ"] | extra
                forest.branches[key] = (feature, value, code, then, otherwise if last else ("member", k, j + 1))
        elif 0 <= mode < len(BY_NUMBER):
            code = MODES[BY_NUMBER[mode]] | extra
            forest.branches["n", k] = (feature, float(splits[k]), code, then, otherwise)
        else:
            raise n.fail(f"expected nodes_modes from 0 to {MEMBER}, found {mode}")
    forest.roots = [("n", int(root)) for root in attrs["tree_roots"]]
    aggregate, transform = int(attrs.get("aggregate_function", 1)), int(attrs.get("post_transform", 0))
    if not 0 <= aggregate < len(AGGREGATES) or not 0 <= transform < len(TRANSFORMS):
        raise n.fail(f"expected a known aggregate_function and post_transform, found {aggregate} and {transform}")
    count = int(attrs.get("n_targets", 1))
    scores = emit_trees(b, n, forest, n.inputs[0], count, AGGREGATES[aggregate], dtype)
    transformed(b, n, scores, TRANSFORMS[transform], n.outputs[0])


def _sets(values: Any) -> list[list[float]]:
    """Sets of values, each ended by a NaN."""
    sets: list[list[float]] = [[]]
    for value in values.reshape(-1).tolist():
        if np.isnan(value):
            sets.append([])
        else:
            sets[-1].append(value)
    return [members for members in sets if members]


TREES = {
    **CLASSICAL,
    **SUPPORT_VECTORS,
    (ML, "TreeEnsembleRegressor"): _regressor,
    (ML, "TreeEnsembleClassifier"): _classifier,
    (ML, "TreeEnsemble"): _ensemble,
}
