"""What schedules do: the Work of a population, in named quantities of a unit each. Every Sketch says its points' Work,
and terms.py alone makes seconds of it.

A resource's seconds are those in which it would do its part by itself at the rate that the Target states: cycles over
its clock, bytes over a level's bandwidth. All of it is of the busiest core.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
SOURCES = ("second", "third", "memory")  # where bytes come from; of a machine with other levels, the farthest is memory


@dataclass(frozen=True)
class Work:
    """What P schedules do [P], `moving` [P x len(SOURCES)]."""

    computing: Floats  # seconds of arithmetic, of loads from the nearest cache, of loop control
    copying: Floats  # seconds of copies and sums around the arithmetic
    moving: Floats  # seconds of what comes from each level
    exposed: Floats  # the part of computing or moving, of what takes less, that nothing else goes beside
    demanded: Floats  # seconds of moving what nothing prefetches, for which arithmetic waits
    arriving: Floats  # seconds of moving constants that are prefetched while others are worked on
    transferred: Floats  # seconds of moving lines that lie in other cores' caches
    phases: Floats  # times that threads meet, and caches are walked through again
    forks: Floats  # times that other cores are woken and waited for

    @staticmethod
    def of(members: int, **quantities: Floats | float) -> Work:
        """The Work of `members` schedules; quantities that are not given are 0."""
        values: dict[str, Floats] = {}
        for field in fields(Work):
            shape = (members, len(SOURCES)) if field.name == "moving" else (members,)
            values[field.name] = np.broadcast_to(np.asarray(quantities.pop(field.name, 0.0), np.float64), shape)
        if quantities:
            raise ValueError(f"Work has no {', '.join(quantities)}")
        return Work(**values)

    def plus(self, other: Work, times: float) -> Work:
        """That of these schedules, and `times` that of others after them; `exposed`, a share, is as of these."""
        names = [f.name for f in fields(Work) if f.name != "exposed"]
        return replace(self, **{name: getattr(self, name) + times * getattr(other, name) for name in names})

    def take(self, which: NDArray[np.intp]) -> Work:
        """That of some of the schedules."""
        return Work(**{f.name: getattr(self, f.name)[which] for f in fields(Work)})

    @staticmethod
    def join(parts: list[Work]) -> Work:
        """That of all `parts`, one after the other."""
        return Work(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Work)})


def level_of(place: int, levels: int) -> int:
    """The column of SOURCES of what comes from level `place` (0: the second-level cache) of so many."""
    return len(SOURCES) - 1 if place >= levels - 1 else min(place, len(SOURCES) - 2)
