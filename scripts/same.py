"""Whether modelc makes the same as before a change.

    python scripts/same.py record|check FILE [--targets T ...] [--networks NAME ...] [--operators PATTERN]
                                           [--measured FILE ...] [--part K/N]

`record` compiles networks of scripts/make_networks.py and the smallest of ONNX's own node tests of each operator, for
each target, and writes the sha256 of every file of the packages into FILE, or the sentence of a refusal; and the price
of every point that has been measured (targets/cost/*.jsonl). `check` does so again and prints where anything differs:
files and sentences have to be equal, prices to 1e-12. The exit code is 1 where anything does, or where `check` looked
at nothing. What is recorded with one set of options is checked with the same, or with a --part of it. Timings of this
machine (`native`) are recorded as well, and `check` compiles with those: a second probe would find others.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import paths
from conformance import operator_name, steering
from conformance import part as part_of
from cost import log_estimates
from forked import Case, Limits, run_cases
from measured_schedules import read_measurements
from networks import NETWORKS, write
from onnx_cases import node_tests

import modelc
from modelc.cli.terminal import err, out
from modelc.target import Target, load_target, parse_target

TARGETS = ("native", "raspberry-pi-5", "riscv64-v", "wasm32-simd")
SMALL = ("resnet18", "mobilenet-v2", "bert-tiny", "dcgan")
MEASURED = tuple(sorted((paths.ROOT / "targets/cost").glob("*.jsonl")))
LIMITS = Limits(seconds=600.0, bytes=8 << 30)
NEAR = 1e-12  # relative, of prices
MOST_SHOWN = 40


def operators(pattern: str) -> Mapping[str, Any]:
    """The smallest node test of each operator whose name matches, by that name."""
    smallest: dict[str, Any] = {}
    for case in sorted(node_tests(), key=lambda c: (c.model.ByteSize(), c.name)):
        if "_expanded" not in case.name and fnmatch.fnmatch(operator_name(case), pattern):
            smallest.setdefault(operator_name(case), case)
    return dict(sorted(smallest.items()))


def checksums(model: onnx.ModelProto, constants: Mapping[str, np.ndarray], target: Target, answer: Path) -> None:
    """Writes the checksums of a package's files to `answer`. Raises ModelcError where the model is refused."""
    with tempfile.TemporaryDirectory() as folder:
        write(model, path := Path(folder) / "model.onnx")
        package = Path(folder) / "model.modelc"
        modelc.compile(path, target, package, constants=constants, verify=False, database=False, threads=1)
        sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(package.iterdir())}
    answer.write_text(json.dumps(sums))


def of_node(case: Any, target: Target, answer: Path) -> None:
    names = [value.name for value in case.model.graph.input]
    feeds = dict(zip(names, case.data_sets[0][0], strict=True))
    checksums(case.model, steering(case.model, feeds), target, answer)


def of_network(name: str, target: Target, answer: Path) -> None:
    checksums(NETWORKS[name](), {}, target, answer)


def cases(arguments: argparse.Namespace, native: Target, folder: Path) -> Iterator[Case]:
    """What to compile; `about` is the file in `folder` where the checksums will be."""
    answers = (folder / f"{number}.json" for number in count())
    for of in arguments.targets:
        target = native if of == "native" else load_target(of)
        for name in arguments.networks:
            yield Case(f"{of} {name}", partial(of_network, name, target, answer := next(answers)), answer)
        for name, case in operators(arguments.operators).items():
            yield Case(f"{of} {name}", partial(of_node, case, target, answer := next(answers)), answer)


def packages(arguments: argparse.Namespace, native: Target) -> dict[str, Any]:
    """What becomes of each model for each target: checksums by file, or a sentence."""
    kth, of = arguments.part
    made: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        chosen = [case for number, case in enumerate(cases(arguments, native, Path(folder))) if number % of == kth - 1]
        for case, outcome in run_cases(chosen, LIMITS, arguments.jobs):
            done = outcome.kind == "done"
            said = re.sub(r"\S*/model\.onnx", "model.onnx", outcome.said)  # in a folder of another name each time
            made[case.name] = json.loads(case.about.read_text()) if done else f"{outcome.kind}: {said}"
            err.print(f"{len(made)} of {len(chosen)}: {case.name}", markup=False, highlight=False)
    return made


def prices(files: Iterable[Path]) -> dict[str, list[float | None]]:
    """The logarithms of the prices of measured points, by file and Task; None for points that no Sketch has."""
    priced: dict[str, list[float | None]] = {}
    for path in files:
        measurements = read_measurements(path)
        for number, values in enumerate(log_estimates(measurements, measurements.target.cost)):
            priced[f"{path.name} {number}"] = [None if np.isnan(x) else float(x) for x in values]
    return priced


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """A line for each package and Task that differs."""
    for name, files in now["packages"].items():
        earlier = before["packages"].get(name)
        if earlier is None:
            yield f"{name}: was not recorded"
        elif isinstance(files, str) or isinstance(earlier, str):
            if files != earlier:
                yield f"{name}: {files if isinstance(files, str) else 'a package'}; before: {earlier}"
        elif changed := [file for file in sorted({*files, *earlier}) if files.get(file) != earlier.get(file)]:
            yield f"{name}: {', '.join(changed)}"
    for name, values in now["prices"].items():
        earlier = before["prices"].get(name, [])
        if len(values) != len(earlier):
            yield f"{name}: {len(values)} points are priced; before: {len(earlier)}"
            continue
        apart = [k for k, (a, b) in enumerate(zip(values, earlier, strict=True)) if not _near(a, b)]
        if apart:
            yield f"{name}: the prices of {len(apart)} of {len(values)} points, the first of point {apart[0]}"


def _near(one: float | None, other: float | None) -> bool:
    """Logarithms, so that an absolute difference is a relative one of prices."""
    return one == other or (one is not None and other is not None and abs(one - other) <= NEAR)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("record", "check"))
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--targets", nargs="+", default=TARGETS, metavar="T")
    parser.add_argument("--networks", nargs="*", default=SMALL, choices=tuple(NETWORKS), metavar="NAME")
    parser.add_argument("--operators", default="*", metavar="PATTERN", help="of operators' names (default: all)")
    parser.add_argument("--measured", nargs="*", type=Path, default=MEASURED, metavar="FILE", help="of points to price")
    parser.add_argument("--part", type=part_of, default=(1, 1), metavar="K/N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes at a time (default: 2)")
    arguments = parser.parse_args()
    before = json.loads(arguments.file.read_text()) if arguments.verb == "check" else None
    native = load_target("native") if before is None else parse_target(before["native"], str(arguments.file))
    now = {"packages": packages(arguments, native), "prices": prices(arguments.measured), "native": native.to_yaml()}
    if before is None:
        arguments.file.write_text(json.dumps(now, indent=1) + "\n")
        out.print(f"{len(now['packages'])} packages and the prices of {len(now['prices'])} Tasks")
        return 0
    lines = [*differences(before, now)]
    for line in lines[:MOST_SHOWN]:
        out.print(line, markup=False, highlight=False, soft_wrap=True)
    out.print(f"{len(now['packages'])} packages and {len(now['prices'])} Tasks: {len(lines)} differ")
    return 1 if lines or not now["packages"] else 0


if __name__ == "__main__":
    sys.exit(main())
