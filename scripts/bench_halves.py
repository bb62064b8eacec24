"""Times models with float16 weights beside the same models in float32, and beside ONNX Runtime and OpenVINO:

    python scripts/bench_halves.py MODEL... [--threads N] [--seconds S] [--against ort,openvino] [--folder DIR]

Of each model, in float32, a copy in float16 is written. Both are compiled for this machine (and verified, the copy
beside ONNX Runtime), and timed in alternating slices of one run, with the peers on the copy. A ratio is that of what
the column says over ours in float16: above 1, float16 is the faster. `--folder` keeps models and packages, and takes
packages that lie there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import onnx
from bench_ops import count
from onnxruntime.transformers.float16 import convert_float_to_float16
from rich.table import Table

import modelc
from modelc.cli.terminal import out
from modelc.package import read_package
from modelc.verify.bench import alternating, beside, median
from modelc.verify.check import drawn
from modelc.verify.engine import Engine

PEERS = ("ort", "openvino")


def packages(model: Path, folder: Path) -> tuple[Path, Path, Path]:
    """The copy of `model` in float16, its package, and that of the model in float32."""
    copy = folder / f"{model.stem}-f16.onnx"
    onnx.save(convert_float_to_float16(onnx.load(model)), copy)
    made = []
    for source in (copy, model):
        made.append(folder / f"{source.stem}.modelc")
        if not made[-1].exists():
            modelc.compile(source, output=made[-1], database=False)
    return copy, made[0], made[1]


def measure(model: Path, folder: Path, peers: Sequence[str], threads: int, seconds: float) -> list[str]:
    """A row of the table."""
    copy, half, wide = packages(model, folder)
    with ExitStack() as stack:
        given = {"float16": ("modelc", half, copy), "float32": ("modelc", wide, model)}
        given |= {peer: (peer, copy, copy) for peer in peers}
        engines = {}
        for name, (kind, path, drawn_for) in given.items():
            engines[name] = stack.enter_context(Engine(kind, path, threads))
            engines[name].run(next(drawn(read_package(wide if name == "float32" else half), drawn_for)))
        times = alternating(engines, seconds, lambda told: None)
    ours = times["float16"]
    sizes = (read_package(path).manifest.params_bytes / 1e6 for path in (half, wide))
    ratios = (f"{beside(times[name], ours):.2f}" for name in ("float32", *peers))
    return [model.stem, *(f"{median(found):.3g}" for found in times.values()), *ratios, *map("{:.3g}".format, sizes)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="MODEL", type=Path, nargs="+")
    parser.add_argument("--threads", metavar="N", type=count, default=1, help="default 1")
    parser.add_argument("--seconds", metavar="S", type=float, default=5.0, help="for each engine, default 5")
    parser.add_argument("--folder", metavar="DIR", type=Path)
    parser.add_argument("--against", metavar="PEER,...", default=",".join(PEERS), help=f"default {','.join(PEERS)}")
    arguments = parser.parse_args()
    peers = arguments.against.split(",")
    if unknown := [peer for peer in peers if peer not in PEERS]:
        parser.error(f"--against has {unknown[0]!r}; expected {', '.join(PEERS)}")
    names = ("float32", *peers)
    columns = ("float16 ms", *(f"{name} ms" for name in names), *(f"vs {name}" for name in names))
    table = Table("model", *columns, "float16 MB", "float32 MB", box=None)
    with tempfile.TemporaryDirectory(prefix="modelc-bench-") as scratch:
        folder = arguments.folder or Path(scratch)
        for model in arguments.models:
            table.add_row(*measure(model, folder, peers, arguments.threads, arguments.seconds))
    out.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
