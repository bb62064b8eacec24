"""What goes back to float32, or first to asymmetric weights: what costs the most error for the time that it saves,
until the drop holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

LEAST = 1e-12  # seconds, of what is no slower


class Form(NamedTuple):
    """A layer in bytes: the relative error that it adds to the network's outputs, and the seconds that it saves."""

    error: float
    saved: float


class Step(NamedTuple):
    """A layer gets asymmetric weights, or goes back to float32."""

    layer: str
    asymmetric: bool = False


@dataclass(frozen=True)
class Cut:
    """All layers are in bytes, with symmetric weights, before the `order` of steps, of which the first `taken` are."""

    order: tuple[Step, ...]
    taken: int = 0

    @property
    def wide(self) -> tuple[str, ...]:
        """The layers that were given back to float32."""
        return tuple(step.layer for step in self.order[: self.taken] if not step.asymmetric)

    @property
    def narrow(self) -> frozenset[str]:
        """The layers that multiply bytes."""
        return frozenset(step.layer for step in self.order) - {*self.wide}

    @property
    def asymmetric(self) -> frozenset[str]:
        """Those of them whose weights have zero points."""
        return frozenset(step.layer for step in self.order[: self.taken] if step.asymmetric) - {*self.wide}

    def taking(self, count: int) -> Cut:
        return replace(self, taken=count)


def ordered(symmetric: Mapping[str, Form], asymmetric: Mapping[str, Form] | None = None) -> Cut:
    """No step taken, those first whose squared error is the largest for the seconds that they save. With asymmetric
    weights a layer has less error and saves less: it gets these first where that takes off more error for the time than
    giving back what is left; otherwise at once float32."""
    weighed = list[tuple[float, Step]]()
    for name, form in symmetric.items():
        other = (asymmetric or {}).get(name)
        whole = form.error**2 / max(form.saved, LEAST)
        if other is not None:
            first = (form.error**2 - other.error**2) / max(form.saved - other.saved, LEAST)
            second = other.error**2 / max(other.saved, LEAST)
            if first > second:
                weighed.append((first, Step(name, asymmetric=True)))
                whole = second
        weighed.append((whole, Step(name)))
    return Cut(tuple(step for _, step in sorted(weighed, key=lambda pair: pair[0], reverse=True)))


def cut(every: Cut, holds: Callable[[Cut], bool], finer: Callable[[], Cut] | None = None) -> Cut:
    """As few steps are taken as lets the drop hold: by halves, as the drop is taken to shrink with each. `finer` are
    the steps where not all layers can be in bytes with symmetric weights."""
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
