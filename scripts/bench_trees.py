"""Times ensembles of trees beside ONNX Runtime: python scripts/bench_trees.py [--rows 1 16 100 1000] [--seconds S]

100 full trees of depth 6 and 500 of depth 8 over 30 features, in float32 and in float64, on one thread. Each row of the
table is compiled for this machine, verified, and timed in alternating slices of one run; the ratio is ONNX Runtime's
time over that of the package.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
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
FORESTS = ((100, 6), (500, 8))  # trees, depth


def forest(trees: int, depth: int, rows: int, dtype: np.dtype) -> onnx.ModelProto:
    """A TreeEnsemble of full trees, of operator set 5, which has both dtypes; its leaves come after one another."""
    random, inner = np.random.default_rng(0), (1 << depth) - 1
    first = inner // 2  # of a tree's branches those from here on lead to leaves
    children = [[2 * k + 1 + side if k < first else 2 * (k - first) + side for k in range(inner)] for side in (0, 1)]
    base = [[inner * t if k < first else (inner + 1) * t for t in range(trees) for k in range(inner)]] * 2
    yes, no = ([b + c for b, c in zip(base[s], children[s] * trees, strict=True)] for s in (0, 1))
    leaf = [int(k >= first) for k in range(inner)] * trees
    leaves = trees * (inner + 1)
    attrs = {
        "n_targets": 1,
        "aggregate_function": 1,
        "post_transform": 0,
        "tree_roots": [t * inner for t in range(trees)],
        "nodes_featureids": random.integers(0, FEATURES, trees * inner).tolist(),
        "nodes_modes": numpy_helper.from_array(np.zeros(trees * inner, np.uint8)),
        "nodes_splits": numpy_helper.from_array(random.standard_normal(trees * inner).astype(dtype)),
        "nodes_truenodeids": yes,
        "nodes_trueleafs": leaf,
        "nodes_falsenodeids": no,
        "nodes_falseleafs": leaf,
        "leaf_targetids": [0] * leaves,
        "leaf_weights": numpy_helper.from_array(random.standard_normal(leaves).astype(dtype)),
    }
    kind = TensorProto.FLOAT if dtype == np.float32 else TensorProto.DOUBLE
    node = helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", name="trees", **attrs)
    ends = [helper.make_tensor_value_info(name, kind, [rows, n]) for name, n in (("x", FEATURES), ("y", 1))]
    graph = helper.make_graph([node], "forest", ends[:1], ends[1:])
    sets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 5)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def timed(model: onnx.ModelProto, feed: dict[str, np.ndarray], folder: Path, seconds: float) -> tuple[float, float]:
    """(microseconds of the package, ONNX Runtime's time over its), by turns."""
    onnx.save(model, folder / "m.onnx")
    modelc.compile(folder / "m.onnx", output=folder / "m.modelc", inputs=feed, database=False)
    with Engine("modelc", folder / "m.modelc") as ours, Engine("ort", folder / "m.onnx") as theirs:
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
    options = parser.parse_args()
    table = Table("trees", "depth", "dtype", "rows", "us", "ratio", box=None)
    for trees, depth in FORESTS:
        for dtype in (np.dtype(np.float32), np.dtype(np.float64)):
            for rows in options.rows:
                feed = {"x": np.random.default_rng(1).standard_normal((rows, FEATURES)).astype(dtype)}
                with tempfile.TemporaryDirectory(prefix="modelc-trees-") as folder:
                    us, ratio = timed(forest(trees, depth, rows, dtype), feed, Path(folder), options.seconds)
                table.add_row(str(trees), str(depth), dtype.name, str(rows), f"{us:.1f}", f"{ratio:.2f}")
    out.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
