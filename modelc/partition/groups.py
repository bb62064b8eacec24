"""Groups of Pieces that become Tasks: what each needs, what leaves it, and an order in which they can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from numpy.typing import NDArray

from modelc.partition.pieces import Piece
from modelc.partition.views import Region

SEARCHED = 4096  # groups between two, at most, that are looked through for a way from one to the other

Nodes = frozenset[str]  # of a Task
NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Work:
    """Pieces without what is a view, in order; where every value is; which values other Pieces write it through."""

    pieces: tuple[Piece, ...]
    places: Mapping[str, Region]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    made_of: Mapping[str, tuple[str, ...]]  # a moved value -> the values that its elements come from
    part_of: Mapping[str, str]  # a Region that a copy fills -> the value that it is a part of
    constants: Mapping[str, NDArray[Any]]
    kept: frozenset[str]  # values that something else than a Piece needs: outputs, sources of views, parts of Concats
    cuts: frozenset[str] = frozenset()  # those of them with which a Task has to end


class Groups:
    """Groups of Pieces, at first one each, which are merged. `reach` says of a group before which position in the order
    of Pieces all lies that it waits for: no search goes on where everything is too early to be what is looked for."""

    def __init__(self, work: Work) -> None:
        self.work, self.pieces = work, work.pieces
        self.writer = {name: k for k, p in enumerate(self.pieces) for name in p.writes}
        self.readers: dict[str, set[int]] = {}
        for k, p in enumerate(self.pieces):
            for name in p.reads:
                self.readers.setdefault(name, set()).add(k)
        memo: dict[str, frozenset[int]] = {}
        self.needs = [frozenset(j for name in p.reads for j in self._writers(name, memo)) for p in self.pieces]
        self.users: list[list[int]] = [[] for _ in self.pieces]
        self.reach = list(range(len(self.pieces)))
        for k, needs in enumerate(self.needs):
            self.reach[k] = max((k, *(self.reach[j] for j in needs)))
            for j in needs:
                self.users[j].append(k)
        self.group = list(range(len(self.pieces)))
        self.members: dict[int, list[int]] = {k: [k] for k in range(len(self.pieces))}

    def _writers(self, name: str, memo: dict[str, frozenset[int]]) -> frozenset[int]:
        """The Pieces that write the elements of a value."""
        pending = [name]
        while pending:
            current = pending[-1]
            sources = self.work.made_of.get(current, ())
            if missing := [s for s in sources if s not in memo]:
                pending += missing
                continue
            own = (self.writer[current],) if current in self.writer else ()
            memo[current] = frozenset(own).union(*(memo[s] for s in sources))
            pending.pop()
        return memo[name]

    def depends(self, needs: Iterable[int], members: Iterable[int]) -> bool:
        """Whether one of the Pieces `needs`, or what it waits for (whole groups), is among `members`. Taken for granted
        where more than SEARCHED groups are between."""
        targets = set(members)
        first = min(targets)
        pending, seen = list(needs), set[int]()
        while pending:
            k = pending.pop()
            if k in targets:
                return True
            g = self.group[k]
            if g in seen or self.reach[g] < first:
                continue
            seen.add(g)
            own = self.members[g]
            if len(seen) > SEARCHED or not targets.isdisjoint(own):
                return True
            pending += set().union(*(self.needs[m] for m in own)).difference(own)
        return False

    def leaving(self, members: Iterable[int]) -> list[str]:
        """The values that others need of what `members` write."""
        own = set(members)
        return [
            name
            for k in own
            for name in self.pieces[k].writes
            if name in self.work.kept or not self.readers.get(name, NOTHING) <= own
        ]

    def merge(self, members: list[int]) -> None:
        first = self.group[members[0]]
        reach = max(self.reach[self.group[k]] for k in members)
        every = sorted({m for k in members for m in self.members[self.group[k]]})
        for g in {self.group[k] for k in members} - {first}:
            del self.members[g]
        self.members[first] = every
        for m in every:
            self.group[m] = first
        self.reach[first] = reach
        self._reaching(first)

    def _reaching(self, g: int) -> None:
        """What waits for group `g` waits for all that it waits for."""
        pending = [g]
        while pending:
            g = pending.pop()
            for other in {self.group[u] for m in self.members[g] for u in self.users[m]}:
                if self.reach[other] < self.reach[g]:
                    self.reach[other] = self.reach[g]
                    pending.append(other)

    def anchor_first(self, members: list[int]) -> list[int]:
        """The group's Pieces in order, the one that reduces as early as it can be."""
        before: set[int] = set()
        pending = [k for k in members if self.pieces[k].reduces]
        while pending:
            k = pending.pop()
            before.add(k)
            pending += self.needs[k] & set(members)
        return sorted(members, key=lambda k: (k not in before, k))

    def ordered(self) -> list[list[int]]:
        """Groups in topological order; of those that can run, the one whose first Piece comes first."""
        needs = {
            g: {self.group[n] for k in members for n in self.needs[k]} - {g} for g, members in self.members.items()
        }
        waiting = {g: len(n) for g, n in needs.items()}
        users: dict[int, list[int]] = {}
        for g, n in needs.items():
            for other in n:
                users.setdefault(other, []).append(g)
        ready = [(self.members[g][0], g) for g, n in waiting.items() if not n]
        heapify(ready)
        result = []
        while ready:
            _, g = heappop(ready)
            result.append(self.anchor_first(self.members[g]))
            for user in users.get(g, ()):
                waiting[user] -= 1
                if not waiting[user]:
                    heappush(ready, (self.members[user][0], user))
        assert len(result) == len(self.members), "fusion made a cycle"
        return result
