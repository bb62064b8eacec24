"""What parameters take beside their models' files, and what it costs: compiles each model as it is by default (or
within `--limit`), and as fast as can be with all sums of weights stored; times both packages by turns, and their
opening. A model of tests/models.yaml whose constants are given there has the shapes given there too.

    python scripts/params_table.py [--target NAME] [--limit 1.0x] [--threads N] models/resnet50-arc.onnx ..."""

from __future__ import annotations

import argparse
import tempfile
import time
from math import exp, log
from pathlib import Path
from statistics import median

import paths  # noqa: F401
from trained_models import catalogue, shapes_of

import modelc
from modelc.errors import ModelcError
from modelc.runtime import load

OPENINGS, SECONDS = 5, 2.0


def opening_ms(package: Path, threads: int) -> float:
    """The median milliseconds of opening a package and closing it."""
    times = []
    for _ in range(OPENINGS):
        start = time.perf_counter()
        load(package, threads=threads).close()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)


def row(path: Path, target: str | None, limit: str, threads: int) -> tuple[str, float, float]:
    """A line of the table, parameters beside the file, and the time beside the fastest."""
    constants = catalogue().get(path.stem, {}).get("constant")
    fixed = {"shapes": shapes_of(path.stem)[0], "constants": constants} if constants else {}
    with tempfile.TemporaryDirectory() as name:
        small, fastest = Path(name, "small.modelc"), Path(name, "fastest.modelc")
        made = modelc.compile(path, target, small, verify=False, max_params=limit, **fixed)
        stored = modelc.compile(path, target, fastest, verify=False, params="stored", max_params="100x", **fixed)
        times = modelc.bench(small, against=[str(fastest)], seconds=SECONDS, threads=threads)
        slower = 1 / times["ratio"][str(fastest)]
        opened = [f"{opening_ms(package, threads):.0f}" for package in (fastest, small)]
    shares = [result.params_bytes / made.file_bytes for result in (stored, made)]
    cells = (
        f"{made.file_bytes / 1e6:.2f}",
        *(f"{share:.2f}" for share in shares),
        f"{made.made_bytes / 1e6:.2f}",
        *opened,
        f"{slower:.2f}",
    )
    return f"| {path.stem} | {' | '.join(cells)} |", shares[1], slower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--target", help="default: native")
    parser.add_argument("--limit", default="", help="of --max-params; default: that of compile")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    print("| network | file, MB | all stored | parameters | made, MB | opening stored, ms | opening, ms | time |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    figures = []
    for path in arguments.models:
        try:
            line, *of_model = row(path, arguments.target, arguments.limit, arguments.threads)
        except ModelcError as error:
            print(f"| {path.stem} | {error} |", flush=True)
            continue
        figures.append(of_model)
        print(line, flush=True)
    if figures:
        means = [exp(sum(map(log, column)) / len(figures)) for column in zip(*figures, strict=True)]
        print(f"geometric mean: parameters {means[0]:.3f} times the file, time {means[1]:.3f} of all stored")


if __name__ == "__main__":
    main()
