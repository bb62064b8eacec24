"""Which parameters of layouts a class is offered, of all that divide its dimension.

Each value more of a variable multiplies the tables of all Tasks around it, and most layouts that split a dimension are
dearer than the rule's. So the Tasks that a layout may speed up are priced first with everything around them split
alike by one vector: those that read an element again and again as a window slides, or multiply two computed operands,
and take longer than their roofline by a margin. A family is offered to the classes around those whose optimistic price
is lower so by the margin than what they take by rule; of its parameters those by which all Tasks around a class are
cheapest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from modelc.ir.block import Task
from modelc.layout.classes import LayoutClass
from modelc.layout.costs import Cost

KEPT = 2  # parameters of a family that a class is offered

Kinds = Mapping[int, str]  # of classes, by number; what is not listed has the rule's
Family = tuple[int, str]  # one of a class: its number, the family's name


@dataclass(frozen=True)
class Restorable:
    """A Task that can be had with values stored otherwise: the classes around and inside it, what it is where they have
    these kinds of layouts, and whether it reads what these store `again`, other than as a row of channels."""

    classes: Collection[int]
    task: Callable[[Kinds], Task]
    again: bool


def offered(
    classes: Sequence[LayoutClass], runs: Sequence[Restorable], cost: Cost, margin: float | None
) -> tuple[LayoutClass, ...]:
    """`classes` with the parameters that are worth a value: where some Task of `runs` is cheaper by a part `margin`
    than by rule with one vector; everywhere, where there is no margin."""
    weighed = {(c, name) for c, stored in enumerate(classes) for name, kinds in stored.families.items() if kinds}
    if margin is not None and weighed:
        weighed = _promising(classes, weighed, runs, cost, 1 + margin)
    totals = dict[Family, dict[str, float]]()
    for kind, families in _alike(classes, weighed).items():
        seconds_by_run = _priced(runs, cost, kind, {c for c, _ in families})
        for c, name in families:
            around = (seconds for number, seconds in seconds_by_run.items() if c in runs[number].classes)
            totals.setdefault((c, name), {})[kind] = sum(around)
    splits: list[set[str]] = [set() for _ in classes]
    for (c, _), totals_by_kind in totals.items():
        splits[c] |= {*sorted(totals_by_kind, key=totals_by_kind.__getitem__)[:KEPT]}
    return tuple(stored.offered(kinds) for stored, kinds in zip(classes, splits, strict=True))


def _promising(
    classes: Sequence[LayoutClass], families: Collection[Family], runs: Sequence[Restorable], cost: Cost, ratio: float
) -> set[Family]:
    """Those of `families` by which some Task is cheaper, so many times, than by rule."""
    asked = [(run, run.task({})) for run in runs if run.again]
    cost.prepare([task for _, task in asked], True)  # the search for the least sum begins with these
    asked = [(run, task) for run, task in asked if cost.seconds(task) > ratio * cost.floor(task)]
    promising = set[Family]()
    for kind, alike in _alike(classes, families, 1).items():
        for number, seconds in _priced([run for run, _ in asked], cost, kind, {c for c, _ in alike}).items():
            run, by_rule = asked[number]
            if ratio * seconds < cost.seconds(by_rule):
                promising |= {(c, name) for c, name in alike if c in run.classes}
    return promising


def _alike(
    classes: Sequence[LayoutClass], families: Collection[Family], most: int | None = None
) -> dict[str, list[Family]]:
    """The kinds of `families`, `most` of each, and which families have them."""
    by_kind = dict[str, list[Family]]()
    for c, name in sorted(families):
        for kind in classes[c].families[name][:most]:
            by_kind.setdefault(kind, []).append((c, name))
    return by_kind


def _priced(runs: Sequence[Restorable], cost: Cost, kind: str, which: Collection[int]) -> dict[int, float]:
    """Optimistic seconds of the Tasks around the classes `which`, by their number, where all of these have `kind`."""
    tasks = {
        number: run.task(dict.fromkeys((c for c in run.classes if c in which), kind))
        for number, run in enumerate(runs)
        if any(c in which for c in run.classes)
    }
    cost.prepare([*tasks.values()], False)
    return {number: cost.optimistic(task) for number, task in tasks.items()}
