"""The finals of tuning: the fastest Candidates of every Task, timed where they will run.

A kernel that is measured by itself finds other things in the caches than its neighbours leave there, and the best of
hundreds of measurements is partly the luckiest of them. So the fastest few of each Task go into packages of their
network, the k-th of all Tasks into the k-th, and every step of these is timed by turns with the same one of the package
without them. There are two rounds: in the heats the best of several is found, whose times there are partly luck again;
so in the final the best two are timed anew, for longer. What is likely faster there is taken: each Task errs by itself,
so that many small gains are a sure one together, and whether they are is timed at last, of whole packages.
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

from modelc.compile.pipeline import Run
from modelc.ir.candidate import Candidate
from modelc.ir.sizes import Sizes
from modelc.measure.measurement import Measurement
from modelc.package import Package, read_package, write_package
from modelc.package.read import at_sizes
from modelc.package.spec import PackageSpec
from modelc.scratch import TemporaryFolder
from modelc.verify.bench import geometric_mean, turns
from modelc.verify.check import drawn, drawn_for_variants
from modelc.verify.engine import Engine

ENTRANTS, FINALISTS = 6, 2  # of each Task, in the heats and in the final
LEVEL = 1.02  # times the untuned Candidate's time by itself: what is slower than that is left out
LIKELY = 1.0  # standard errors: what goes on may be slower by as many in the heats, what wins is faster in the final
LEAST_SECONDS, MOST_SECONDS = 0.01, 1.0  # of a slice of one package
MOST_BYTES = 2 << 30  # of the parameters of all packages together

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Round:
    """How long packages are timed: in so many slices by turns, and how many of these in the same processes. A slice is
    one run, or some, where a run is short: a neighbour may take half of a shared processor for a second."""

    slices: int
    fresh: int


HEATS, FINAL = Round(32, 8), Round(144, 24)


def entrants(measured: Iterable[tuple[Candidate, Measurement]], untuned: Candidate) -> list[Candidate]:
    """The fastest of what was measured by turns with the `untuned` Candidate, the fastest first, without that: those
    that may be faster than it."""
    latest: dict[str, tuple[Candidate, float]] = {}
    for candidate, measurement in measured:
        if measurement.ok:
            latest[candidate.key] = candidate, measurement.relative
    _, own = latest.pop(untuned.key, (untuned, math.inf))
    fastest = sorted(latest.values(), key=lambda pair: pair[1])
    return [candidate for candidate, relative in fastest[:ENTRANTS] if relative <= LEVEL * own]


def packages_of(parameter_bytes: int) -> int:
    """How many packages there may be beside the untuned one."""
    return max(1, min(ENTRANTS, MOST_BYTES // max(1, parameter_bytes) - 1))


def step_times(
    stage: Round,
    run: Run,
    specs: Sequence[PackageSpec],
    task_of: Mapping[str, str],
    threads: int,
    say: Callable[[str], None],
    runs: Sequence[Sizes] = (),
) -> dict[str, Floats]:
    """Milliseconds that the steps of each Task take in a run of each of these packages of one model, by the Task's hash
    [packages x slices]: all variants together, or of packages of any size the geometric mean over `runs`. `task_of`
    gives the Task that a step is of by its symbol. Raises VerificationError where a package crashes."""
    rows: list[list[Mapping[str, float]]] = [[] for _ in specs]
    with TemporaryFolder("finals") as folder, ExitStack() as stack:
        engines = []
        for number, spec in enumerate(specs):
            say(f"package {number + 1} of {len(specs)}")
            package = write_package(spec, Path(folder) / f"{number}.modelc")
            engines.append(stack.enter_context(Engine("modelc", package.path, threads)))
            if number == 0:
                feeds = _feeds(run, read_package(package.path), len(spec.variants), runs)
        seconds = list[float]()
        for _, feed in feeds:
            for engine in engines:
                engine.run(feed)
            once = 1e-3 * min(engines[0].time(LEAST_SECONDS))
            seconds.append(min(max(once, LEAST_SECONDS), MOST_SECONDS))
        for _ in turns(engines, sum(seconds), stage.slices, say, stage.fresh):
            for row, engine, spec in zip(rows, engines, specs, strict=True):
                each = [
                    _by_task(engine, spec, task_of, variant, feed if len(feeds) > 1 else None, share)
                    for (variant, feed), share in zip(feeds, seconds, strict=True)
                ]
                row.append(_together(each, geometric_mean if runs else sum))
    return {key: np.array([[milliseconds.get(key, 0.0) for milliseconds in row] for row in rows]) for key in rows[0][0]}


Feed = Mapping[str, NDArray[Any]]


def _feeds(run: Run, package: Package, variants: int, runs: Sequence[Sizes]) -> list[tuple[int, Feed]]:
    """Inputs for every variant, or of every size."""
    model, seed = run.model, run.config.verify.seed
    if runs:
        return [(0, next(drawn(at_sizes(package, [sizes]), model, seed))) for sizes in runs]
    feeds: dict[int, Feed] = {}
    for number, feed in drawn_for_variants(package, model, seed, 1, range(variants), lambda number: ()):
        feeds.setdefault(number, feed)
    return [*feeds.items()]


def _by_task(
    engine: Engine, spec: PackageSpec, task_of: Mapping[str, str], variant: int, feed: Feed | None, seconds: float
) -> dict[str, float]:
    """Milliseconds that the steps of each Task take in a run of a variant; on `feed`, where the last run was on
    another."""
    if feed is not None:
        engine.run(feed)
    milliseconds: dict[str, float] = defaultdict(float)
    for step, ms in zip(spec.variants[variant].steps, engine.steps(seconds, variant), strict=True):
        milliseconds[task_of[step.symbol]] += ms
    return milliseconds


def _together(each: Sequence[Mapping[str, float]], of: Callable[[list[float]], float]) -> dict[str, float]:
    """What each Task takes in all variants, or sizes."""
    return {key: of([one.get(key, 0.0) for one in each]) for key in dict.fromkeys(key for one in each for key in one)}


def gain_of(times: Mapping[str, Floats], won: Mapping[str, int]) -> float:
    """The time of all steps with the untuned Candidates over that with those that `won`: row numbers by the Task's
    hash."""
    untuned = sum(float(np.median(rows[0])) for rows in times.values())
    return untuned / sum(float(np.median(rows[won.get(key, 0)])) for key, rows in times.items()) if untuned else 1.0


def finalists(times: Floats, fresh: int) -> list[int]:
    """The rows of the heats that go on, the fastest first: not 0, the untuned Candidate, nor what is likely slower.
    Columns are slices by turns, so many of each in the same processes."""
    if not times[0].all():
        return []
    middle, error = _beside_the_first(times, fresh)
    fastest = [int(k) for k in np.argsort(middle) if k]
    return [k for k in fastest[:FINALISTS] if middle[k] <= 1 + LIKELY * error[k]]


def winner(times: Floats, fresh: int) -> int:
    """The number of the row that is likely the fastest, 0 where no other is likely faster than that; columns as for
    finalists()."""
    if not times[0].all():
        return 0
    middle, error = _beside_the_first(times, fresh)
    best = int(np.argmin(middle))
    return best if middle[best] < 1 - LIKELY * error[best] else 0


def _beside_the_first(times: Floats, fresh: int) -> tuple[Floats, Floats]:
    """(medians of the ratios to the first row, their standard errors), one for each row. What slices of the same
    processes have in common is no less uncertain for being timed often: the error is at least that of as many numbers
    as there are processes."""
    ratios = times / times[0]
    middle = np.median(ratios, axis=1)
    apart = np.median(np.abs(ratios - middle[:, None]), axis=1)
    error = 1.4826 * 1.2533 * apart / math.sqrt(ratios.shape[1])  # of normal errors, as in runner_run.c
    each = np.array([np.median(ratios[:, k : k + fresh], axis=1) for k in range(0, ratios.shape[1], fresh)])
    if len(each) > 1:
        error = np.maximum(error, each.std(axis=0, ddof=1) / math.sqrt(len(each)))
    return middle, error
