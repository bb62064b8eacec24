"""Measures schedules for `targets/cost/`, and says how well they are priced.

    python scripts/cost.py collect FILE.jsonl [--networks NAME ...] [--minutes 30] [--models DIR] [--machine NAME]
    python scripts/cost.py check [FILE.jsonl ...] [--record]
    python scripts/cost.py fit FILE.jsonl [--rounds 1] [--held-out NETWORK ...]
    python scripts/cost.py forest FILE.jsonl [--rounds 60] [--depth 4] [--folds 7] [--seed 0]

`collect` measures points of every Sketch of the Tasks of networks (NAME.onnx in DIR) on this machine: on one core, by
turns with one of them, constants as cold as among all of the network's; the points that construction takes, where
Sketches start, and random ones. FILE gets a line for each Task as soon as it is measured. With --again the Tasks that
it has are measured in another round, those of fewest rounds first: what is not slow, and the points that construction
takes now.

`check` prints, by kind, the regret of the price: the time of what is estimated least over the least measured. --record
writes it to FILE.regret.json, which a test holds the price to.

`fit` fits coefficients of the price to measurements, from their defaults on, and prints what changes as YAML: the
section `cost` of a target or of a family. Networks that are held out say what the fit is worth where it has not looked.

`forest` corrects the price by trees (the learned cost of `tune`) that have seen other networks alone, and prints the
regret of both, and the trees' size.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import paths
import yaml
from kept_rows import MODELS
from measured_schedules import (
    KEY_DIGITS,
    MeasuredPoint,
    MeasuredTask,
    Measurements,
    by_kind,
    geometric_mean,
    priced,
    read_measurements,
)
from rich.table import Table
from space_tasks import Found, model_file, tasks_of

from modelc import __version__
from modelc.cli.terminal import err, out
from modelc.measure import Measurer
from modelc.policy import Policy
from modelc.space.cost.terms import features
from modelc.target import CostParameters, Target, load_target
from modelc.tune.search.learned import Example, knobs_of
from modelc.tune.search.learned import fit as fit_trees
from modelc.tune.search.population import Space

FOLDER = paths.ROOT / "targets/cost"
NETWORKS = (
    *("yunet", "resnet18", "mobilenet-v2", "bert-tiny", "minilm", "minilm-int8", "nsnet2", "ppocr-rec", "silero-vad"),
    *("dcgan", "opennsfw", "resnet3d-18", "vit-b16", "ppocr-det"),
)
LONGEST = 4  # Tasks of each network that are estimated to take most, before those of kinds that are seldom
OF_A_KIND = 10  # Tasks of each kind, until which every one is taken
CONSTRUCTED, RANDOM = 12, 14  # points of a Task that construction takes, those that it takes first; that are drawn
MOST_SECONDS = 0.06  # of a Task that is measured
SLOW = 1.6  # times the best: what is slower is measured in one round alone


def kind_of(found: Found, target: Target) -> tuple[str, float]:
    """The kind of the Sketch that is estimated best, and its seconds."""
    space = Space(found.task, found.among(target, "cold"), found.policy, cores=1)
    rows = space.constructed(1)[:1]
    return space.individual(rows[0]).sketch.kind, float(space.estimate(rows)[0])


def selected(networks: Sequence[str], models: Path, folder: Path, target: Target) -> list[Found]:
    """Tasks of networks: of each the longest, and of kinds that there are few of all; the longest of every network
    first."""
    seen: set[str] = set()
    count: dict[str, int] = defaultdict(int)
    chosen: list[tuple[int, Found]] = []
    for name in networks:
        err.print(f"{name}: listing", markup=False)
        listed = [f for f in tasks_of(model_file(name, models, folder), "f32", target) if f.task.hash not in seen]
        seen |= {found.task.hash for found in listed}
        kinds = sorted(((*kind_of(f, target), f) for f in listed), key=lambda entry: -entry[1])
        for place, (kind, seconds, found) in enumerate(kinds):
            if seconds > MOST_SECONDS or kind == "opaque":
                continue
            if place < LONGEST or count[kind] < OF_A_KIND:
                count[kind] += 1
                chosen.append((place, found))
    return [found for _, found in sorted(chosen, key=lambda entry: entry[0])]


def rows_of(space: Space, seed: int) -> np.ndarray:
    """What construction takes in each Sketch, where each starts, and random points, each once."""
    starts = [space.rows(n, s.start()[None, :]) for n, s in enumerate(space.sketches)]
    drawn = space.random(RANDOM, np.random.default_rng(seed))
    rows = np.concatenate([space.constructed(1)[:CONSTRUCTED], *starts, drawn])
    _, first = np.unique(rows, axis=0, return_index=True)
    return rows[np.sort(first)]


def measured(found: Found, before: MeasuredTask | None, target: Target, measurer: Measurer, seed: int) -> MeasuredTask:
    """The Task with new points and another round of those that it had `before` and that are not slow. The times of a
    round are made comparable with those before by the best point before, which is measured first."""
    space = Space(found.task, found.among(target, "cold"), found.policy, cores=1)
    individuals = [(int(row[0]), space.individual(row)) for row in rows_of(space, seed)]
    candidates = {i.candidate.key[:KEY_DIGITS]: (n, i.sketch, i.point) for n, i in individuals}
    points = {point.key: point for point in before.points} if before else {}
    fastest = min(points.values(), key=lambda point: point.microseconds, default=None)
    for point in points.values():
        if fastest is not None and point.microseconds <= SLOW * fastest.microseconds:
            sketch = space.sketches[point.sketch]
            candidates.setdefault(point.key, (point.sketch, sketch, sketch.point({**sketch.fixed, **point.knobs})))
    keys = [key for key in candidates if key not in points or points[key].microseconds <= SLOW * fastest.microseconds]
    keys.sort(key=lambda key: fastest is None or key != fastest.key)
    subject = measurer.subject(found.task, found.constant_bytes)
    schedules = [sketch.candidate(point) for _, sketch, point in map(candidates.__getitem__, keys)]
    results = dict(zip(keys, measurer.measure(subject, schedules), strict=True))
    wrong = [m for m in results.values() if m.outcome in ("wrong", "crashed")]
    if wrong:
        raise SystemExit(f"{found.name}: a schedule is a bug of modelc ({wrong[0].outcome}): {wrong[0].message}")
    seconds = statistics.median(m.reference_seconds for m in results.values() if m.ok)
    if fastest is not None:
        seconds = 1e-6 * fastest.microseconds / results[fastest.key].relative
    for key, measurement in results.items():
        if measurement.ok:
            number, sketch, point = candidates[key]
            knobs = {name: value for name, value in sketch.values(point).items() if name not in sketch.fixed}
            rounds = points[key].rounds if key in points else ()
            us = round(1e6 * measurement.relative * seconds, 3)
            points[key] = MeasuredPoint(number, knobs, key, (*rounds, us))
    return MeasuredTask(found.name, found.task, found.constant_bytes, tuple(points.values()))


def ordered(tasks: Sequence[Found], kept: Mapping[str, MeasuredTask]) -> list[Found]:
    """`tasks`, those that were measured in fewest rounds first."""

    def rounds(found: Found) -> int:
        return max((len(point.rounds) for point in kept[found.name].points), default=0) if found.name in kept else 0

    return sorted(tasks, key=rounds)


def collect(options: argparse.Namespace) -> None:
    target = replace(load_target(options.target), cores=1)
    kept: dict[str, MeasuredTask] = {}
    if options.file.exists():
        kept = {task.name: task for task in read_measurements(options.file).tasks}
        target = read_measurements(options.file).target
    until = time.monotonic() + 60 * options.minutes
    date = datetime.date.today().isoformat()
    with tempfile.TemporaryDirectory(prefix="modelc-cost-") as folder, Measurer(target) as measurer:
        for found in ordered(selected(options.networks, options.models, Path(folder), target), kept):
            if time.monotonic() > until:
                break
            if found.policy != Policy():
                raise SystemExit(f"{found.name} is scheduled under a policy of its own, which no measurements say")
            if found.name in kept and not options.again:
                continue
            kept[found.name] = measured(found, kept.get(found.name), target, measurer, options.seed)
            times = kept[found.name].microseconds
            out.print(f"{found.name}: {len(times)} points, best {times.min():.1f} us", markup=False)
            Measurements(options.machine, date, __version__, target, tuple(kept.values())).write(options.file)


def check(options: argparse.Namespace) -> None:
    for file in options.files or sorted(FOLDER.glob("*.jsonl")):
        measurements = read_measurements(file)
        tasks = [priced(task, measurements.target, Policy(), check=options.keys) for task in measurements.tasks]
        regrets = [task.regret(task.estimates(lambda sketch, points: sketch.estimate(points, 1))) for task in tasks]
        table = Table("kind", "tasks", "regret", "worst", box=None)
        for kind, own in sorted(by_kind(tasks, regrets).items()):
            table.add_row(kind, str(len(own)), f"{geometric_mean(own):.3f}", f"{max(own):.2f}")
        table.add_row("all", str(len(tasks)), f"{geometric_mean(regrets):.3f}", f"{max(regrets):.2f}")
        points = sum(len(t.points) for t in tasks)
        stale = sum(len(t.points) for t in measurements.tasks) - points
        out.print(f"{file.name}: {measurements.machine}, {measurements.date}: {points} points, {stale} stale")
        out.print(table)
        if options.record:
            record = {kind: round(geometric_mean(own), 4) for kind, own in sorted(by_kind(tasks, regrets).items())}
            record |= {"all": round(geometric_mean(regrets), 4)}
            file.with_suffix(".regret.json").write_text(json.dumps(record, indent=1) + "\n")
        if options.worst:
            for task, regret in sorted(zip(tasks, regrets, strict=True), key=lambda pair: -pair[1])[: options.worst]:
                out.print(f"{task.name} ({task.kind}): {regret:.3f}", markup=False)


FITTED = (  # coefficients that measurements on one core decide
    *("load_ports", "load_cycles", "broadcast_cycles", "step_cycles", "scheduler_entries", "accumulator_cycles"),
    *("tile_cycles", "copy_cycles", "element_cycles", "slow_cycles", "spread_operations", "integer_add_operations"),
    *("winograd_sums_ratio", "strassen_sums_ratio", "scattered_share", "held_scattered_ratio", "unhinted_ratio"),
    *("streamed_wait_ratio", "beside_share"),
)
STEP, MOST_STEP = 0.15, 1.0  # of the logarithm of a coefficient: to see what it does; in one round of the fit
RIDGE = 0.003  # a Task's share of the squared error for which a coefficient changes by a factor of e
SCALE_WEIGHT = 0.3  # of a Task's scale beside the order of its points


def log_estimates(measurements: Measurements, cost: CostParameters) -> list[np.ndarray]:
    """The logarithms of the prices of every Task's points; nan for those that no Sketch has."""
    target, result = replace(measurements.target, cost=cost), []
    for measured_task in measurements.tasks:
        task = priced(measured_task, target, Policy(), check=False)
        values = np.full(len(measured_task.points), np.nan)
        values[[*task.places]] = np.log(task.estimates(lambda sketch, points: sketch.estimate(points, 1)))
        result.append(values)
    return result


