"""What the parts of the search are worth (Ansor's figures 7 and 10, ALT's figure 10): curves of one network at an
equal number of measurements, each with one part missing or replaced.

    python scripts/ablation_search.py NAME [--ways WAY...] [--budget 1000|5m] [--seeds 1] [--target NAME|FILE.yaml]
                                      [--threads N] [--dir models] [--out docs/ablation]

    evolve               as `modelc tune` searches loops (ALT-OL: the layouts are those without tuning)
    no learned cost      evolution by the analytic cost and what is measured nearby alone
    limited space        evolution on the one Sketch that holds the untuned schedule's family
    no task scheduler    every Task gets as many rounds as every other
    random, ppo, construct    the other explorers, on the same space
    joint                the joint stage before: layouts, and where tasks end, with loops inside
    joint, no propagation     the same where layouts hold for complex operators alone, with conversions around (ALT-WP)

A curve is the untuned network's predicted time over the tuned one's after each round; no way profits from what another
has measured. Without propagation the untuned network is another: both are timed as wholes, by turns. Prints the last
point of each and the measurements that `evolve` needed to be as good; OUT/NAME.json has all curves as they come (the
same command goes on after what it has), OUT/NAME.svg draws them.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import paths
from bench_networks import model_file
from kept_rows import MODELS, Kept, Row
from trained_models import shapes_of
from vl_convert import vegalite_to_svg

from modelc import __version__
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


def explored(tasks: Tasks, explorer: Callable[[Subject], Evolve]) -> Tasks:
    return replace(tasks, subjects=tuple(replace(s, explorer=explorer(s)) for s in tasks.subjects))


WAYS: dict[str, Way] = {
    "evolve": Way(),
    "no learned cost": Way(prepared=unlearned),
    "limited space": Way(prepared=limited),
    "no task scheduler": Way(scheduler=InTurn),
    "random": Way("random"),
    "ppo": Way("ppo"),
    "construct": Way("construct"),
    "joint": Way(joint=True),
    "joint, no propagation": Way(joint=True, propagate=False),
}


def searched(network: Network, way: Way, budget: Budget, seed: int, threads: int) -> Row:
    """The curve of one way: measurements, seconds and speed after each round."""
    by = jointly if way.joint else loops
    points, found = by(network, way, budget, seed, threads)
    return {"points": points, "rate": found.rate, "search_share": found.share, "ended": found.ended}


def jointly(network: Network, way: Way, budget: Budget, seed: int, threads: int) -> tuple[list[list[float]], Tuned]:
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
    joint.prepare()
    with Measurer(run.target, Setting(threads, run.config.flush_denormals, seed)) as measurer:
        found, _ = joint.run(measurer)
    return points, found


def loops(network: Network, way: Way, budget: Budget, seed: int, threads: int) -> tuple[list[list[float]], Tuned]:
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
        found = Search(tasks.subjects, scheduler, measurer, budget, None, after).run()
    return points, found


def summary(rows: Sequence[Row]) -> list[str]:
    """For each way the last speed, in the middle of its seeds, and what `evolve` needed for it."""
    ways = list(dict.fromkeys(row["way"] for row in rows))
    lines = []
    for way in ways:
        own = [row for row in rows if row["way"] == way]
        last = statistics.median(row["points"][-1][2] for row in own if row["points"])
        trials = statistics.median(row["points"][-1][0] for row in own if row["points"])
        lines.append(f"{way:20} {last:.3f} times as fast as untuned after {trials:.0f} measurements")
        best = [p for row in rows if row["way"] == "evolve" for p in row["points"] if p[2] >= last]
        if way != "evolve" and best:
            lines[-1] += f"; evolve was after {min(p[0] for p in best):.0f}"
    return lines


def drawn(rows: Sequence[Row], title: str) -> str:
    """SVG: speed over measurements, a curve for each way (the first seed's)."""
    shown: dict[str, Row] = {}
    for row in rows:
        if row["points"]:
            shown.setdefault(row["way"], row)
    moments = [
        {"way": way, "measurements": trials, "speed": speed}
        for way, row in shown.items()
        for trials, _, speed in row["points"]
    ]
    spec = {
        "title": {"text": f"{title}: times as fast as untuned, over measurements", "anchor": "start"},
        "width": 520,
        "height": 300,
        "background": "white",
        "data": {"values": moments},
        "mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2},
        "encoding": {
            "x": {"field": "measurements", "type": "quantitative", "axis": {"tickCount": 6}},
            "y": {"field": "speed", "type": "quantitative", "title": None, "scale": {"zero": False}},
            "color": {"field": "way", "type": "nominal", "title": None, "scale": {"domain": list(shown)}},
        },
    }
    return str(vegalite_to_svg(spec)) + "\n"


def main() -> None:
    assert __doc__
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a network of scripts/bench_networks.py")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    parser.add_argument("--budget", default="1000", help="of each curve: measurements, or a time (default 1000)")
    parser.add_argument("--seeds", type=int, default=1, help="curves of each way (default 1)")
    parser.add_argument("--target", default="native")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dir", type=Path, default=MODELS, help="where the models are")
    parser.add_argument("--out", type=Path, default=paths.ROOT / "docs" / "ablation", help="the folder of curves")
    given = parser.parse_args()
    budget, target = Budget.parse(given.budget), load_target(given.target)
    given.out.mkdir(parents=True, exist_ok=True)
    about = {"modelc": __version__, "target": target.key, "network": given.name}
    about |= {"budget": given.budget, "threads": given.threads}
    kept = Kept.at(given.out / f"{given.name}.json", about)
    labels = {f"{way} {seed}": (way, seed) for seed in range(given.seeds) for way in given.ways}
    with tempfile.TemporaryDirectory(prefix="modelc-ablation-") as folder:
        shapes = shapes_of(given.name) or [{}]
        run = Run(model_file(given.name, given.dir, print), "", target, load_config(), shapes)
        network = Network.of(given.name, run, Path(folder) / "network.modelc")
        for label, (way, seed) in labels.items():
            if kept.find(label) is None:
                kept.add({"task": label, "way": way, **searched(network, WAYS[way], budget, seed, given.threads)})
                print(f"{label} is done", flush=True)
    rows = kept.of_tasks(labels)
    (given.out / f"{given.name}.svg").write_text(drawn(rows, given.name))
    print(*summary(rows), sep="\n")


if __name__ == "__main__":
    main()
