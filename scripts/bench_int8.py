"""Times a matrix product of bytes (uint8 x int8 -> int32) through every intrinsic that this machine has for it:

    python scripts/bench_int8.py [--only REGEX] [--size N] [--threads N] [--seconds S] [--against ort,openvino]
                                 [--json FILE]

The model is one MatMulInteger of N x N x N. For each intrinsic it is compiled for this machine with that one alone,
verified, and timed beside the peers in alternating slices of one run. A ratio is a peer's time / ours. The share is of
what the intrinsic reaches by itself, on registers, timed by turns with the engines. A peer that lacks the operator is
said and left out.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from bench_ops import Row, Say, attempt, count, options, print_failures, start
from onnx import TensorProto, helper, numpy_helper, save
from rich.table import Table

import modelc
from modelc.cli.terminal import err, out
from modelc.package import read_package
from modelc.target import Intrinsic, Peak, Target, Unit, load_target
from modelc.verify.bench import alternating, beside, median
from modelc.verify.check import drawn
from modelc.verify.engine import Engine, EngineError


def write_model(path: Path, size: int) -> None:
    weights = np.random.default_rng(0).integers(-127, 127, (size, size), np.int8, endpoint=True)
    shape = [size, size]
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w"], ["y"])],
        "bytes",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def of_bytes(target: Target) -> dict[str, Intrinsic]:
    """The intrinsics that multiply uint8 with int8."""
    kinds = {one.name: [o.dtype for o in one.operands if o != one.accumulator] for one in target.available_intrinsics}
    return {one.name: one for one in target.available_intrinsics if kinds[one.name] == ["uint8", "int8"]}


def measure(
    one: Intrinsic, machine: Target, size: int, against: Sequence[str], threads: int, seconds: float, say: Say
) -> Row:
    """Compiles for one intrinsic, and times it, the intrinsic by itself, and the peers."""
    name = one.name
    target = replace(machine, intrinsics=(one,))
    with tempfile.TemporaryDirectory(prefix="modelc-bench-") as folder, ExitStack() as stack:
        model, package = Path(folder) / "bytes.onnx", Path(folder) / "bytes.modelc"
        write_model(model, size)
        say("compiling")
        modelc.compile(model, target, package, database=False)
        read = read_package(package)
        assert [step.intrinsic for step in read.manifest.variants[0].steps] == [name]
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
    peak = alone.gflops(median(times.pop("alone")))
    us = {way: 1e3 * median(found) for way, found in times.items()}
    gops = 2e-3 * size**3 / us["modelc"]
    ratio = {way: beside(found, times["modelc"]) for way, found in times.items() if way != "modelc"}
    return {"us": us, "ratio": ratio, "gops": gops, "peak_gops": peak, "peak_share": gops / peak}


def report(rows: Sequence[Row], against: Sequence[str]) -> Table:
    table = Table("intrinsic", "us", "GOP/s", "peak", "of peak", *(f"vs {peer}" for peer in against), box=None)
    for row in rows:
        numbers = (f"{row['us']['modelc']:.1f}", f"{row['gops']:.0f}", f"{row['peak_gops']:.0f}")
        ratios = (f"{row['ratio'][peer]:.2f}" if peer in row["ratio"] else "" for peer in against)
        table.add_row(row["case"], *numbers, f"{row['peak_share']:.0%}", *ratios)
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", metavar="N", type=count, default=1024, help="default 1024")
    parser.add_argument("--threads", metavar="N", type=count, default=1, help="default 1")
    options(parser, seconds=1.0)
    arguments = parser.parse_args()
    start(parser, arguments)
    machine = load_target("native")
    ones = {n: one for n, one in of_bytes(machine).items() if not arguments.only or arguments.only.search(n)}
    if not ones:
        parser.error("this machine has no intrinsic that is meant and multiplies uint8 with int8")

    def work(name: str, say: Say) -> Row:
        given = (arguments.size, arguments.against, arguments.threads, arguments.seconds)
        return measure(ones[name], machine, *given, say)

    about = {"size": arguments.size, "threads": arguments.threads, "seconds": arguments.seconds}
    rows, failures = attempt(ones, work, arguments.json, about)
    if rows:
        out.print(report(rows, arguments.against))
    print_failures(failures)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
