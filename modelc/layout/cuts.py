"""Where Tasks could end that go on: attention as three Tasks, an epilogue by itself (measuring decides among them)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from modelc.ir.block import Block, Task
from modelc.layout.choice import in_precision
from modelc.layout.convert import LayoutChoice, converted
from modelc.layout.costs import Cost
from modelc.partition.draft import Prepared, drafting
from modelc.partition.pieces import Piece
from modelc.partition.precision import Narrowing


@dataclass(frozen=True)
class Cut:
    """Values that could leave the Tasks that compute them, in each of several equal places; what the Tasks around them
    are estimated to take, in seconds, and how much more if they do leave."""

    values: tuple[str, ...]
    seconds: float
    more: float

    def promise(self, share: float) -> float:
        """What it saves where estimates are wrong by `share`."""
        return share * self.seconds - self.more

    def applied(self, choice: LayoutChoice) -> LayoutChoice:
        return replace(choice, cuts=tuple(dict.fromkeys((*choice.cuts, *self.values))))

    @property
    def says(self) -> str:
        """For people."""
        more = f" and {len(self.values) - 1} more" if len(self.values) > 1 else ""
        return f"{self.values[0]}{more}: a task ends"


def near_cuts(
    graph: Prepared,
    choice: LayoutChoice,
    attention_bytes: int,
    cost: Cost,
    narrowing: Narrowing | None,
    share: float,
    worth: float,
) -> list[Cut]:
    """Cuts at reductions which promise a part `worth` of the whole where estimates are wrong by `share`; what promises
    most first."""
    whole = _Cut(graph, choice, (), attention_bytes, narrowing)
    cost.prepare([task for task in whole.tasks if _is_priced(task)], True)
    total = sum(_seconds(task, cost) for task in whole.tasks)
    cuts: dict[tuple[str, ...], Cut] = {}
    inside = [_inside(group, whole.leaving(group)) for group in whole.groups]
    for place in range(max(map(len, inside), default=0)):
        apart = _Cut(
            graph, choice, [names[place] for names in inside if len(names) > place], attention_bytes, narrowing
        )
        cost.prepare([task for task in apart.tasks if _is_priced(task)], True)
        for olds, news in whole.differing(apart):
            values = tuple(inside[k][place] for k in olds if len(inside[k]) > place)
            before = [whole.tasks[k] for k in olds]
            after = [apart.tasks[k] for k in news]
            key = (str(place), *sorted(task.hash for task in before))
            summed = cuts.get(key, Cut((), 0.0, 0.0))
            seconds = sum(_seconds(task, cost) for task in before)
            more = sum(_seconds(task, cost) for task in after) - seconds
            if values:
                cuts[key] = Cut((*summed.values, *values), summed.seconds + seconds, summed.more + more)
    near = [cut for cut in cuts.values() if cut.promise(share) >= worth * total]
    return sorted(near, key=lambda cut: -cut.promise(share))


def _seconds(task: Task, cost: Cost) -> float:
    return cost.seconds(task) if _is_priced(task) else 0.0


def _is_priced(task: Task) -> bool:
    return all(isinstance(b, Block) for b in task.blocks)


def _inside(group: Sequence[Piece], leaving: Collection[str]) -> list[str]:
    """The values of a Task that one of its Pieces reads and another writes, one of which reduces."""
    reading: dict[str, bool] = {}
    for piece in group:
        for name in piece.reads:
            reading[name] = reading.get(name, False) or piece.reduces
    return [
        name
        for piece in group
        for name in piece.writes
        if name in reading and name not in leaving and (piece.reduces or reading[name])
    ]


class _Cut:
    """A graph in Tasks, with cuts."""

    def __init__(
        self,
        graph: Prepared,
        choice: LayoutChoice,
        cuts: Sequence[str],
        attention_bytes: int,
        narrowing: Narrowing | None,
    ) -> None:
        changed, pieces, layouts = converted(graph.graph, graph.pieces, choice)
        self.draft = drafting(attention_bytes, (*choice.cuts, *cuts))(changed, pieces, layouts)
        self.groups = self.draft.groups
        self.tasks = [bound.task for bound in in_precision(self.draft.program(changed), narrowing).tasks]
        self.owner: Mapping[str, int] = {n: k for k, group in enumerate(self.groups) for p in group for n in p.writes}

    def leaving(self, group: Sequence[Piece]) -> Collection[str]:
        return self.draft.leaving[self.groups.index(tuple(group))]

    def differing(self, other: _Cut) -> list[tuple[list[int], list[int]]]:
        """Tasks of this one and of another that compute the same, each as few as can be, where they are not the
        same."""
        pairs, seen = [], set[int]()
        for start in range(len(self.groups)):
            if start in seen:
                continue
            olds, news = {start}, set[int]()
            while True:
                before = len(olds) + len(news)
                news |= {other.owner[n] for k in olds for p in self.groups[k] for n in p.writes if n in other.owner}
                olds |= {self.owner[n] for k in news for p in other.groups[k] for n in p.writes if n in self.owner}
                if len(olds) + len(news) == before:
                    break
            seen |= olds
            if (len(olds), len(news)) != (1, 1):
                pairs.append((sorted(olds), sorted(news)))
        return pairs
