"""What the parts of the search are worth (Ansor's figures 7 and 10, ALT's figure 10): networks tuned at an equal number
of measurements, with cold databases, each way with one part missing or replaced, and with several seeds.

    python scripts/ablation_search.py NAME... [--ways WAY...] [--budget 200|5m] [--seeds 5] [--target NAME|FILE.yaml]
                                      [--threads N] [--dir models] [--out docs/ablation] [--minutes M]

    evolve               as `modelc tune` searches loops (ALT-OL: the layouts are those without tuning)
    no learned cost      evolution by the analytic cost and what is measured nearby alone
    no transfer          evolution of each Task without what was faster for others
    limited space        evolution on the one Sketch that holds the untuned schedule's family
    no task scheduler    every Task gets as many rounds as every other
    random, ppo          the other explorers, on the same space
    joint                the joint stage before: layouts, and where tasks end, with loops inside
    joint, no propagation     the same where layouts hold for complex operators alone, with conversions around (ALT-WP)

A curve is the untuned network's predicted time over the tuned one's after each round; no way profits from what another
has measured. The best of many measurements is partly the luckiest, so the Candidates that a curve ends with are
measured once more, by turns with the untuned ones and for longer, a Candidate once for all ways: the table is of these
times. Without propagation the untuned network is another: both are timed as wholes, by turns.

OUT/NAME.json has all curves as they come: the same command goes on after what it has, and ends after M minutes.
OUT/NAME.svg draws each way's median and quartiles beside those of `evolve`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import paths
from bench_networks import model_file
from bench_ops import geometric_mean
from kept_rows import LONGER, MODELS, Kept, Row
from trained_models import shapes_of
from vl_convert import vegalite_to_svg

from modelc import __version__
from modelc.cache.store import user_store
from modelc.compile.config import Config, load_config
from modelc.compile.pipeline import Run
from modelc.measure import Measurer, Setting
from modelc.target import load_target
from modelc.tune.end_to_end import compared
from modelc.tune.joint import JointSearch
from modelc.tune.networks import Network, Subjects, Tasks
from modelc.tune.search.evolve import Evolve
from modelc.tune.search.learned import LearnedCost
from modelc.tune.search.objectives import Aim
from modelc.tune.search.population import Space
from modelc.tune.search.scheduler import Scheduler
from modelc.tune.search.standing import Standing
from modelc.tune.search.tune import Budget, Moment, Search, Subject, Tuned

AGAIN = replace(LONGER, slower=1e9, near=1e9)  # what seems slow at first may be a neighbour's fault
JOINT = 0.3  # of the budget, for the joint stage


class InTurn(Scheduler):
    """Gives every Task as many rounds as every other, whatever they bring and take."""

    def next(self, busy: Collection[int] = (), takes: Sequence[float] | None = None) -> int | None:
        left = [k for k in range(len(self.work)) if k not in self.exhausted and k not in busy]
        return min(left, key=lambda k: len(self.histories[k]), default=None)


class Limited(Space):
    """The one Sketch of the best that is constructed: what a template would have."""

    def __init__(self, whole: Space) -> None:
        super().__init__(whole.task, whole.target, cores=whole.cores)
        number = int(whole.constructed(whole.cores)[0, 0])
        name = whole.sketches[number].name
        self.sketches = tuple(s for s in self.sketches if s.name == name)[:1]
        self.scales = np.ones(1)
        self.widths = np.array([len(s.knobs) for s in self.sketches], np.int64)
        self.sizes = np.ones((1, max(1, *self.widths)), np.int64)
        self.sizes[0, : len(self.sketches[0].sizes)] = self.sketches[0].sizes


@dataclass(frozen=True)
class Way:
    """How one curve is searched. `prepared` changes the Tasks before; `joint`: layouts too, which `propagate`."""

    explorer: str = "evolve"
    scheduler: type[Scheduler] = Scheduler
    prepared: Callable[[Tasks, int], Tasks] = lambda tasks, seed: tasks
    joint: bool = False
    propagate: bool = True


def unlearned(tasks: Tasks, seed: int) -> Tasks:
    return explored(tasks, lambda s: Evolve(s.explorer.space, seed))


def limited(tasks: Tasks, seed: int) -> Tasks:
    return explored(tasks, lambda s: Evolve(Limited(s.explorer.space), seed, s.explorer.learned))


def explored(tasks: Tasks, explorer: Callable[[Subject], Evolve], transfer: bool = True) -> Tasks:
    subjects = tuple(replace(subject, explorer=explorer(subject)) for subject in tasks.subjects)
    for own, subject in zip(subjects, tasks.subjects, strict=True):
        own.explorer.transferred = subject.explorer.transferred if transfer else None
    return replace(tasks, subjects=subjects)


def untransferred(tasks: Tasks, seed: int) -> Tasks:
    return explored(tasks, lambda s: Evolve(s.explorer.space, seed, s.explorer.learned), transfer=False)


WAYS: dict[str, Way] = {
    "evolve": Way(),
    "no learned cost": Way(prepared=unlearned),
    "no transfer": Way(prepared=untransferred),
    "limited space": Way(prepared=limited),
    "no task scheduler": Way(scheduler=InTurn),
    "random": Way("random"),
    "ppo": Way("ppo"),
    "joint": Way(joint=True),
    "joint, no propagation": Way(joint=True, propagate=False),
}


def searched(network: Network, way: Way, budget: Budget, seed: int, threads: int, verdicts: Mapping[str, float]) -> Row:
    """The curve of one way: measurements, seconds and speed after each round; the `speed` of the Candidates that it
    ends with, measured once more; and the verdicts on these, the time of each over the untuned one's by name_of(), but
    for those of `verdicts`, which other curves have added."""
    by = jointly if way.joint else loops
    points, tuned, speed, new = by(network, way, budget, seed, threads, verdicts)
    row = {"points": points, "rate": tuned.rate, "search_share": tuned.share, "ended": tuned.ended}
    return row | {"speed": round(speed, 5), "verdicts": new}


Curve = tuple[list[list[float]], Tuned, float, dict[str, float]]


def jointly(
    network: Network, way: Way, budget: Budget, seed: int, threads: int, verdicts: Mapping[str, float]
) -> Curve:
    run, untuned = network.run, 1.0
    settings: Config = replace(run.config, layout=replace(run.config.layout, propagate=way.propagate))
    if settings != run.config:
        own = Run(run.model, run.digest, run.target, settings, run.shapes)
        other = Network.of(network.name, own, network.output)
        times = compared(run, {"untuned": network.spec, "tuned": other.spec}, threads)
        network, untuned = other, times.untuned_ms / times.tuned_ms
    points: list[list[float]] = []

    def after(standing: Standing) -> None:
        speed = untuned * standing.untuned_seconds / standing.predicted_seconds
        points.append([standing.trials, round(standing.seconds, 2), round(speed, 5)])

    joint = JointSearch([network], way.explorer, seed, threads, budget, Aim().of([network.name]), watch=after)
    joint.share = JOINT
    joint.prepare()
    with Measurer(run.target, Setting(threads, run.config.flush_denormals, seed)) as measurer:
        tuned, _ = joint.run(measurer)
        new = measured_again(joint.tasks.subjects, measurer, verdicts)
    return points, tuned, untuned * speed_of(joint.tasks, joint.scheduler, {**verdicts, **new}), new


def loops(network: Network, way: Way, budget: Budget, seed: int, threads: int, verdicts: Mapping[str, float]) -> Curve:
    subjects = Subjects([network], way.explorer, seed, threads, LearnedCost(seed))
    tasks = way.prepared(subjects.tasks([[network.base]]), seed)
    scheduler = tasks.scheduler(Aim().of([network.name]), way.scheduler, seed)
    points: list[list[float]] = []

    def after(moment: Moment, _: Subject) -> None:
        best, gains = scheduler.seconds, np.array([s.gain for s in tasks.subjects])
        (tuned,), (untuned,) = map(scheduler.objective.weights.seconds, (best, best * gains))
        points.append([moment.trials, round(moment.seconds, 2), round(float(untuned / tuned), 5)])

    setting = Setting(threads, network.run.config.flush_denormals, seed)
    with Measurer(network.run.target, setting) as measurer:
        tuned = Search(tasks.subjects, scheduler, measurer, budget, None, after).run(last=False)
        new = measured_again(tasks.subjects, measurer, verdicts)
    return points, tuned, speed_of(tasks, scheduler, {**verdicts, **new}), new


def name_of(subject: Subject) -> str:
    """The Task and the Candidate that a search ends with for it."""
    return f"{subject.key} {subject.best.key}"


def measured_again(subjects: Sequence[Subject], measurer: Measurer, verdicts: Mapping[str, float]) -> dict[str, float]:
    """The times of the Candidates that a search ends with over the untuned ones', but for those of `verdicts`."""
    changed = {name_of(s): s for s in subjects if s.best.key != s.untuned.key}
    numbers = {
        measurer.submit(measurer.subject(s.task, s.cold_bytes), s.best, AGAIN, verify=False): name
        for name, s in changed.items()
        if name not in verdicts
    }
    new = {}
    for number, measurement in measurer.results():
        if (name := numbers.get(number)) is not None:
            if not measurement.ok:
                raise SystemExit(
                    f"{name} was measured before, and now it is {measurement.outcome}: {measurement.message}"
                )
            new[name] = round(measurement.relative, 4)
    return new


