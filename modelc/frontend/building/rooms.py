"""Sizes that a run finds: how much room there is, behind the node that finds, for what it found.

    NonZero -> places [2, 4096], count        the node has room for as much as there can be
    places [2, found_places]                  what is behind it, for as much as there is

A model is imported at several rooms, as at several sizes of its inputs. In a run the room is what was counted, but ROOM
at least. Only what is found outside of branches and loops has a size of its own: there it is one number in a run.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from modelc.errors import ModelError
from modelc.ops.found import ROOM

SPARE = 1  # places that nothing is found for: then there are ROOM at every size
LONGEST = 40  # characters of a size's name


@dataclass
class Rooms:
    """The rooms `given` by name, of which `counts` are the values of the Graph that say what was found; behind other
    nodes there is room for the `most` that is found."""

    given: Mapping[str, int]
    most: dict[str, int] = field(default_factory=dict)
    counts: dict[str, str] = field(default_factory=dict)

    def of(self, count: str, places: int) -> int:
        """The room behind a node that has `places` for what it finds, of which SPARE are for no more. Raises ModelError
        where there are too few."""
        name = _size_name(count, self.most)
        self.most[name] = max(places - SPARE, ROOM)
        if name not in self.given:
            return self.most[name]
        self.counts[name] = count
        if self.given[name] > places:
            raise ModelError(f"{self.given[name]} of {count!r} are looked at; at most {places} are found")
        return self.given[name]


def _size_name(count: str, taken: Container[str]) -> str:
    """The name of a count as one that expressions may have."""
    name = "found_" + re.sub(r"\W", "_", count.removesuffix("_count"), flags=re.ASCII)[-LONGEST:]
    while name in taken:
        name += "_"
    return name
