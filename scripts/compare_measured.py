"""How near kernels that are measured by themselves, as `modelc tune` measures them, come to what they take in their
network.

    python scripts/compare_measured.py NAME... [--dir models] [--precision f32|bf16] [--threads N] [--rounds 5]
                                       [--target NAME|FILE.yaml]

Each network (NAME.onnx in --dir) is compiled, untuned. In every round its steps are timed in whole runs; then each Task
that reads constants is measured by itself, with the Candidate that it has there and constants as cold as there. Printed
are the sum of the latter over the sum of the former, the median ratio of a Task, and the spread: the standard deviation
of the logarithms of the ratios. What all Tasks share does no harm, for measurements are compared within a Task; a large
spread says that something is measured which the network does not have, or is not which it has. Then the Tasks that take
most of the time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import paths  # noqa: F401
from bench_ops import count
from kept_rows import LONGER, MODELS
from rich.table import Table
from space_tasks import model_file, tasks_of
from trained_models import shapes_of

import modelc
from modelc.cli.terminal import err, out
from modelc.compile.choices import read_choices_file
from modelc.compile.config import load_config
from modelc.measure import Measurer, Setting
from modelc.package import read_package
from modelc.target import Target, load_target
from modelc.verify.check import given_or_drawn
from modelc.verify.engine import Engine

SHOWN = 8  # Tasks of each network
LEAST_SECONDS = 0.2  # of whole runs in a round


@dataclass(frozen=True)
class Compared:
    """A Task: microseconds in the network (one of its places there) and by itself."""

    name: str
    network: float
    alone: float

    @property
    def ratio(self) -> float:
        return self.alone / self.network


def in_network(package: Path, threads: int, rounds: int) -> dict[str, float]:
    """Microseconds of each Task in whole runs, by its hash, of one of its places: the median of the rounds."""
    read = read_package(package)
    steps = read.manifest.variants[0].steps
    places: dict[str, set[str]] = defaultdict(set)
    for step in steps:
        places[step.task].add(step.name.split(".")[0])
    found: dict[str, list[float]] = defaultdict(list)
    with Engine("modelc", str(package), threads) as engine:
        feed = given_or_drawn(read, None, None)
        for _ in range(rounds):
            engine.run(feed)
            own: dict[str, float] = defaultdict(float)
            for step, ms in zip(steps, engine.steps(LEAST_SECONDS, 0), strict=True):
                own[step.task] += 1e3 * ms
            for key, us in own.items():
                found[key].append(us / len(places[key]))
    return {key: float(np.median(one)) for key, one in found.items()}


def compared(name: str, target: Target, arguments: argparse.Namespace, folder: Path) -> list[Compared]:
    """The Tasks of one network that read constants, those that take longest first."""
    model, package = model_file(name, arguments.dir, folder), folder / f"{name}.modelc"
    config = load_config().allowing(precision=arguments.precision)
    shapes = shapes_of(name)
    err.print(f"{name}: compiling", markup=False)
    modelc.compile(model, target=target, output=package, shapes=shapes, config=config, database=False)
    candidates = read_choices_file(package / "choices.json").tasks
    network = in_network(package, arguments.threads, arguments.rounds)
    result = []
    setting = Setting(arguments.threads, config.flush_denormals)
    with Measurer(target, setting, effort=LONGER) as measurer:
        for one in tasks_of(model, arguments.precision, target):
            if one.task.hash not in network or not one.task.constants:
                continue
            subject = measurer.subject(one.task, one.constant_bytes)
            (found,) = measurer.measure(subject, [candidates[one.task.hash]])
            if not found.ok:
                raise SystemExit(f"{one.name}: {found.outcome}: {found.message}")
            result.append(Compared(one.name.partition(":")[2], network[one.task.hash], 1e6 * found.seconds))
    return sorted(result, key=lambda one: -one.network)


def summary(name: str, found: list[Compared]) -> str:
    ratios = np.array([one.ratio for one in found])
    total = sum(one.alone for one in found) / sum(one.network for one in found)
    return (
        f"{name}: {len(found)} tasks by themselves take {total:.3f} of their time in the network, the median one "
        f"{np.median(ratios):.3f}; spread {np.log(ratios).std():.3f}"
    )


def main() -> int:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME")
    parser.add_argument("--dir", type=Path, default=MODELS, help="where the models are")
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--threads", type=count, default=1)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--target", default="native")
    arguments = parser.parse_args()
    target = load_target(arguments.target)
    for name in arguments.names:
        with tempfile.TemporaryDirectory(prefix="modelc-compare-") as folder:
            found = compared(name, target, arguments, Path(folder))
        out.print(summary(name, found), markup=False)
        table = Table("task", "us in the network", "us by itself", "ratio", box=None)
        for one in found[:SHOWN]:
            table.add_row(one.name, f"{one.network:.1f}", f"{one.alone:.1f}", f"{one.ratio:.2f}")
        out.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