def speed_of(tasks: Tasks, scheduler: Scheduler, verdicts: Mapping[str, float]) -> float:
    """The untuned network's time over that of its fastest alternative, by the `verdicts` on its Candidates."""
    untuned = scheduler.seconds * np.array([subject.gain for subject in tasks.subjects])
    tuned = untuned * np.array([verdicts.get(name_of(subject), 1.0) for subject in tasks.subjects])
    (leading,) = scheduler.leading()
    return float(tasks.weights.each[0] @ untuned / (tasks.weights.each[leading] @ tuned))


def table(rows: Mapping[str, Sequence[Row]], seeds: int) -> list[str]:
    """Markdown: of each way the median speed of each network, and the least and most, over the untuned one; the same of
    the geometric means over the networks; and the pairs of network and seed in which it was faster than `evolve`."""
    speeds = {(row["way"], name, row["seed"]): row["speed"] for name, own in rows.items() for row in own}
    ways = list(dict.fromkeys(way for way, _, _ in speeds))
    lines = [f"| way | {' | '.join(rows)} | together | faster than evolve |", "| --- " * (len(rows) + 3) + "|"]
    for way in ways:
        by_network = [[v for s in range(seeds) if (v := speeds.get((way, name, s)))] for name in rows]
        complete = [s for s in range(seeds) if all((way, name, s) in speeds for name in rows)]
        together = [geometric_mean([speeds[way, name, s] for name in rows]) for s in complete]
        pairs = [(speeds[key], speeds[("evolve", *key[1:])]) for key in speeds if key[0] == way]
        wins = f"{sum(own > other for own, other in pairs)} of {len(pairs)}" if way != "evolve" else ""
        lines.append(f"| {' | '.join([way, *map(spread, [*by_network, together]), wins])} |")
    return lines


