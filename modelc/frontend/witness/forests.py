"""Ensembles of trees as the attributes of their nodes state them, beside the tables that an importer made of them: both
are walked at once from their roots, whatever the order of their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.classical.tree_tables import only_missing
from modelc.frontend.classical.trees import BY_NUMBER, CODES, MEMBER
from modelc.ops.tree_walks import MISSING, MODES, unpacked

Array = NDArray[Any]
Attributes = Mapping[str, Array]  # of a node of the file
SHOWN = {0: "LEAF", **{code | MISSING: f"{mode} or missing" for mode, code in MODES.items()}}
SHOWN |= {code: mode for mode, code in MODES.items()} | {MISSING: "missing"}


@dataclass(frozen=True)
class Forest:
    """Its nodes by number: `code` is 0 for a leaf, whose weights are those from `first` on and before `last`; `yes` and
    `no` are the children of others."""

    feature: Array
    code: Array
    split: Array
    yes: Array
    no: Array
    first: Array
    last: Array
    targets: Array
    weights: Array
    roots: Array


def of_tables(attrs: Mapping[str, Any], features: int, *tables: Array) -> Forest:
    """Of the attributes of Trees (ops/trees.py) and its inputs behind the samples, which have so many features."""
    nodes, splits, roots, spans, targets, weights = tables
    column, code, below = unpacked(nodes, attrs)
    code = np.where(below > 0, np.where(column >= features, code | MISSING, code), 0)
    every = np.arange(len(nodes))
    leading = (below > 0) & (code == 0)  # on to a branch that several lead to
    on = np.where(leading, every + below, every)
    while leading[on].any():
        on = on[on]
    no, yes = on[every + below], on[np.minimum(every + below + 1, every[-1])]
    owners = np.resize(targets, len(weights))
    return Forest(column % features, code, splits, yes, no, spans[:-1], spans[1:], owners, weights, roots[:, 0])


def stated_forest(op: str, attributes: Attributes) -> Forest | None:
    """As an ensemble's node states it; None where it asks for membership of sets, which becomes several nodes."""
    if op != "TreeEnsemble":
        return _of_keys(attributes, "target" if op == "TreeEnsembleRegressor" else "class")
    return None if MEMBER in attributes["nodes_modes"] else _of_numbers(attributes)


def _of_keys(attributes: Attributes, kind: str) -> Forest:
    """Up to operator set 4 nodes have a tree and a number, and leaves are among them."""
    ids = attributes["nodes_nodeids"]

    def column(name: str, default: Any = 0) -> Array:
        given = attributes.get(f"nodes_{name}_as_tensor", attributes.get(f"nodes_{name}", ids[:0]))
        return given.reshape(-1) if given.size else np.full(len(ids), default)

    trees = column("treeids").tolist()
    place = {key: k for k, key in enumerate(zip(trees, ids.tolist(), strict=True))}

    def places(owners: list[int], numbers: list[int]) -> Array:
        return np.array([place.get(key, -1) for key in zip(owners, numbers, strict=True)], np.int64)

    def weights_of(name: str) -> Array:
        return attributes.get(f"{kind}_{name}_as_tensor", attributes.get(f"{kind}_{name}", ids[:0])).reshape(-1)

    numbers = weights_of("nodeids").tolist()
    owners = places(weights_of("treeids").tolist(), numbers)
    order, every = np.argsort(owners, kind="stable"), np.arange(len(ids))
    codes = _codes(
        [CODES.get(mode, 0) for mode in column("modes", "LEAF").tolist()], column("missing_value_tracks_true")
    )
    split, code = only_missing(column("values", 0.0), codes)
    return Forest(
        column("featureids"),
        code,
        split,
        places(trees, column("truenodeids").tolist()),
        places(trees, column("falsenodeids").tolist()),
        np.searchsorted(owners[order], every, "left"),
        np.searchsorted(owners[order], every, "right"),
        weights_of("ids")[order],
        weights_of("weights")[order],
        np.sort(np.unique(trees, return_index=True)[1]),
    )


