"""Times packages for any size beside packages for one size and beside ONNX Runtime and OpenVINO:

    python scripts/bench_sizes.py [NAME...] [--sizes N] [--threads N] [--seconds S] [--dir models] [--packages DIR]

Each model of CASES (trained ones: scripts/fetch_models.py) is compiled once for every size within its bounds, and
once for each of up to eight sizes; both peers keep the dimensions free. All engines run by turns on the same inputs,
after a first round that is not counted, and a ratio is one of medians: "any / exact" is how much longer the package
for any size takes (below 1: less), "best / any" how much longer the better peer does; "parameters" is the ratio of
the bytes that both packages store. Nothing is verified here: scripts/check_sizes.py does that. --packages keeps the
packages from run to run.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median

import numpy as np
import onnxruntime
import paths
from rich.table import Table

import modelc
from modelc.cli.terminal import err, out
from modelc.package import at_dims, read_package
from modelc.runtime.files import PARAMS
from modelc.verify.check import drawn

Dims = Mapping[str, int]
Run = Callable[[], object]

HEIGHT, WIDTH = "p2o.DynamicDimension.1", "p2o.DynamicDimension.2"
PAIRS = ((64, 64), (128, 96), (160, 160), (224, 320), (320, 480), (480, 320), (640, 416), (640, 640))
LENGTHS = (8, 20, 40, 70, 100, 128, 200, 300)
CASES: dict[str, tuple[str, dict[str, int | range], list[dict[str, int]]]] = {
    "encoder": (
        "minilm",
        {"batch_size": 1, "sequence_length": range(1, 513)},
        [{"sequence_length": n} for n in LENGTHS],
    ),
    "batch": (
        "minilm",
        {"batch_size": range(1, 33), "sequence_length": 32},
        [{"batch_size": n} for n in (1, 2, 3, 5, 8, 13, 21, 32)],
    ),
    "ocr": (
        "ppocr-rec",
        {"p2o.DynamicDimension.0": 1, "x[2]": 48, "p2o.DynamicDimension.1": range(64, 641, 8)},
        [{"p2o.DynamicDimension.1": n} for n in (64, 96, 136, 160, 240, 320, 480, 640)],
    ),
    "detector": (
        "ppocr-det",
        {"p2o.DynamicDimension.0": 1, HEIGHT: range(32, 641, 32), WIDTH: range(32, 641, 32)},
        [{HEIGHT: h, WIDTH: w} for h, w in PAIRS],
    ),
    "speech": (
        "nsnet2",
        {"batch_size": 1, "frames": range(1, 257)},
        [{"frames": n} for n in (1, 4, 10, 25, 64, 100, 150, 256)],
    ),
    "pictures": (
        "opennsfw",
        {"unk__653": range(1, 17)},
        [{"unk__653": n} for n in (1, 2, 3, 4, 6, 8, 12, 16)],
    ),
}


def package_of(model: Path, dims: Mapping[str, int | range], folder: Path) -> Path:
    """The package for these dimensions, compiled where it is not there yet."""
    said = "-".join(f"{n.start}to{n[-1]}" if isinstance(n, range) else str(n) for n in dims.values())
    package = folder / f"{model.stem}-{said}.modelc"
    if not package.exists():
        err.print(f"compiling {package.name}")
        modelc.compile(model, output=package, dims=dims, verify=False, database=False)
    return package


def openvino_run(model: Path, feed: Mapping[str, np.ndarray], threads: int) -> Run | None:
    """What OpenVINO runs in float32, or None where it is not installed or does not take the model."""
    try:
        import openvino
    except ImportError:
        return None
    try:
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = openvino.Core().compile_model(str(model), "CPU", options).create_infer_request()
        request.infer(dict(feed))
        return partial(request.infer, dict(feed))
    except Exception as error:  # its bindings raise RuntimeError and others
        err.print(f"OpenVINO does not run {model.name}: {str(error).splitlines()[0]}", markup=False)
        return None


def by_turns(runs: Sequence[Run], seconds: float) -> list[float]:
    """The median time of each, in seconds, after one round that is not counted."""
    times: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 3:
        for run, own in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            own.append(time.perf_counter() - start)
    return [median(own) for own in times]


def measure(name: str, arguments: argparse.Namespace, folder: Path, table: Table) -> list[tuple[float, float]]:
    """(any / exact, best peer / any) at each size of a case."""
    stem, dims, sizes = CASES[name]
    model = arguments.dir / f"{stem}.onnx"
    every = package_of(model, dims, folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = arguments.threads
    session = onnxruntime.InferenceSession(model, options)
    ratios = []
    step = max(1, len(sizes) // arguments.sizes)
    for size in sizes[step - 1 :: step]:
        exact = package_of(model, {**dims, **size}, folder)
        there = {re.sub(r"\W", "_", dim): n for dim, n in size.items()}  # as packages name dimensions
        feed = next(drawn(at_dims(read_package(every), there), model))
        with modelc.load(every, threads=arguments.threads) as a, modelc.load(exact, threads=arguments.threads) as e:
            runs: list[Run] = [partial(a.run, feed), partial(e.run, feed), partial(session.run, None, feed)]
            other = openvino_run(model, feed, arguments.threads)
            ours, one_size, *peers = by_turns([*runs, *([other] if other else [])], arguments.seconds)
        ratios.append((ours / one_size, min(peers) / ours))
        said = ", ".join(map(str, size.values()))
        stored = (every / PARAMS).stat().st_size / (exact / PARAMS).stat().st_size
        table.add_row(name, said, f"{stored:.2f}", f"{ours / one_size:.2f}", *(f"{peer / ours:.2f}" for peer in peers))
        err.print(f"{name} {said}: any / exact {ours / one_size:.2f}, best / any {min(peers) / ours:.2f}")
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--sizes", type=int, default=8, metavar="N", help="of each case (default: 8)")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="for each size (default: 3)")
    parser.add_argument("--dir", type=Path, default=paths.ROOT / "models", metavar="DIR", help="where the models are")
    parser.add_argument("--packages", type=Path, metavar="DIR", help="where packages are kept")
    arguments = parser.parse_args()
    names = arguments.names or [*CASES]
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"{unknown[0]!r} is none of {', '.join(CASES)}")
    table = Table("model", "size", "parameters", "any / exact", "ort / any", "openvino / any", box=None)
    ratios = list[tuple[float, float]]()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.packages or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        for case in names:
            ratios += measure(case, arguments, folder, table)
    out.print(table)
    for said, values in zip(("any / exact", "best / any"), zip(*ratios, strict=True), strict=True):
        out.print(f"{said}: {geometric_mean(values):.3f} on the whole, {min(values):.2f} to {max(values):.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