def moved(cost: CostParameters, name: str, step: float) -> CostParameters:
    """`cost` with one coefficient times e ** step; shares stay below 1."""
    value = getattr(cost, name) * math.exp(step)
    return replace(cost, **{name: min(value, 0.98) if name.endswith("_share") else value})


def fitted(measurements: Measurements, cost: CostParameters) -> CostParameters:
    """One round of least squares: of the logarithms of prices over times within each Task, and a little of their mean,
    the fast points more; coefficients stay near what they are (ridge)."""
    before = log_estimates(measurements, cost)
    slopes = []
    for name in FITTED:
        after = log_estimates(measurements, moved(cost, name, STEP))
        slopes.append([np.nan_to_num((a - b) / STEP) for a, b in zip(after, before, strict=True)])
        err.print(f"{name}: its effect is known", markup=False)
    rows, errors = [], []
    for place, task in enumerate(measurements.tasks):
        slope = np.stack([own[place] for own in slopes], axis=1)
        error = np.log(1e-6 * task.microseconds) - before[place]
        weight = np.where(np.isnan(error), 0.0, (task.microseconds.min() / task.microseconds) ** 1.5)
        weight, error = weight / weight.sum(), np.nan_to_num(error)
        mean_slope, mean_error = weight @ slope, weight @ error
        root = np.sqrt(weight)
        rows += [(slope - mean_slope) * root[:, None], SCALE_WEIGHT * mean_slope[None]]
        errors += [(error - mean_error) * root, SCALE_WEIGHT * mean_error[None]]
    a, b = np.concatenate(rows), np.concatenate(errors)
    ridge = RIDGE * len(measurements.tasks) * np.eye(len(FITTED))
    for name, step in zip(FITTED, np.linalg.solve(a.T @ a + ridge, a.T @ b), strict=True):
        cost = moved(cost, name, float(np.clip(step, -MOST_STEP, MOST_STEP)))
    return cost


