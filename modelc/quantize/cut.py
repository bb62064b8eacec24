"""What is given back to float32: what costs the most error for the time that it saves, until the drop holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from modelc.quantize.measure import Drop


@dataclass(frozen=True)
class Cut:
    """The layers that multiply bytes, those that were given back, in that order, and the drop that is left."""

    narrow: tuple[str, ...]
    given_back: tuple[str, ...]
    drop: Drop


def cut(
    layers: Sequence[str],
    errors: Mapping[str, float],
    saved: Mapping[str, float],
    drop: Callable[[Sequence[str]], Drop],
    limit: float,
) -> Cut:
    """As few of the `layers` are given back as lets `drop` be within the `limit`: by halves, as the drop is taken to
    shrink with each."""
    order = sorted(layers, key=lambda name: errors[name] ** 2 / max(saved[name], 1e-12), reverse=True)

    def without(count: int) -> Cut:
        given_back = order[:count]
        narrow = tuple(name for name in layers if name not in given_back)
        return Cut(narrow, tuple(given_back), drop(narrow))

    best = without(0)
    if best.drop.share <= limit:
        return best
    too_few, enough, best = 0, len(order), without(len(order))
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        tried = without(middle)
        if tried.drop.share <= limit:
            enough, best = middle, tried
        else:
            too_few = middle
    return best
