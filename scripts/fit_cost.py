"""Fits the cost parameters of this machine to measured candidates, and prints them as the section `cost` of a target.

    python scripts/fit_cost.py --json FILE [--points 100] [--tasks MODEL:TASK[@bf16] ...] [--held-out MODEL:TASK ...]
                               [--parameters NAME ...] [--rounds 2] [--models DIR] [--target T] [--seed N]

What is measured are random points over all Sketches of each Task, on one thread, as scripts/compare_space.py does it;
FILE keeps it, and a FILE of that script will do. Parameters (modelc/target/cost.py) are changed one after the other by
factors; a change stays if the mean of Spearman's rank correlations of estimated and measured times, over all points of
a Task and over the quarter that is measured best, rises on the Tasks that are fitted to by more than a trifle: what
data do not decide stays as it is. Of the Tasks that are held out (every third, if none is named) nothing is used but
the last column. Threads, and how much estimates are doubted, are not fitted: one thread says nothing of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import yaml
from compare_space import TASKS, measured
from construction_tables import prediction
from kept_rows import Kept, Row, parser
from space_tasks import Found, named

from modelc.measure import Measurer
from modelc.target import CostParameters, Target, load_target
from modelc.tune.search.population import Space

FACTORS = (0.5, 0.8, 1.25, 2.0)
SURE = 0.002  # of a mean rank correlation, that a change has to be worth
UNFITTED = ("fork_join_seconds", "latencies", "page_bytes", "pages")
FITTED = tuple(f.name for f in fields(CostParameters) if f.name not in UNFITTED and not f.name.endswith("_doubt_share"))


@dataclass
class Sample:
    """The measured points of one Task, and what was found of it under parameters that matter to it."""

    found: Found
    row: Row
    target: Target
    matter: tuple[str, ...] = FITTED  # the parameters on which its estimates may depend
    known: dict[tuple[object, ...], tuple[float, float]] = field(default_factory=dict)

    def estimates(self, cost: CostParameters) -> Mapping[int, float]:
        """Estimated seconds by the number of the point; those that are points of its Sketches under `cost` too: rules
        put sizes of their own among a knob's values."""
        space = Space(self.found.task, replace(self.target, cost=cost), self.found.policy, cores=1)
        result = {}
        for number, sketch in enumerate(space.sketches):
            places, points = [], []
            for place, one in enumerate(self.row["points"]):
                if one["number"] == number and all(one["knobs"].get(k.name) in k.values for k in sketch.knobs):
                    places.append(place)
                    points.append(sketch.point(one["knobs"]))
            if places:
                rows = space.rows(number, np.array(points, np.int64).reshape(len(places), -1))
                result |= dict(zip(places, space.estimate(rows).tolist(), strict=True))
        return result

    def ranks(self, cost: CostParameters) -> tuple[float, float]:
        """Rank correlations of estimates and measurements: of all points, and of the quarter measured best (that of all
        where its estimates are all alike)."""
        key = tuple(getattr(cost, name) for name in self.matter)
        if key not in self.known:
            estimates = self.estimates(cost)
            points = [{**self.row["points"][place], "predicted": p} for place, p in sorted(estimates.items())]
            said = prediction({"points": points})
            whole = 0.0 if np.isnan(said["rank"]) else said["rank"]
            best = said["rank of best quarter"]
            self.known[key] = whole, whole if np.isnan(best) else best
        return self.known[key]


def depends(sample: Sample, names: Sequence[str], cost: CostParameters) -> tuple[str, ...]:
    """Which of the parameters `names` change an estimate of the Task's points."""
    before = sample.estimates(cost)
    return tuple(name for name in names if sample.estimates(changed(cost, name, 0.5)) != before)


def changed(cost: CostParameters, name: str, factor: float) -> CostParameters:
    """`cost` with one parameter multiplied; shares stay below 1. Three digits: more would be noise."""
    value = float(f"{getattr(cost, name) * factor:.3g}")
    return replace(cost, **{name: min(value, 0.95) if name.endswith("_share") else value})


def score(samples: Sequence[Sample], cost: CostParameters) -> float:
    """The mean of both rank correlations over Tasks."""
    return float(np.mean([sample.ranks(cost) for sample in samples])) if samples else float("nan")


def fitted(samples: Sequence[Sample], cost: CostParameters, names: Sequence[str], rounds: int) -> CostParameters:
    """Parameters with which estimates rank the samples' points better: one is changed at a time."""
    for sample in samples:
        sample.matter, sample.known = depends(sample, names, cost), {}
    best = score(samples, cost)
    for _ in range(rounds):
        before = cost
        for name in names:
            if not any(name in sample.matter for sample in samples):
                continue
            tried = {score(samples, one): one for one in (changed(cost, name, f) for f in FACTORS)}
            top = max(tried)
            if top > best + SURE:
                cost, best = tried[top], top
                print(f"{name} {getattr(cost, name)}: {best:.4f}", flush=True)
        if cost == before:
            break
    return cost


def report(
    samples: Sequence[Sample], held_out: Sequence[Sample], old: CostParameters, new: CostParameters
) -> list[str]:
    """A line for each Task, and the YAML."""
    name = {s.found.name: TASKS.get(s.found.name, "") for s in (*samples, *held_out)}
    titles = {n: f"{n} ({kind})" if kind else n for n, kind in name.items()}
    wide = max(map(len, titles.values()))
    lines = [f"{'rank correlation, before -> after':{wide}}  points           all  in best quarter"]
    for group in (samples, held_out):
        for one in group:
            (was, was_best), (is_, is_best) = one.ranks(old), one.ranks(new)
            lines.append(
                f"{titles[one.found.name]:{wide}} {len(one.row['points']):7} {was:5.2f} -> {is_:5.2f} "
                f"  {was_best:5.2f} -> {is_best:5.2f}{'   held out' if group is held_out else ''}"
            )
    lines.append(f"mean, fitted to: {score(samples, old):.3f} -> {score(samples, new):.3f}")
    lines.append(f"mean, held out: {score(held_out, old):.3f} -> {score(held_out, new):.3f}")
    return [*lines, "", yaml.safe_dump({"cost": new.overridden()}, sort_keys=False).rstrip()]


def main() -> None:
    assert __doc__
    arguments = parser(__doc__, "points", 100, TASKS)
    arguments.add_argument("--held-out", nargs="+", metavar="MODEL:TASK", help="of these tasks: every third")
    arguments.add_argument("--parameters", nargs="+", choices=FITTED, default=list(FITTED), metavar="NAME")
    arguments.add_argument("--rounds", type=int, default=2, help="how often all parameters are gone through")
    options = arguments.parse_args()
    apart = options.held_out or options.tasks[2::3]
    if set(options.tasks) <= set(apart):
        raise SystemExit("every task is held out; expected one at least to fit to")
    target = replace(load_target(options.target), cores=1)
    kept = Kept.of(options, "points", target)
    samples = {}
    with tempfile.TemporaryDirectory(prefix="modelc-fit-") as folder, Measurer(target) as measurer:
        for name in options.tasks:
            found = named(name, options.models, Path(folder), target)
            row = kept.find(name)
            if row is None:
                row = measured(found, target, measurer, options)
                kept.add(row)
                print(f"{name}: {len(row['points'])} points are measured", flush=True)
            samples[name] = Sample(found, row, found.among(target, options.constants))
    training = [one for name, one in samples.items() if name not in apart]
    held_out = [one for name, one in samples.items() if name in apart]
    new = fitted(training, target.cost, options.parameters, options.rounds)
    print("\n".join(["", *report(training, held_out, target.cost, new)]))


if __name__ == "__main__":
    main()