def _of_numbers(attributes: Attributes) -> Forest:
    """From operator set 5 on leaves have numbers of their own, which begin behind those of the branches here."""
    count, leaves = len(attributes["nodes_featureids"]), len(attributes["leaf_weights"])
    none, every = np.zeros(leaves, np.int64), np.arange(leaves)
    yes, no = (
        np.where(attributes[f"nodes_{side}leafs"] > 0, count, 0) + attributes[f"nodes_{side}nodeids"]
        for side in ("true", "false")
    )
    codes = [MODES[BY_NUMBER[mode]] for mode in attributes["nodes_modes"].tolist()]
    missing = attributes.get("nodes_missing_value_tracks_true", np.zeros(count, np.int64))
    split, code = only_missing(attributes["nodes_splits"], _codes(codes, missing))
    return Forest(
        np.concatenate([attributes["nodes_featureids"], none]),
        np.concatenate([code, none]),
        np.concatenate([split, none]),
        np.concatenate([yes, none]),
        np.concatenate([no, none]),
        np.concatenate([np.zeros(count, np.int64), every]),
        np.concatenate([np.zeros(count, np.int64), every + 1]),
        attributes["leaf_targetids"],
        attributes["leaf_weights"],
        attributes["tree_roots"],
    )


def _codes(modes: list[int], missing: Array) -> Array:
    codes = np.asarray(modes, np.int64)
    return np.where((codes > 0) & (missing > 0), codes | MISSING, codes)


def departure(taken: Forest, stated: Forest, targets: bool) -> str | None:
    """Where the forest that was `taken` over is another than the `stated` one, in a sentence; None where it is not.
    `targets`: whether the targets of weights are the stated ones too."""
    if len(taken.roots) != len(stated.roots):
        return f"has {len(taken.roots)} trees, expected {len(stated.roots)}"
    pairs = np.stack([taken.roots, stated.roots], 1).astype(np.int64)
    while len(pairs):
        a, b = np.unique(pairs, axis=0).T
        branch = stated.code[b] > 0
        if (sentence := _unequal("mode", taken.code[a], stated.code[b], b, SHOWN)) is not None:
            return sentence
        for name, ours, theirs in (
            ("feature", taken.feature, stated.feature),
            ("split", taken.split, stated.split),
        ):
            if (sentence := _unequal(name, ours[a[branch]], theirs[b[branch]], b[branch])) is not None:
                return sentence
        if (sentence := _other_leaves(taken, stated, a[~branch], b[~branch], targets)) is not None:
            return sentence
        a, b = a[branch], b[branch]
        pairs = np.concatenate([np.stack([x[a], y[b]], 1) for x, y in ((taken.yes, stated.yes), (taken.no, stated.no))])
    return None


def _other_leaves(taken: Forest, stated: Forest, a: Array, b: Array, targets: bool) -> str | None:
    counts = stated.last[b] - stated.first[b]
    if (sentence := _unequal("number of weights", taken.last[a] - taken.first[a], counts, b)) is not None:
        return sentence
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    ours, theirs, leaves = (np.repeat(x, counts) for x in (taken.first[a], stated.first[b], b))
    sentence = _unequal("weight", taken.weights[ours + within], stated.weights[theirs + within], leaves)
    if sentence is None and targets:
        sentence = _unequal("target", taken.targets[ours + within], stated.targets[theirs + within], leaves)
    return sentence


def _unequal(what: str, ours: Array, theirs: Array, nodes: Array, shown: Mapping[int, str] | None = None) -> str | None:
    apart = ours != theirs.astype(ours.dtype)
    if ours.dtype.kind == "f":
        apart &= ~(np.isnan(ours) & np.isnan(theirs.astype(ours.dtype)))
    if not apart.any():
        return None
    k = int(np.argmax(apart))
    taken, stated = (ours[k], theirs[k]) if shown is None else (shown[int(ours[k])], shown[int(theirs[k])])
    return f"has the {what} {taken} in tree node {nodes[k]}, expected {stated}"
