"""What is given back: what layers multiply that cost too much error for the time they save, until the drop holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

LEAST = 1e-12  # seconds, of what is no slower


class Way(NamedTuple):
    """A layer in one way: int8, asymmetric (int8 with such weights), dynamic, float16 or float32; its estimated
    seconds, and the relative error that it adds to the network's outputs. Of a table, in bytes or float32, the seconds
    say what its size is worth."""

    way: str
    seconds: float
    error: float


class Step(NamedTuple):
    """A layer is computed in another way from now on."""

    layer: str
    way: str


@dataclass(frozen=True)
class Cut:
    """All layers are computed as `first` says, in their fastest ways, before the `order` of steps, of which the first
    `taken` are."""

    first: Mapping[str, str]
    order: tuple[Step, ...]
    taken: int = 0

    @property
    def ways(self) -> dict[str, str]:
        """How each layer is computed."""
        return {**self.first, **dict(self.order[: self.taken])}

    @property
    def moved(self) -> frozenset[str]:
        """The layers that are computed otherwise than at first."""
        return frozenset(step.layer for step in self.order[: self.taken])

    def taking(self, count: int) -> Cut:
        return replace(self, taken=count)


def ordered(layers: Mapping[str, Sequence[Way]]) -> Cut:
    """No step taken, those first that take off the most squared error for the seconds that they cost. Of a layer's ways
    those are taken in turn between which that falls from step to step, down to float32, which adds no error."""
    weighed, first = list[tuple[float, Step]](), dict[str, str]()
    for name, ways in layers.items():
        at = min(ways, key=lambda way: way.seconds)
        first[name] = at.way
        while slower := [way for way in ways if way.seconds > at.seconds and _gain(at, way) >= 0]:
            following = max(slower, key=lambda way: (_gain(at, way), way.seconds))
            weighed.append((_gain(at, following), Step(name, following.way)))
            at = following
    return Cut(first, tuple(step for _, step in sorted(weighed, key=lambda pair: pair[0], reverse=True)))


def _gain(way: Way, slower: Way) -> float:
    """The squared error that the slower way takes off for each second."""
    if way.error == inf:
        return inf if slower.error < inf else -inf
    return (way.error**2 - slower.error**2) / max(slower.seconds - way.seconds, LEAST)


def cut(every: Cut, holds: Callable[[Cut], bool], finer: Callable[[], Cut] | None = None) -> Cut:
    """As few steps are taken as lets the drop hold: by halves, as the drop is taken to shrink with each. `finer` are
    the steps where not all layers can be computed in their fastest ways."""
    if holds(every):
        return every
    every = every if finer is None else finer()
    too_few, enough = 0, len(every.order)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if holds(every.taking(middle)):
            enough = middle
        else:
            too_few = middle
    return every.taking(enough)
