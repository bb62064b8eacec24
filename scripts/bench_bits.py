"""Times products of one row with weights of four bits, as a decoder makes them for a token:

    python scripts/bench_bits.py [--size N] [--layers N] [--block N] [--threads N] [--seconds S]

The model is a chain of MatMulNBits of N x N with accuracy_level 4, whose activations are int8, and the same with level
1, in float32. Both are compiled for this machine, and timed in alternating slices of one run, with ONNX Runtime on the
first. GB/s are those of the weights and scales, which are read once in a run; below the table is how fast NumPy adds up
an array as large on one thread.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from bench_ops import count, positive
from onnx import TensorProto, helper, numpy_helper, save
from rich.table import Table

import modelc
from modelc.cli.terminal import out
from modelc.package import read_package
from modelc.verify.bench import alternating, beside, median
from modelc.verify.engine import Engine


def write_model(path: Path, size: int, layers: int, block: int, level: int) -> Path:
    rng, nodes, init, x = np.random.default_rng(0), [], [], "x"
    for k in range(layers):
        packed = rng.integers(0, 256, (size, size // block, block // 2)).astype(np.uint8)
        scales = (rng.uniform(0.5, 1.5, (size, size // block)) / 4 / size**0.5).astype(np.float32)
        init += [numpy_helper.from_array(packed, f"b{k}"), numpy_helper.from_array(scales, f"s{k}")]
        attrs = {"K": size, "N": size, "bits": 4, "block_size": block, "accuracy_level": level}
        y = "y" if k == layers - 1 else f"h{k}"
        nodes.append(helper.make_node("MatMulNBits", [x, f"b{k}", f"s{k}"], [y], domain="com.microsoft", **attrs))
        x = y
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name in "xy")
    graph = helper.make_graph(nodes, "bits", [given], [made], init)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    return path


def summed(size: int) -> float:
    """GB/s at which NumPy adds up so many bytes."""
    array, best = np.ones(size // 8, np.int64), float("inf")
    for _ in range(10):
        start = time.perf_counter()
        array.sum()
        best = min(best, time.perf_counter() - start)
    return size / best / 1e9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", metavar="N", type=int, default=4096, help="default 4096")
    parser.add_argument("--layers", metavar="N", type=count, default=8, help="default 8")
    parser.add_argument("--block", metavar="N", type=count, default=32, help="default 32")
    parser.add_argument("--threads", metavar="N", type=count, default=1, help="default 1")
    parser.add_argument("--seconds", metavar="S", type=positive, default=4.0, help="for each engine, default 4")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="modelc-bench-") as folder, ExitStack() as stack:
        engines, feed = {}, {"x": np.random.default_rng(1).standard_normal((1, arguments.size)).astype(np.float32)}
        for name, level in (("int8", 4), ("float32", 1)):
            given = (arguments.size, arguments.layers, arguments.block, level)
            model = write_model(Path(folder) / f"{name}.onnx", *given)
            package = modelc.compile(model, output=model.with_suffix(".modelc"), database=False).path
            engines[name] = stack.enter_context(Engine("modelc", package, arguments.threads))
        engines["onnxruntime"] = stack.enter_context(Engine("ort", Path(folder) / "int8.onnx", arguments.threads))
        for engine in engines.values():
            engine.run(feed)
        times = alternating(engines, arguments.seconds, lambda told: None)
        size = read_package(Path(folder) / "int8.modelc").manifest.params_bytes
    table = Table("activations", "ms", "GB/s", "of int8's time", box=None)
    for name, taken in times.items():
        ms = median(taken)
        table.add_row(name, f"{ms:.3g}", f"{size / ms / 1e6:.1f}", f"{beside(taken, times['int8']):.2f}")
    out.print(table)
    out.print(f"NumPy adds up {size / 1e6:.0f} MB at {summed(size):.1f} GB/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
