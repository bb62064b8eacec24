"""What is given back to float32: what costs the most error for the time that it saves, until the drop holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Cut:
    """The layers in the `order` in which they are given back to float32, of which the first `given_back` are."""

    order: tuple[str, ...]
    given_back: int = 0

    @property
    def wide(self) -> tuple[str, ...]:
        """The layers that were given back."""
        return self.order[: self.given_back]

    @property
    def narrow(self) -> frozenset[str]:
        """The layers that multiply bytes."""
        return frozenset(self.order[self.given_back :])

    def giving_back(self, count: int) -> Cut:
        return replace(self, given_back=count)


def ordered(layers: Sequence[str], errors: Mapping[str, float], saved: Mapping[str, float]) -> Cut:
    """None given back, those first whose squared error is the largest for the seconds that they save."""
    least = 1e-12
    return Cut(tuple(sorted(layers, key=lambda name: errors[name] ** 2 / max(saved[name], least), reverse=True)))


def cut(every: Cut, holds: Callable[[Cut], bool]) -> Cut:
    """As few are given back as lets the drop hold: by halves, as the drop is taken to shrink with each."""
    if holds(every):
        return every
    too_few, enough = 0, len(every.order)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if holds(every.giving_back(middle)):
            enough = middle
        else:
            too_few = middle
    return every.giving_back(enough)