def of_networks(measurements: Measurements, held_out: Sequence[str], others: bool) -> Measurements:
    """The Tasks of the networks that are `held_out`, or those of all others."""
    tasks = tuple(task for task in measurements.tasks if (task.name.partition(":")[0] in held_out) != others)
    return replace(measurements, tasks=tasks)


def regret_of(measurements: Measurements, cost: CostParameters) -> float:
    """The geometric mean of all Tasks' regrets."""
    estimates = log_estimates(measurements, cost)
    return geometric_mean(
        task.microseconds[int(np.nanargmin(own))] / task.microseconds.min()
        for task, own in zip(measurements.tasks, estimates, strict=True)
    )


def fit(options: argparse.Namespace) -> None:
    measurements = read_measurements(options.file)
    learned = of_networks(measurements, options.held_out, others=True)
    unseen = of_networks(measurements, options.held_out, others=False)
    cost = usual = CostParameters()
    for _ in range(options.rounds):
        cost = fitted(learned, cost)
    for name, part in (("fitted to", learned), ("held out", unseen)):
        if part.tasks:
            before, after = (regret_of(part, own) for own in (usual, cost))
            err.print(f"{name}: {len(part.tasks)} Tasks, regret {before:.4f} before, {after:.4f} after", markup=False)
    changed = {name: float(f"{value:.3g}") for name, value in cost.beside(usual).items() if isinstance(value, float)}
    out.print(yaml.safe_dump({"cost": changed}, sort_keys=False), markup=False, end="")


