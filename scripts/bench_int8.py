"""Times a matrix product of bytes (uint8 x int8 -> int32) through every intrinsic that a target has for it:

    python scripts/bench_int8.py [--only REGEX] [--shape M,K,N] [--target NAME] [--threads N] [--seconds S]
                                 [--against ort,openvino] [--json FILE]

The model is one MatMulInteger with all weights that the intrinsic multiplies exactly. For each intrinsic it is compiled
for the target with that one alone, verified, and timed beside the peers in alternating slices of one run. A ratio is a
peer's time / ours. The shares are of what the intrinsic reaches by itself, on registers, timed by turns with the
engines: a run's, and that of its kernel, without what a call takes. A peer that lacks the operator is said and left
out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
from bench_ops import Row, Say, attempt, count, options, print_failures, start
from onnx import TensorProto, helper, numpy_helper, save
from rich.table import Table

import modelc
from modelc.cli.terminal import err, out
from modelc.package import read_package
from modelc.passes.machine import multiplied
from modelc.target import Intrinsic, Peak, Target, Unit, load_target
from modelc.verify.bench import alternating, beside, median
from modelc.verify.check import drawn
from modelc.verify.engine import Engine, EngineError

LARGEST = 127  # of a weight
MOST = 1 << 16  # of a dimension
Shape = tuple[int, int, int]


def write_model(path: Path, shape: Shape, largest: int = LARGEST) -> None:
    """x [M, K] by weights [K, N] from -largest to largest."""
    m, k, n = shape
    weights = np.random.default_rng(0).integers(-largest, largest, (k, n), np.int8, endpoint=True)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, [m, k])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, [m, n])],
        [numpy_helper.from_array(weights, "w")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def of_bytes(target: Target) -> dict[str, Intrinsic]:
    """The intrinsics that multiply bytes, or bytes less a zero point, with int8."""
    return {one.name: one for one in target.available_intrinsics if multiplied(replace(target, intrinsics=(one,)))}


def largest_weight(intrinsic: Intrinsic) -> int:
    """As large as weights may be that it multiplies exactly."""
    bounds = [o.within for o in intrinsic.operands if o.dtype == "int8" and o.within is not None]
    return min((high for _, high in bounds), default=LARGEST)


def measure(
    one: Intrinsic, machine: Target, shape: Shape, against: Sequence[str], threads: int, seconds: float, say: Say
) -> Row:
    """Compiles for one intrinsic, and times it, the intrinsic by itself, and the peers."""
    name = one.name
    target = replace(machine, intrinsics=(one,))
    with tempfile.TemporaryDirectory(prefix="modelc-bench-") as folder, ExitStack() as stack:
        model, package = Path(folder) / "bytes.onnx", Path(folder) / "bytes.modelc"
        write_model(model, shape, largest_weight(one))
        say("compiling")
        modelc.compile(model, target, package, database=False)
        read = read_package(package)
        (product,) = [k for k, step in enumerate(read.manifest.variants[0].steps) if step.intrinsic == name]
        feed = next(drawn(read, model))
        engines = {"modelc": stack.enter_context(Engine("modelc", package, threads))}
        engines["modelc"].run(feed)
        for peer in against:
            try:
                engine = stack.enter_context(Engine(peer, model, threads))
                engine.run(feed)
            except EngineError as error:
                err.print(f"{name}: {error}", markup=False, soft_wrap=True)
            else:
                engines[peer] = engine
        alone = stack.enter_context(Peak(Unit(name, one.products), threads))
        times = alternating({**engines, "alone": alone}, seconds, say)
        kernel = 1e3 * engines["modelc"].steps(seconds / 4, 0)[product]
    peak = alone.gflops(median(times.pop("alone")))
    us = {way: 1e3 * median(found) for way, found in times.items()}
    gops, of_kernel = (2e-3 * prod(shape) / taken for taken in (us["modelc"], kernel))
    ratio = {way: beside(found, times["modelc"]) for way, found in times.items() if way != "modelc"}
    shares = {"peak_share": gops / peak, "kernel_share": of_kernel / peak}
    return {"us": us, "ratio": ratio, "gops": gops, "peak_gops": peak, **shares}


def report(rows: Sequence[Row], against: Sequence[str]) -> Table:
    table = Table(
        "intrinsic", "us", "GOP/s", "peak", "of peak", "kernel", *(f"vs {peer}" for peer in against), box=None
    )
    for row in rows:
        numbers = (f"{row['us']['modelc']:.1f}", f"{row['gops']:.0f}", f"{row['peak_gops']:.0f}")
        ratios = (f"{row['ratio'][peer]:.2f}" if peer in row["ratio"] else "" for peer in against)
        shares = (f"{row[share]:.0%}" for share in ("peak_share", "kernel_share"))
        table.add_row(row["case"], *numbers, *shares, *ratios)
    return table


def shape_of(text: str) -> Shape:
    """M,K,N"""
    numbers = [int(part) for part in text.split(",")]
    if len(numbers) != 3 or not all(1 <= number <= MOST for number in numbers):
        raise argparse.ArgumentTypeError(f"{text} is not three numbers from 1 to {MOST}")
    m, k, n = numbers
    return m, k, n


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", metavar="M,K,N", type=shape_of, default=(1024,) * 3, help="default 1024,1024,1024")
    parser.add_argument("--target", metavar="NAME", default="native", help="one that runs here (default native)")
    parser.add_argument("--threads", metavar="N", type=count, default=1, help="default 1")
    options(parser, seconds=1.0)
    arguments = parser.parse_args()
    start(parser, arguments)
    machine = load_target(arguments.target)
    ones = {n: one for n, one in of_bytes(machine).items() if not arguments.only or arguments.only.search(n)}
    if not ones:
        parser.error("the target has no intrinsic that is meant and multiplies bytes with int8")

    def work(name: str, say: Say) -> Row:
        given = (arguments.shape, arguments.against, arguments.threads, arguments.seconds)
        return measure(ones[name], machine, *given, say)

    about = {"shape": arguments.shape, "threads": arguments.threads, "seconds": arguments.seconds}
    rows, failures = attempt(ones, work, arguments.json, about)
    if rows:
        out.print(report(rows, arguments.against))
    print_failures(failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
