"""Ensembles of decision trees as the tables of Trees (ops/trees.py): the nodes of a tree lie together, level by level,
and the two children of a branch beside each other."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.building.build import OnnxNode
from modelc.ops.tree_walks import LESS, MISSING, MODES, answers, packed

Array = NDArray[Any]
Key = Any
FILLING = {MODES[mode]: -np.inf if MODES[mode] & LESS else np.inf for mode in ("LEQ", "LT", "GTE", "GT")}


@dataclass
class Forest:
    """Branches (feature, threshold, code, child where true, child where not) and leaves (target, weight) by key."""

    branches: dict[Key, tuple[int, float, int, Key, Key]] = field(default_factory=dict)
    leaves: dict[Key, list[tuple[int, float]]] = field(default_factory=dict)
    roots: list[Key] = field(default_factory=list)

    def order(self, n: OnnxNode) -> list[Key]:
        """Parents first. Raises ModelError for a child that is not there, and for a node that leads back to itself."""
        done: dict[Key, bool] = {}  # False while what is below it is looked at
        children_first: list[Key] = []
        for root in self.roots:
            stack = [(root, False)]
            while stack:
                key, left = stack.pop()
                if left:
                    done[key] = True
                    children_first.append(key)
                    continue
                if done.get(key):
                    continue
                if key not in self.branches and key not in self.leaves:
                    raise n.fail(f"expected a node {key}, which its trees lead to; there is none")
                if key in done:
                    raise n.fail(f"expected trees, found node {key} below itself")
                done[key] = False
                stack.append((key, True))
                stack += (
                    [(child, False) for child in self.branches[key][3:] if not done.get(child)]
                    if (key in self.branches)
                    else []
                )
        return children_first[::-1]

    def slots(self, order: list[Key]) -> tuple[list[Key], list[int], dict[Key, int]]:
        """Nodes as they are stored, tree by tree and level by level: the key of each (None for one that leads on to a
        branch which several lead to), how far behind it its children are, and where roots are. Leaves to which several
        lead are stored as often."""
        tree: dict[Key, int] = {}
        level: dict[Key, int] = {}
        parents, roots = Counter(self.roots), set(self.roots)
        for k, root in enumerate(self.roots):
            tree[root], level[root] = k, 0
        for key in order:
            for child in self.branches.get(key, ())[3:]:
                parents[child] += 1
                tree[child] = max(tree.get(child, 0), tree[key])
                level[child] = max(level.get(child, 0), level[key] + 1)
        keys: list[Key] = []
        below: list[int] = []
        at: dict[Key, int] = {}  # of roots and branches
        leading: dict[Key, list[int]] = {}  # nodes that lead on to a branch, which comes behind them

        def store(key: Key) -> int:
            keys.append(key)
            below.append(0)
            return len(keys) - 1

        for key in sorted(order, key=lambda key: (tree[key], level[key])):
            if key not in at and (key in self.branches or key in roots):
                at[key] = store(key)
            for node in leading.pop(key, ()):
                below[node] = at[key] - node
            if key not in self.branches:
                continue
            below[at[key]] = len(keys) - at[key]
            for child in self.branches[key][:2:-1]:  # no, yes
                if child not in self.branches:
                    store(child)
                elif parents[child] > 1:
                    leading.setdefault(child, []).append(store(None))
                else:
                    at[child] = store(child)
        return keys, below, at


def laid_out(
    forest: Forest, order: list[Key], features: int, targets: int, dtype: np.dtype[Any]
) -> tuple[dict[str, Array], dict[str, int]]:
    """The tables of Trees behind its samples, of dtype `dtype`, and its attributes."""
    keys, below, at = forest.slots(order)
    asked = [forest.branches.get(key, (0, np.nan, 0)) for key in keys]
    feature, code = (np.array([branch[k] for branch in asked], np.int64) for k in (0, 2))
    split: Array = np.array([branch[1] for branch in asked], dtype)
    split, code = only_missing(split, code)
    behind = np.array(below, np.int64)
    common = _common(split, code, behind)
    missing = code & MISSING if common else np.zeros_like(code)
    nodes, bits = packed(feature + features * missing, None if common else code, behind)
    leaves = [forest.leaves.get(key, []) for key in keys]
    dense = all(
        [t for t, _ in leaf] == [*range(targets)]
        for key, leaf in zip(keys, leaves, strict=True)
        if key in forest.leaves
    )
    every = [*range(targets)] if dense else [t for leaf in leaves for t, _ in leaf]
    steps = _steps(below, [key is None for key in keys])
    tables = {
        "nodes": nodes,
        "splits": split,
        "roots": np.array([(at[root], *steps[at[root]]) for root in forest.roots], np.int32),
        "spans": np.cumsum([0, *map(len, leaves)]).astype(np.int32),
        "targets": np.array(every or [0], np.int32),
        "weights": np.array([w for leaf in leaves for _, w in leaf] or [0.0]),
    }
    return tables, {"code": common, "bits": bits, "filled": int(missing.any()), "dense": int(dense)}


def only_missing(split: Array, code: Array) -> tuple[Array, Array]:
    """Where a split is a NaN, a branch on which NaNs are answered by yes asks for them alone."""
    odd = np.isnan(split) & (code & MISSING > 0) & (code != MODES["NEQ"])
    return np.where(odd, split.dtype.type(0), split), np.where(odd, MISSING, code)


def _common(split: Array, code: Array, below: Array) -> int:
    """The code of all branches but for what they answer for a NaN, if they have one and an infinity can stand for NaNs;
    0 otherwise."""
    branches = below > 0
    codes = {int(c) & ~MISSING for c in np.unique(code[branches])} or {MODES["LEQ"]}
    if len(codes) > 1:
        return 0
    (common,) = codes
    if common not in FILLING:
        return 0
    missing = code & MISSING > 0
    return common if answers(common, np.full_like(split, FILLING[common]), split)[missing].all() else 0


def _steps(below: list[int], leads: list[bool]) -> list[tuple[int, int]]:
    """From each node in how many steps a leaf is reached, at least and at most."""
    steps = [(0, 0)] * len(below)
    for k in range(len(below) - 1, -1, -1):
        if below[k]:
            no = steps[k + below[k]]
            yes = no if leads[k] else steps[k + below[k] + 1]
            steps[k] = (1 + min(no[0], yes[0]), 1 + max(no[1], yes[1]))
    return steps
