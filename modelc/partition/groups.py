"""Groups of Pieces that become Tasks: what each needs, what leaves it, and an order in which they can run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

from numpy.typing import NDArray

from modelc.partition.pieces import Piece
from modelc.partition.views import Place


@dataclass(frozen=True)
class Work:
    """Pieces without what is a view, in order; where every value is; which values other Pieces write it through."""

    pieces: tuple[Piece, ...]
    places: Mapping[str, Place]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    made_of: Mapping[str, tuple[str, ...]]  # a moved value -> the values that its elements come from
    constants: Mapping[str, NDArray[Any]]
    kept: frozenset[str]  # values that something else than a Piece needs: outputs, sources of views, parts of Concats


class Groups:
    """Groups of Pieces, at first one each, which are merged."""

    def __init__(self, work: Work) -> None:
        self.work, self.pieces = work, work.pieces
        self.writer = {name: k for k, p in enumerate(self.pieces) for name in p.writes}
        self.readers: dict[str, set[int]] = {}
        for k, p in enumerate(self.pieces):
            for name in p.reads:
                self.readers.setdefault(name, set()).add(k)
        memo: dict[str, frozenset[int]] = {}
        self.needs = [frozenset(j for name in p.reads for j in self._writers(name, memo)) for p in self.pieces]
        self.group = list(range(len(self.pieces)))
        self.members: dict[int, list[int]] = {k: [k] for k in range(len(self.pieces))}

    def _writers(self, name: str, memo: dict[str, frozenset[int]]) -> frozenset[int]:
        """The Pieces that write the elements of a value."""
        if name not in memo:
            found = frozenset((self.writer[name],)) if name in self.writer else frozenset()
            for source in self.work.made_of.get(name, ()):
                found |= self._writers(source, memo)
            memo[name] = found
        return memo[name]

    def depends(self, needs: Iterable[int], members: Iterable[int]) -> bool:
        """Whether one of the Pieces `needs`, or what it waits for (whole groups), is among `members`."""
        targets = set(members)
        todo, seen = list(needs), set[int]()
        while todo:
            k = todo.pop()
            if k in targets:
                return True
            g = self.group[k]
            if g in seen:
                continue
            seen.add(g)
            for m in self.members[g]:
                if m in targets:
                    return True
                todo += self.needs[m] - set(self.members[g])
        return False

    def leaving(self, members: Iterable[int]) -> list[str]:
        """The values that others need of what `members` write."""
        own = set(members)
        return [
            name
            for k in own
            for name in self.pieces[k].writes
            if name in self.work.kept or self.readers.get(name, set()) - own
        ]

    def merge(self, members: list[int]) -> None:
        first = self.group[members[0]]
        every = sorted({m for k in members for m in self.members[self.group[k]]})
        for g in {self.group[k] for k in members} - {first}:
            del self.members[g]
        self.members[first] = every
        for m in every:
            self.group[m] = first

    def anchor_first(self, members: list[int]) -> list[int]:
        """The group's Pieces in order, the one that reduces as early as it can be."""
        before: set[int] = set()
        todo = [k for k in members if self.pieces[k].reduces]
        while todo:
            k = todo.pop()
            before.add(k)
            todo += self.needs[k] & set(members)
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
