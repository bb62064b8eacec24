"""Times ensembles of trees beside ONNX Runtime: python scripts/bench_trees.py [--rows 1 16 100 1000] [--threads N]

Full and uneven trees over 30 features, in float32 and in float64. Each row of the table is compiled, verified, and
timed in alternating slices of one run; the ratio is ONNX Runtime's time over that of the package.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import paths  # noqa: F401
from onnx import TensorProto, helper, numpy_helper
from rich.table import Table

import modelc
from modelc.cli.terminal import out
from modelc.verify.engine import Engine

FEATURES, ROUNDS = 30, 9


@dataclass(frozen=True)
class Kind:
    trees: int
    leaves: int
    uneven: bool = False  # grown leaf by leaf, anywhere, where others are level by level
    targets: int = 1  # a tree gives weights to one of them
    missing: bool = False  # one number in twenty, with which branches go on by yes or by no

    def __str__(self) -> str:
        shape = "uneven" if self.uneven else "full"
        several = f", {self.targets} targets" if self.targets > 1 else ""
        return f"{self.trees} {shape}, {self.leaves} leaves{several}{', missing values' if self.missing else ''}"


FORESTS = (
    Kind(100, 64),
    Kind(500, 256),
    Kind(300, 64, targets=5),
    Kind(200, 31, uneven=True, missing=True),
    Kind(100, 2000, uneven=True),
)


def tree(leaves: int, random: np.random.Generator | None) -> list[list[tuple[bool, int]]]:
    """Of each side of its branches, yes and no, whether there is a leaf, and its number or that of a branch."""
    sides: list[list[tuple[bool, int]]] = [[(True, 0)], [(True, 0)]]
    ends = [(0, 0), (1, 0)]  # side, branch
    while len(ends) < leaves:
        side, branch = ends.pop(0 if random is None else int(random.integers(len(ends))))
        new = len(sides[0])
        sides[side][branch] = (False, new)
        for k in (0, 1):
            sides[k].append((True, 0))
            ends.append((k, new))
    for number, (side, branch) in enumerate(ends):
        sides[side][branch] = (True, number)
    return sides


def forest(kind: Kind, rows: int, dtype: np.dtype) -> onnx.ModelProto:
    """A TreeEnsemble of operator set 5, which has both dtypes."""
    random, inner = np.random.default_rng(0), kind.leaves - 1
    trees = [tree(kind.leaves, random if kind.uneven else None) for _ in range(kind.trees)]
    ends = [[(t, *end) for t, sides in enumerate(trees) for end in sides[side]] for side in (0, 1)]
    yes, no = ([t * (kind.leaves if leaf else inner) + k for t, leaf, k in side] for side in ends)
    yes_leaf, no_leaf = ([int(leaf) for _, leaf, _ in side] for side in ends)
    attrs = {
        "n_targets": kind.targets,
        "aggregate_function": 1,
        "post_transform": 0,
        "tree_roots": [t * inner for t in range(kind.trees)],
        "nodes_featureids": random.integers(0, FEATURES, kind.trees * inner).tolist(),
        "nodes_modes": numpy_helper.from_array(np.zeros(kind.trees * inner, np.uint8)),
        "nodes_missing_value_tracks_true": random.integers(0, 1 + kind.missing, kind.trees * inner).tolist(),
        "nodes_splits": numpy_helper.from_array(random.standard_normal(kind.trees * inner).astype(dtype)),
        "nodes_truenodeids": yes,
        "nodes_trueleafs": yes_leaf,
        "nodes_falsenodeids": no,
        "nodes_falseleafs": no_leaf,
        "leaf_targetids": [t % kind.targets for t in range(kind.trees) for _ in range(kind.leaves)],
        "leaf_weights": numpy_helper.from_array(random.standard_normal(kind.trees * kind.leaves).astype(dtype)),
    }
    real = TensorProto.FLOAT if dtype == np.float32 else TensorProto.DOUBLE
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", name="trees", **attrs)
    widths = (("x", FEATURES), ("y", kind.targets))
    values = [helper.make_tensor_value_info(name, real, [rows, n]) for name, n in widths]
    graph = helper.make_graph([node], "forest", values[:1], values[1:])
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def timed(
    model: onnx.ModelProto, feed: dict[str, np.ndarray], folder: Path, options: argparse.Namespace
) -> tuple[float, float]:
    """(microseconds of the package, ONNX Runtime's time over its), by turns."""
    threads, seconds = options.threads, options.seconds
    onnx.save(model, folder / "m.onnx")
    modelc.compile(folder / "m.onnx", options.target, folder / "m.modelc", inputs=feed, database=False)
    with Engine("modelc", folder / "m.modelc", threads) as ours, Engine("ort", folder / "m.onnx", threads) as theirs:
        for engine in (ours, theirs):
            engine.run(feed)
            engine.time(seconds)
        pairs = [(median(ours.time(seconds)), median(theirs.time(seconds))) for _ in range(ROUNDS)]
    return 1e3 * median(a for a, _ in pairs), median(b / a for a, b in pairs)


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16, 100, 1000])
    parser.add_argument("--seconds", type=float, default=0.05, help="of each slice")
    parser.add_argument("--target", help="another than this machine")
    parser.add_argument("--threads", type=int, default=1, help="of both")
    options = parser.parse_args()
    table = Table("trees", "dtype", "rows", "us", "ratio", box=None)
    for kind in FORESTS:
        for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
            for rows in options.rows:
                random = np.random.default_rng(1)
                x = random.standard_normal((rows, FEATURES)).astype(dtype)
                feed = {"x": np.where(random.random(x.shape) < 0.05 * kind.missing, np.array(np.nan, dtype), x)}
                with tempfile.TemporaryDirectory(prefix="modelc-trees-") as folder:
                    us, ratio = timed(forest(kind, rows, dtype), feed, Path(folder), options)
                table.add_row(str(kind), dtype.name, str(rows), f"{us:.1f}", f"{ratio:.2f}")
    out.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