def spread(values: Sequence[float]) -> str:
    return f"{np.median(values):.3f} ({min(values):.3f} to {max(values):.3f})" if values else ""


def bands(rows: Sequence[Row]) -> list[Row]:
    """The median and the quartiles of each way's curves, at every number of measurements at which one of them has a
    point, and the median of `evolve` there."""
    ways: dict[str, list[list[list[float]]]] = {}
    for row in rows:
        ways.setdefault(row["way"], []).append(row["points"])
    ends = sorted({int(point[0]) for row in rows for point in row["points"]})

    def at(way: str, trials: int) -> list[float]:
        return [next((p[2] for p in reversed(curve) if p[0] <= trials), 1.0) for curve in ways[way]]

    return [
        {"way": way, "measurements": trials, "median": middle, "low": low, "high": high}
        | {"evolve": float(np.median(at("evolve", trials))) if "evolve" in ways else None}
        for way in ways
        for trials in ends
        for low, middle, high in [map(float, np.percentile(at(way, trials), (25, 50, 75)))]
    ]


def drawn(rows: Sequence[Row], title: str) -> str:
    """SVG: speed over measurements, a panel for each way; `evolve` is dashed in all of them."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    x = {"field": "measurements", "type": "quantitative", "axis": {"tickCount": 4}}

    def mark(kind: str, field: str, more: Row, axes: Row) -> Row:
        y = {"field": field, "type": "quantitative", "title": None, "scale": {"zero": False}}
        return {"mark": {"type": kind, "interpolate": "step-after", **more}, "encoding": {"x": x, "y": y, **axes}}

    layers = [
        mark("area", "low", {"opacity": 0.3}, {"y2": {"field": "high"}}),
        mark("line", "evolve", {"strokeDash": [4, 3], "color": "gray", "strokeWidth": 1}, {}),
        mark("line", "median", {"strokeWidth": 2}, {}),
    ]
    spec = {
        "title": {"text": f"{title}: times as fast as untuned, over measurements", "anchor": "start"},
        "background": "white",
        "data": {"values": bands(rows)},
        "facet": {"field": "way", "type": "nominal", "title": None, "sort": ways},
        "columns": 4,
        "spec": {"width": 170, "height": 120, "layer": layers},
    }
    return str(vegalite_to_svg(spec)) + "\n"


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAME", help="networks of scripts/bench_networks.py")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    parser.add_argument("--budget", default="200", help="of each curve: measurements, or a time (default 200)")
    parser.add_argument("--seeds", type=int, default=5, help="curves of each way (default 5)")
    parser.add_argument("--target", default="native")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=MODELS, help="where the models are")
    parser.add_argument("--out", type=Path, default=paths.ROOT / "docs" / "ablation", help="the folder of curves")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no other curve is begun")
    given = parser.parse_args()
    end = time.monotonic() + 60 * given.minutes
    budget, target = Budget.parse(given.budget), load_target(given.target)
    given.out.mkdir(parents=True, exist_ok=True)
    about = {"modelc": __version__, "target": target.key, "budget": given.budget, "threads": given.threads}
    kept = {name: Kept.at(given.out / f"{name}.json", {**about, "network": name}) for name in given.names}
    labels = {f"{way} {seed}": (way, seed) for seed in range(given.seeds) for way in given.ways}
    networks: dict[str, Network] = {}
    with tempfile.TemporaryDirectory(prefix="modelc-ablation-") as folder:
        for label, (way, seed) in labels.items():
            for name in given.names:
                if kept[name].find(label) is not None or time.monotonic() > end:
                    continue
                if name not in networks:
                    model = model_file(name, given.dir, print)
                    run = Run(model, "", target, load_config(), shapes_of(name) or [{}], store=user_store())
                    networks[name] = Network.of(name, run, Path(folder) / f"{name}.modelc")
                verdicts = {key: v for row in kept[name].rows for key, v in row["verdicts"].items()}
                row = searched(networks[name], WAYS[way], budget, seed, given.threads, verdicts)
                kept[name].add({"task": label, "way": way, "seed": seed, **row})
                print(f"{name}: {label}: {row['speed']:.3f}", flush=True)
    rows = {name: kept[name].of_tasks(labels) for name in given.names}
    for name, own in rows.items():
        if own:
            (given.out / f"{name}.svg").write_text(drawn(own, name))
    print(*table(rows, given.seeds), sep="\n")


if __name__ == "__main__":
    main()