def examples_of(measured: MeasuredTask, target: Target) -> list[Example]:
    """The points of a Task as trees learn from them."""
    task, examples = priced(measured, target, Policy(), check=False), []
    for number, point, microseconds in zip(task.numbers, task.points, task.microseconds, strict=True):
        sketch, row = task.sketches[number], point[None, :]
        shares, price = features(sketch.work(row, 1), target.cost)[0], float(sketch.estimate(row, 1)[0])
        examples.append(Example(task.name, shares, knobs_of(sketch, point), price, 1e-6 * float(microseconds)))
    return examples


def forest(options: argparse.Namespace) -> None:
    measurements = read_measurements(options.file)
    networks = sorted({task.name.partition(":")[0] for task in measurements.tasks})
    np.random.default_rng(options.seed).shuffle(networks)
    regrets, bytes_of_trees = defaultdict[str, list[float]](list), 0
    for fold in range(options.folds):
        parts: tuple[list[Example], list[list[Example]]] = ([], [])
        for task in measurements.tasks:
            examples = examples_of(task, measurements.target)
            if networks.index(task.name.partition(":")[0]) % options.folds == fold:
                parts[1].append(examples)
            else:
                parts[0].extend(examples)
        trees = fit_trees(parts[0], options.seed, options.rounds, options.depth)
        bytes_of_trees = max(bytes_of_trees, len(trees.trees.save_raw("ubj")))
        for examples in parts[1]:
            times = np.array([example.seconds for example in examples])
            taken = {
                "price": np.argmin([example.estimated for example in examples]),
                "trees": np.argmax(trees.scores(examples)),
            }
            for name, place in taken.items():
                regrets[name].append(float(times[place] / times.min()))
    for name, own in regrets.items():
        out.print(f"{name}: regret {geometric_mean(own):.4f} on {len(own)} Tasks of networks held out")
    out.print(f"{options.rounds} trees of depth {options.depth}: {bytes_of_trees} bytes")


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    collecting = verbs.add_parser("collect")
    collecting.add_argument("file", type=Path)
    collecting.add_argument("--networks", nargs="+", default=NETWORKS)
    collecting.add_argument("--minutes", type=float, default=30)
    collecting.add_argument("--models", type=Path, default=MODELS)
    collecting.add_argument("--machine", default="unnamed", help="what the header calls it")
    collecting.add_argument("--target", default="native")
    collecting.add_argument("--seed", type=int, default=0)
    collecting.add_argument("--again", action="store_true", help="another round of the Tasks that the file has")
    collecting.set_defaults(run=collect)
    checking = verbs.add_parser("check")
    checking.add_argument("files", nargs="*", type=Path)
    checking.add_argument("--keys", action="store_true", help="compare the Candidates too")
    checking.add_argument("--worst", type=int, default=0, metavar="N", help="print the N worst Tasks")
    checking.add_argument("--record", action="store_true", help="write FILE.regret.json")
    checking.set_defaults(run=check)
    fitting = verbs.add_parser("fit")
    fitting.add_argument("file", type=Path)
    fitting.add_argument("--rounds", type=int, default=1)
    fitting.add_argument("--held-out", nargs="*", default=(), metavar="NETWORK")
    fitting.set_defaults(run=fit)
    learning = verbs.add_parser("forest")
    learning.add_argument("file", type=Path)
    learning.add_argument("--rounds", type=int, default=60)
    learning.add_argument("--depth", type=int, default=4)
    learning.add_argument("--folds", type=int, default=7)
    learning.add_argument("--seed", type=int, default=0)
    learning.set_defaults(run=forest)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
