"""What it costs that parameters take no more than the model's constants: compiles networks without a limit and with
`--max-params 1.0x`, and times both packages by turns on one thread.

    python scripts/params_table.py [--target NAME] models/lenet.onnx models/mlp.onnx ..."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import paths  # noqa: F401

import modelc
from modelc.compile.result import CompileResult
from modelc.errors import ModelcError
from modelc.package import read_package
from modelc.runtime import Model

TURNS, SECONDS = 5, 0.3


def fastest(model: Model, feeds: dict[str, np.ndarray]) -> float:
    """Milliseconds of the fastest run within SECONDS."""
    best, end = np.inf, time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        model.run(feeds)
        best = min(best, time.perf_counter() - start)
    return 1e3 * best


def row(path: Path, target: str | None, limit: str) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as name:
        places = [Path(name, "free.modelc"), Path(name, "limited.modelc")]
        free = modelc.compile(path, target, places[0], verify=False)
        try:
            limited = modelc.compile(path, target, places[1], max_params=limit)
        except ModelcError as error:
            return f"| {path.stem} | {_times(free)}x | {str(error).partition(', and ')[2].partition(':')[0]} | | |"
        plan = read_package(places[0]).manifest.variants[0]
        random = np.random.default_rng(0)
        feeds = {t.name: random.random(t.shape, np.float32).astype(t.dtype) for t in plan.inputs}
        models = [modelc.load(place, threads=1) for place in places]
        times = np.array([[fastest(model, feeds) for model in models] for _ in range(TURNS)]).min(axis=0)
        for model in models:
            model.close()
        cells = (f"{_times(free)}x", f"{_times(limited)}x", *(f"{t:.3f}" for t in times), f"{times[1] / times[0]:.2f}")
        return f"| {path.stem} | {' | '.join(cells)} |"


def _times(result: CompileResult) -> str:
    return f"{result.constants.stored_bytes / result.constants.model_bytes:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--target", help="default: native")
    parser.add_argument("--limit", default="1.0x", help="of --max-params")
    arguments = parser.parse_args()
    print(f"| network | without a limit | `--max-params {arguments.limit}` | ms | ms within it | times |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for path in arguments.models:
        print(row(path, arguments.target, arguments.limit), flush=True)


if __name__ == "__main__":
    main()
