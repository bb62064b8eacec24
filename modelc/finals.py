"""The finals of tuning: the fastest Candidates of every Task, timed where they will run.

A kernel that is measured by itself finds other things in the caches than its neighbours leave there, and the best of
hundreds of measurements is partly the luckiest of them. So the fastest few of each Task go into packages of their
network, the k-th of all Tasks into the k-th, and every step of these is timed by turns with the same one of the package
without them. What is faster there is taken.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.database.whole import LEAST_GAIN
from modelc.ir.candidate import Candidate
from modelc.measure.measurement import SURE, Measurement
from modelc.package import Package, read_package, write_package
from modelc.package.spec import PackageSpec
from modelc.pipeline import Run
from modelc.scratch import TemporaryFolder
from modelc.verify.bench import turns
from modelc.verify.check import drawn_for_variants
from modelc.verify.engine import Engine

FINALISTS = 6  # of each Task
LEVEL = 1.02  # times the untuned Candidate's time by itself: what is slower than that is left out
SECONDS = 2.0  # of runs of each package
SLICES = 12
MOST_BYTES = 2 << 30  # of the parameters of all packages together

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Finals:
    """What came of them: `won` says by a Task's hash in which package its Candidate is surely faster than the untuned
    one; `gain` is the steps' time without these over that with them."""

    won: Mapping[str, int]
    gain: float


def finalists(measured: Iterable[tuple[Candidate, Measurement]], untuned: Candidate) -> list[Candidate]:
    """The fastest of what was measured by turns with the `untuned` Candidate, the fastest first, without that: those
    that may be faster than it."""
    known: dict[str, tuple[Candidate, float]] = {}
    for candidate, measurement in measured:
        if measurement.ok:
            known[candidate.key] = candidate, measurement.relative
    _, own = known.pop(untuned.key, (untuned, math.inf))
    fastest = sorted(known.values(), key=lambda one: one[1])
    return [candidate for candidate, relative in fastest[:FINALISTS] if relative <= LEVEL * own]


def packages_of(parameter_bytes: int) -> int:
    """How many packages there may be beside the untuned one."""
    return max(1, min(FINALISTS, MOST_BYTES // max(1, parameter_bytes) - 1))


def finals(
    run: Run,
    specs: Sequence[PackageSpec],
    task_of: Mapping[str, str],
    entered: Mapping[str, int],
    threads: int,
    say: Callable[[str], None],
) -> Finals:
    """Times the steps of packages of one model, the first of which is the untuned one. `entered` says by a Task's hash
    in how many packages after the first it has another Candidate; `task_of` gives the Task that a step is of by its
    symbol. Raises VerificationError where a package crashes."""
    rows: list[list[Mapping[str, float]]] = [[] for _ in specs]
    with TemporaryFolder("finals") as folder:
        packages = []
        for number, spec in enumerate(specs):
            say(f"package {number + 1} of {len(specs)}")
            packages.append(write_package(spec, Path(folder) / f"{number}.modelc"))
        feeds = _feeds(run, packages[0], len(specs[0].variants))
        each = SECONDS / SLICES / len(feeds)
        with ExitStack() as stack:
            engines = [stack.enter_context(Engine("modelc", one.path, threads)) for one in packages]
            for engine in engines:
                engine.run(feeds[0])
            for _ in turns(engines, each * len(feeds), SLICES, say):
                for row, engine, spec in zip(rows, engines, specs, strict=True):
                    row.append(_by_task(engine, spec, task_of, feeds, each))
    times = {key: np.array([[one.get(key, 0.0) for one in row] for row in rows]) for key in rows[0][0]}
    times = {key: one[: 1 + entered.get(key, 0)] for key, one in times.items()}
    won = {key: winner(one) for key, one in times.items()}
    return Finals({key: k for key, k in won.items() if k}, gain_of(times, won))


def _feeds(run: Run, package: Package, variants: int) -> dict[int, Mapping[str, NDArray[Any]]]:
    """Inputs for every variant."""
    found: dict[int, Mapping[str, NDArray[Any]]] = {}
    for number, feed in drawn_for_variants(
        read_package(package.path), run.model, run.config.verify.seed, 1, range(variants), lambda number: ()
    ):
        found.setdefault(number, feed)
    return found


def _by_task(
    engine: Engine,
    spec: PackageSpec,
    task_of: Mapping[str, str],
    feeds: Mapping[int, Mapping[str, NDArray[Any]]],
    seconds: float,
) -> dict[str, float]:
    """Milliseconds that the steps of each Task take in a run, all variants together."""
    found: dict[str, float] = defaultdict(float)
    for variant, feed in feeds.items():
        engine.run(feed)
        for step, ms in zip(spec.variants[variant].steps, engine.steps(seconds, variant), strict=True):
            found[task_of[step.symbol]] += ms
    return found


def gain_of(times: Mapping[str, Floats], won: Mapping[str, int]) -> float:
    """The time of all steps with the untuned Candidates over that with those that `won`."""
    untuned = sum(float(np.median(one[0])) for one in times.values())
    return untuned / sum(float(np.median(one[won[key]])) for key, one in times.items()) if untuned else 1.0


def winner(times: Floats) -> int:
    """The number of the row that is surely the fastest, 0 where no other is surely faster than that; columns are taken
    by turns."""
    if not times[0].all():
        return 0
    ratios = times / times[0]
    middle = np.median(ratios, axis=1)
    best = int(np.argmin(middle))
    apart = np.median(np.abs(ratios[best] - middle[best]))
    error = 1.4826 * 1.2533 * apart / math.sqrt(ratios.shape[1])  # of normal errors, as in runner_run.c
    return best if middle[best] < 1 - max(LEAST_GAIN, SURE * error) else 0
