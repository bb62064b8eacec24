"""The learned cost (Ansor, section 5.2): gradient-boosted trees that correct the analytic cost of a schedule.

    score = best seconds of the Task / (estimated seconds * what estimates of the Task are off by) * exp(trees)

A score is a throughput over the best of its Task. The trees are asked about the Work of a schedule, as shares of its
price (cost/terms.py), and about the knobs of the point: what a knob does that no term sees is learned by its name, from
all Tasks whose Sketches have it. Ansor's features of innermost statements (appendix B) add nothing to these:
docs/tune.md has the figures. The trees are fitted to logarithms, for it is ratios of times that schedules of unlike
Tasks have in common; the loss is weighted by throughput:

    sum of throughput * (log(score) - log(throughput))^2

XGBoost (the extra `tune`) grows the trees. Examples of all Tasks train one model: what is learned of one helps
with others. It is used only while it orders examples that it was not trained on better than the analytic cost does:
those pairs of a Task of which one is in its best quarter, since a search takes the best.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import extra
from modelc.space.sketch import Bools, Floats, Points, Sketch
from modelc.tune.search.population import Individual, Space

MISSING = f"the learned cost needs XGBoost ({extra('tune')}); the analytic cost is used, and what is measured"
ROUNDS, DEPTH, RATE, BINS = 200, 9, 0.08, 64
SHARE = 0.3  # of the columns, that each tree may ask: there are more of them than small sets of examples tell apart
DRAWN = 0.8  # of the examples, that each tree is grown on
FEWEST = 3.0  # examples of the best throughput that a leaf has at least
MOST_SCORE = 2.0  # of an estimate
LEAST = 64  # examples, below which nothing is learned
GROWN = 1.5  # times the examples of last time, before it is learned again
MOST = 2000  # examples that are learned from: the latest
JUDGED = 600  # of them that it is judged by
FOLDS = 3  # parts of these: each is ranked by a model of the others
PAIRS = 200  # of examples of one Task, below which nothing can be compared
ALIKE = 0.02  # of the slower one's time: pairs nearer than that are not compared
FEW = 8  # examples of a Task, below which it has no best quarter
BETTER = 0.01  # of the pairs, that more have to be ranked right: chance does less than that

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Example:
    """One schedule: of which Task (its hash), the shares of its price [FEATURES], its knobs by name, the seconds that
    are estimated and those that were measured (0: not yet), with what relative standard error."""

    task: str
    numbers: Floats
    knobs: Mapping[str, float]
    estimated: float
    seconds: float = 0.0
    noise: float = 0.0


def described(space: Space, individuals: Sequence[Individual]) -> list[Example]:
    """Schedules that are not measured yet."""
    if not individuals:
        return []
    rows = np.stack([individual.row for individual in individuals])
    return [
        Example(space.task.hash, numbers, knobs_of(individual.sketch, individual.point), float(seconds))
        for individual, seconds, numbers in zip(individuals, space.estimate(rows), space.features(rows), strict=True)
    ]


def knobs_of(sketch: Sketch, point: Points) -> dict[str, float]:
    """The knobs of a point, and its Sketch: whole numbers as log2(1 + x), 1 for what is said in words."""
    values = sketch.recorded(point)
    words = [f"kind {sketch.kind}", f"sketch {sketch.name}"]
    words += [f"{name} {value}" for name, value in values.items() if isinstance(value, str)]
    return dict.fromkeys(words, 1.0) | {n: log2(1.0 + v) for n, v in values.items() if not isinstance(v, str)}


# --- scores ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scale:
    """Of a Task: the least measured seconds, and by what factor estimates are off in the middle."""

    best: float
    off: float


def scales(examples: Sequence[Example]) -> dict[str, Scale]:
    pairs_by_task: dict[str, list[tuple[float, float]]] = {}
    for example in examples:
        pairs_by_task.setdefault(example.task, []).append((example.seconds, example.estimated))
    return {
        task: Scale(min(s for s, _ in pairs), float(np.median([s / e for s, e in pairs])))
        for task, pairs in pairs_by_task.items()
    }


def analytic(examples: Sequence[Example], task_scales: Mapping[str, Scale]) -> Floats:
    """The scores that estimates give [P]; of a Task of which nothing is known, over the best of its estimates."""
    return np.minimum(MOST_SCORE, np.exp(_logarithms(examples, task_scales)))


def _logarithms(examples: Sequence[Example], task_scales: Mapping[str, Scale]) -> Floats:
    least: dict[str, float] = {}
    for example in examples:
        least[example.task] = min(example.estimated, least.get(example.task, example.estimated))
    places = [task_scales.get(example.task, Scale(least[example.task], 1.0)) for example in examples]
    pairs = zip(examples, places, strict=True)
    return np.log(np.array([scale.best / (scale.off * example.estimated) for example, scale in pairs], np.float64))


def throughputs(examples: Sequence[Example], task_scales: dict[str, Scale]) -> Floats:
    """What was measured, over the best of each Task [P]."""
    return np.array([task_scales[example.task].best / example.seconds for example in examples], np.float64)


def groups_of(examples: Sequence[Example]) -> Ints:
    """A number for each Task [P]."""
    places = {task: k for k, task in enumerate(dict.fromkeys(example.task for example in examples))}
    return np.array([places[example.task] for example in examples], np.int64)


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fitted:
    """Trees, the knobs that they ask about, and the scales of the Tasks that they were fitted on."""

    trees: Any
    knobs: tuple[str, ...]
    task_scales: Mapping[str, Scale]

    def scores(self, examples: Sequence[Example]) -> Floats:
        """[P]; of a Task of which nothing is known, over the best of `examples`."""
        if not examples:
            return np.zeros(0)
        scores = np.exp(_logarithms(examples, self.task_scales) + self.trees.predict(_matrix(examples, self.knobs)))
        best: dict[str, float] = {}
        for example, score in zip(examples, scores, strict=True):
            best[example.task] = (
                1.0 if example.task in self.task_scales else max(best.get(example.task, 0.0), float(score))
            )
        return np.asarray(scores / np.array([best[example.task] for example in examples]), np.float64)


def fit(examples: Sequence[Example], seed: int = 0, rounds: int = ROUNDS, depth: int = DEPTH) -> Fitted:
    """`rounds` trees of at most `depth`. Equal examples and seeds give equal scores."""
    import xgboost

    task_scales = scales(examples)
    wanted = throughputs(examples, task_scales)
    names = tuple(sorted({name for example in examples for name in example.knobs}))
    matrix = _matrix(examples, names)
    matrix.set_info(label=np.log(wanted) - _logarithms(examples, task_scales), weight=wanted)
    options = {
        "objective": "reg:squarederror",
        "tree_method": "hist",
        "max_depth": depth,
        "eta": RATE,
        "max_bin": BINS,
        "subsample": DRAWN,
        "colsample_bytree": SHARE,
        "min_child_weight": FEWEST,
        "base_score": 0.0,
        "nthread": 1,
        "seed": seed,
        "verbosity": 0,
    }
    return Fitted(xgboost.train(options, matrix, rounds), names, task_scales)


def _matrix(examples: Sequence[Example], names: Sequence[str]) -> Any:
    """What the trees are asked about: FEATURES, the estimate, and the knobs `names`, missing where a point has none."""
    import xgboost

    rows = np.stack([example.numbers for example in examples])
    estimated = np.log2([example.estimated for example in examples])
    places = {name: k for k, name in enumerate(names)}
    knobs = np.full((len(examples), len(names)), np.nan)
    for row, example in zip(knobs, examples, strict=True):
        for name, value in example.knobs.items():
            if name in places:
                row[places[name]] = value
    return xgboost.DMatrix(np.column_stack([rows, estimated, knobs]), nthread=1)


# --- while tuning ---------------------------------------------------------------------------------------------------


@dataclass
class LearnedCost:
    """What is learned from the measurements of all Tasks of a search, as they come. `says` is a sentence on whether it
    is used, and why."""

    seed: int = 0
    examples: list[Example] = field(default_factory=list)  # the latest
    count: int = 0  # of all there were
    fitted: Fitted | None = None  # None: the analytic cost is used
    says: str = "the analytic cost is used: little is measured"
    _waiting: list[tuple[Space, Individual, float]] = field(default_factory=list)  # measured since, not described yet
    _learned: int = 0  # examples when it last was

    def add(self, space: Space, measured: Sequence[tuple[Individual, float]]) -> None:
        """Takes seconds that were measured; learns when there are enough more of them. What is never learned from is
        never described."""
        self._waiting = [*self._waiting, *((space, individual, seconds) for individual, seconds in measured)][-MOST:]
        if self.count + len(self._waiting) >= max(LEAST, GROWN * self._learned):
            self._describe()
            self.learn()

    def _describe(self) -> None:
        """Makes examples of what waits."""
        waiting, self._waiting = self._waiting, []
        for space, group in groupby(waiting, key=lambda triple: triple[0]):
            batch = list(group)
            pairs = zip(
                described(space, [individual for _, individual, _ in batch]), (s for *_, s in batch), strict=True
            )
            self._keep([replace(example, seconds=seconds) for example, seconds in pairs])

    def begin(self, examples: Sequence[Example]) -> None:
        """Learns from what was measured of other Tasks, if that helps with Tasks that it has not seen."""
        self._keep(examples)
        if self.count >= LEAST:
            self.learn(by_task=True)

    def _keep(self, examples: Sequence[Example]) -> None:
        self.examples = [*self.examples, *examples][-MOST:]
        self.count += len(examples)

    def learn(self, by_task: bool = False) -> None:
        """Fits the model to the latest examples, if it is better on those that are held out."""
        self._learned = self.count
        if not available():
            self.says = MISSING
            return
        better, self.says = judged(self.examples[-JUDGED:], self.seed, by_task)
        self.fitted = fit(self.examples, self.seed) if better else None

    def scores(self, space: Space, individuals: Sequence[Individual]) -> Floats | None:
        """The higher the better [P]; None while the analytic cost is used."""
        if self.fitted is None or not individuals:
            return None
        return self.fitted.scores(described(space, individuals))


def available() -> bool:
    """Whether XGBoost is there."""
    return importlib.util.find_spec("xgboost") is not None


def judged(examples: Sequence[Example], seed: int = 0, by_task: bool = False) -> tuple[bool, str]:
    """(whether models that have not seen what they order put the best quarter of Tasks in order better than the
    analytic cost does, a sentence that says so); `by_task`: that have seen nothing of its Task."""
    task_scales = scales(examples)
    wanted, groups, base = throughputs(examples, task_scales), groups_of(examples), analytic(examples, task_scales)
    right, pairs = best_pairs(base, wanted, groups)
    if pairs < PAIRS or (by_task and len(task_scales) < FOLDS):
        return False, "the analytic cost is used: too little is measured to compare it with the learned one"
    learned, _ = best_pairs(held_out(examples, FOLDS, seed, by_task), wanted, groups)
    shares = (
        f"{100 * learned / pairs:.1f} % of held-out pairs with one of the best right, "
        f"the analytic one {100 * right / pairs:.1f} %"
    )
    if learned > right + BETTER * pairs:
        return True, f"the learned cost is used: it orders {shares}"
    return False, f"the analytic cost is used: the learned one orders {shares}"


def held_out(examples: Sequence[Example], folds: int, seed: int = 0, by_task: bool = False) -> Floats:
    """The score of each example by a model of the other parts [P]; examples fall into parts by chance, or (`by_task`)
    Tasks do."""
    groups = groups_of(examples) if by_task else np.arange(len(examples))
    part = (np.random.default_rng(seed).permutation(int(groups.max(initial=0)) + 1) % folds)[groups]
    scores = np.zeros(len(examples))
    for k in range(folds):
        parts: tuple[list[Example], list[Example]] = ([], [])
        for example, place in zip(examples, part, strict=True):
            parts[int(place == k)].append(example)
        if all(parts):
            scores[part == k] = fit(parts[0], seed).scores(parts[1])
    return scores


def best_pairs(scores: Floats, measured: Floats, groups: Ints) -> tuple[float, int]:
    """(pairs in the right order, half of those that are predicted equal among them; pairs that are compared): of equal
    `groups`, more than ALIKE apart, the faster one in the best quarter."""
    right, compared = 0.0, 0
    for group in np.unique(groups):
        own = measured[groups == group]
        faster = own[:, None] * (1 - ALIKE) > own[None, :]
        faster[np.setdiff1d(np.arange(len(own)), best_quarter(own))] = False
        right += in_order(scores[groups == group], faster)
        compared += int(faster.sum())
    return right, compared


def in_order(scores: Floats, faster: Bools) -> float:
    """How many of the pairs of which `faster` says that the first is [P x P] are scored so; equal scores count half."""
    return float((0.5 + 0.5 * np.sign(scores[:, None] - scores[None, :]))[faster].sum())


def best_quarter(measured: Floats) -> NDArray[np.intp]:
    """The places of the quarter of the highest throughputs, of FEW / 2 at least."""
    return np.argsort(-measured, kind="stable")[: max(FEW // 2, len(measured) // 4)]
