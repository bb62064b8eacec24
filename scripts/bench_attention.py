"""Times attention in one kernel beside the same in three, ONNX Runtime and OpenVINO:

    python scripts/bench_attention.py [--only REGEX] [--threads N] [--seconds S] [--against ort,openvino] [--json FILE]

The cases are the attention of networks, without the projections around it, and Ansor's TBS (scripts/ansor_ops.py). Each
is compiled twice for this machine, with `partition.attention` and without, verified, and timed in alternating slices of
one run. A ratio is another's time / that of the one kernel: above 1, the one kernel is faster. The share of peak counts
the multiply-adds of the contractions alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import ansor_ops
import numpy as np
import onnx
import paths  # noqa: F401
from bench_ops import Row, Say, attempt, count, options, print_failures, start
from networks import LOWEST, Network
from rich.table import Table

import modelc
from modelc.cli.terminal import out
from modelc.compile.config import load_config
from modelc.package import read_package
from modelc.target import Peak, Unit, best_unit, load_target
from modelc.verify.bench import alternating, beside, median
from modelc.verify.check import drawn
from modelc.verify.engine import Engine

MASKS = ("none", "added", "causal")


def attention(heads: int, tokens: int, size: int, mask: str = "none", joint: bool = False) -> tuple[bytes, int]:
    """The model and its floating-point operations. `mask`: one of MASKS, as BERT adds it or GPT-2 selects by it;
    `joint`: queries, keys and values side by side in one tensor."""
    net = Network("attention")
    hidden = heads * size
    if joint:
        parts = net.op("Split", net.input("x", [1, tokens, 3 * hidden]), results=3, axis=2, num_outputs=3)
    else:
        parts = [net.input(name, [1, tokens, hidden]) for name in ("query", "key", "value")]
    perms = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
    query, key, value = (
        net.op("Transpose", net.reshape(part, [1, tokens, heads, size], "heads"), perm=perm)
        for part, perm in zip(parts, perms, strict=True)
    )
    scores = net.op("Div", net.op("MatMul", query, key), net.constant(size**0.5))
    if mask == "added":
        scores = net.op("Add", scores, net.input("mask", [1, 1, 1, tokens]))
    if mask == "causal":
        visible = net.weight("visible", np.tri(tokens, dtype=bool)[None, None])
        scores = net.op("Where", visible, scores, net.constant(LOWEST))
    merged = net.op("Transpose", net.op("MatMul", net.op("Softmax", scores, axis=-1), value), perm=[0, 2, 1, 3])
    net.output("output", net.reshape(merged, [1, tokens, hidden], "merged"), [1, tokens, hidden])
    model = net.build()
    model.opset_import[0].version = 18  # Split says how many
    onnx.checker.check_model(model)
    return model.SerializeToString(), 4 * heads * tokens**2 * size


def scores(case: ansor_ops.Case) -> tuple[bytes, int]:
    model, flops = case.build()
    return model.SerializeToString(), flops


CASES: dict[str, Callable[[], tuple[bytes, int]]] = {
    "bert-base": partial(attention, 12, 128, 64, "added"),
    "bert-large-512": partial(attention, 16, 512, 64, "added"),
    "bert-tiny": partial(attention, 2, 128, 64, "added"),
    "minilm": partial(attention, 12, 128, 32, "added"),
    "minilm-9": partial(attention, 12, 9, 32, "added"),
    "gpt2": partial(attention, 12, 128, 64, "causal", joint=True),
    "gpt2-1024": partial(attention, 12, 1024, 64, "causal", joint=True),
    "vit-b16": partial(attention, 12, 197, 64, joint=True),
    **{c.name: partial(scores, c) for c in ansor_ops.cases(ansor_ops.BATCHES) if c.operator == "TBS"},
}


def measure(name: str, unit: Unit, against: Sequence[str], threads: int, seconds: float, say: Say) -> Row:
    """Compiles one case twice, and times both, the peers, and the `unit` for float32 by itself."""
    data, flops = CASES[name]()
    with tempfile.TemporaryDirectory(prefix="modelc-bench-") as folder, ExitStack() as stack:
        model = Path(folder) / f"{name}.onnx"
        model.write_bytes(data)
        engines: dict[str, Engine] = {}
        for way in ("fused", "apart"):
            say(f"compiling {way}")
            package = Path(folder) / f"{way}.modelc"
            config = load_config().allowing(attention=way == "fused")
            modelc.compile(model, output=package, config=config, database=False)
            engines[way] = stack.enter_context(Engine("modelc", package, threads))
        for peer in against:
            engines[peer] = stack.enter_context(Engine(peer, model, threads))
        feed = next(drawn(read_package(package), model))
        for engine in engines.values():
            engine.run(feed)
        alone = stack.enter_context(Peak(unit, threads))
        times = alternating({**engines, "alone": alone}, seconds, say)
    peak = alone.gflops(median(times.pop("alone")))
    us = {way: 1e3 * median(found) for way, found in times.items()}
    ratio = {way: beside(found, times["fused"]) for way, found in times.items() if way != "fused"}
    return {"us": us, "ratio": ratio, "flops": flops, "peak_share": flops / us["fused"] * 1e-3 / peak}


def report(rows: Sequence[Row], against: Sequence[str]) -> Table:
    others = ("apart", *against)
    table = Table("case", "fused us", *(f"{w} us" for w in others), *(f"vs {w}" for w in others), "of peak", box=None)
    for row in rows:
        times = (f"{row['us'][way]:.1f}" for way in ("fused", *others))
        ratios = (f"{row['ratio'][way]:.2f}" for way in others)
        table.add_row(row["case"], *times, *ratios, f"{row['peak_share']:.0%}")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", metavar="N", type=count, default=1, help="default 1")
    options(parser, seconds=1.0)
    arguments = parser.parse_args()
    names = [name for name in CASES if arguments.only.search(name)] if arguments.only else [*CASES]
    if not names:
        parser.error(f"no case matches {arguments.only.pattern!r}; there are {', '.join(CASES)}")
    start(parser, arguments)
    unit = best_unit(load_target("native"), "float32")

    def work(name: str, say: Say) -> Row:
        return measure(name, unit, arguments.against, arguments.threads, arguments.seconds, say)

    about = {"threads": arguments.threads, "seconds": arguments.seconds}
    rows, failures = attempt(names, work, arguments.json, about)
    if rows:
        out.print(report(rows, arguments.against))
    print_failures(failures)
    out.print(f"{len(rows)} of {len(names)} cases, {arguments.threads} thread(s)")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
