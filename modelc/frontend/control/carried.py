"""What a loop that is left to a run carries: values that keep dtype and shape. Where a size depends on data (sizes.py)
the shape is the most that there can be, before and after every iteration, and the loop carries the count beside it.
What becomes larger by as much in every iteration has room for the most iterations, where their number is bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from modelc.errors import ModelError
from modelc.frontend.building.bodies import Body
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.merged import Size, extended, most_of, number, within
from modelc.frontend.building.sizes import refuse, whole
from modelc.ir.graph import Value
from modelc.ops.found import ROOM

UNBOUNDED = "what it carries may not be larger after each iteration, for nothing bounds it"
TRIES = 6  # after so many imports of a body the bounds of what it carries have to stay as they are


@dataclass
class _Kind:
    """The form of a state: along some axes there is as much as a count from outside says, in every iteration; along
    others as much as a count says that is carried, its `own`."""

    shape: list[int]
    counts: dict[int, str]
    own: dict[int, str] = field(default_factory=dict)

    @property
    def sizes(self) -> dict[int, str]:
        return {**self.counts, **self.own}


@dataclass
class _Count:
    """A count that a loop carries: what it is at first, and by how much at most an iteration makes it larger, where
    there is room for all iterations."""

    first: Size
    growth: int = 0


@dataclass(frozen=True)
class Carried:
    """A body and what it carries: `states` are what the loop begins with, `given` what the body takes for them and
    `results` what it gives for the next iteration; the last of all three are the `counts`. `sizes` of every state: by
    axis a count from outside, or one of those."""

    body: Body
    states: tuple[str, ...]
    given: tuple[str, ...]
    results: tuple[str, ...]
    counts: tuple[str, ...]
    sizes: tuple[dict[int, str], ...]


def carried(
    b: Builder,
    n: OnnxNode,
    states: Sequence[str],
    imported: Callable[[Sequence[Value]], Body | None],
    ends: Callable[[Body], Sequence[str]],
    iterations: int = 0,
) -> Carried | str | None:
    """Imports a body until what it carries keeps its form: `imported` does so for given states, `ends` says which of
    its results these become, and `iterations` how many there are at most, where that is known. None where something in
    it is lacking; a sentence where a state does not keep its form."""
    kinds = [_Kind(list(b.shape(x)), dict(b.sizes.of(x))) for x in states]
    began: dict[str, _Count] = {}
    change = ""
    for _ in range(TRIES):
        given = [like(b, n, x, kind) for x, kind in zip(states, kinds, strict=True)]
        names = set(b.node_names)
        try:
            body = imported(given)
        except ModelError as error:
            if change:
                return f"{change}: {error}"
            raise
        if body is None:
            return None
        results = ends(body)
        change = change or _change(b, given, results)
        if any(_kind_of(b, x) != _kind_of(b, state.name) for state, x in zip(given, results, strict=True)):
            return f"{change}: what it carries has to keep its dtype and its number of dimensions"
        last = _joined(b, n, states, kinds, began, results, iterations)
        if last is not None:
            return _finished(b, n, states, kinds, began, body, [x.name for x in given], results, last)
        b.node_names = names
    return f"{change}: {UNBOUNDED}"


def _kind_of(b: Builder, x: str) -> tuple[str, int]:
    return b.value(x).dtype, len(b.shape(x))


def _change(b: Builder, given: Sequence[Value], results: Sequence[str]) -> str:
    """What a body makes of the form of a state."""
    for state, result in zip(given, results, strict=True):
        before, after = (f"{v.dtype}{list(v.shape)}" for v in (state, b.value(result)))
        if before != after:
            return f"its body takes {before} and gives {after}"
    return "its body makes another size of what it takes"


def like(b: Builder, n: OnnxNode, x: str, kind: _Kind | None = None) -> Value:
    """What a body is given of `x`: its data is not known. `kind` is another form than its own."""
    value = Value(b.fresh(f"{n.name}/{x}"), b.value(x).dtype, tuple(kind.shape) if kind else b.shape(x))
    b.values[value.name] = value
    b.sizes.give(value.name, kind.sizes if kind else b.sizes.of(x))
    return value


def _joined(
    b: Builder,
    n: OnnxNode,
    states: Sequence[str],
    kinds: Sequence[_Kind],
    began: dict[str, _Count],
    results: Sequence[str],
    iterations: int,
) -> dict[str, Size] | None:
    """Lets states have the form of what they become, too. Where they have it already: what every count that is carried
    becomes."""
    settled = True
    last: dict[str, Size] = {}
    groups: dict[tuple[Size, Size], str] = {}
    for x, kind, result in zip(states, kinds, results, strict=True):
        for axis, (extent, after) in enumerate(zip(kind.shape, b.shape(result), strict=True)):
            before = kind.sizes.get(axis)
            size: Size = b.sizes.of(result).get(axis, after)
            if axis not in kind.own and size == (extent if before is None else before) and after <= extent:
                continue
            same = axis in kind.own and last.setdefault(kind.own[axis], size) == size
            if same and after <= extent + began[kind.own[axis]].growth:
                continue
            settled = False
            if same:
                kind.shape[axis] = _room(b, began[kind.own[axis]], extent, after, iterations)
                continue
            first = began[kind.own[axis]].first if axis in kind.own else b.sizes.of(x).get(axis, extent)
            kind.counts.pop(axis, None)
            key = (kind.own.get(axis, first), size)
            if key not in groups:
                groups[key] = _new_count(b, n)
                began[groups[key]] = _Count(first)
            kind.own[axis] = groups[key]
            kind.shape[axis] = max(extent, after, ROOM)
    for name in began:
        own = [(kind, axis) for kind in kinds for axis, count in kind.own.items() if count == name]
        most = max([most_of(b, began[name].first), *(kind.shape[axis] for kind, axis in own)])
        b.sizes.bounds[name] = most
        for kind, axis in own:
            kind.shape[axis] = most
    return last if settled else None


def _room(b: Builder, count: _Count, extent: int, after: int, iterations: int) -> int:
    """For how much there is room where an iteration makes `after` of `extent`: for what all of them make, if the next
    look shows that they make it larger by no more than this one."""
    if not iterations or count.growth:
        return after
    count.growth = after - extent
    return max(extent, most_of(b, count.first) + count.growth * iterations)


def _new_count(b: Builder, n: OnnxNode) -> str:
    name = b.fresh(f"{n.name}/carried")
    b.values[name] = Value(name, "int64", ())
    return name


def _finished(
    b: Builder,
    n: OnnxNode,
    states: Sequence[str],
    kinds: Sequence[_Kind],
    began: dict[str, _Count],
    body: Body,
    given: Sequence[str],
    became: Sequence[str],
    last: dict[str, Size],
) -> Carried:
    with within(b, body):
        results = [extended(b, n, _cut(b, n, x, kind.shape), kind.shape) for x, kind in zip(became, kinds, strict=True)]
        results += [_checked(b, n, count, began[count], size) for count, size in last.items()]
        nodes = tuple(b.nodes)
    first = [extended(b, n, x, kind.shape) for x, kind in zip(states, kinds, strict=True)]
    for count in last:
        size = began[count].first
        first.append(size if isinstance(size, str) else b.constant(np.asarray(size, np.int64), f"{n.name}/size"))
    outputs = {}
    for count in last:
        outputs[count] = b.fresh(f"{n.name}/count")
        b.reserved.add(outputs[count])
        b.sizes.bounds[outputs[count]] = b.sizes.bounds[count]
    return Carried(
        Body(nodes, body.given, body.results, body.originals),
        tuple(first),
        (*given, *last),
        tuple(results),
        tuple(outputs.values()),
        tuple({axis: outputs.get(c, c) for axis, c in kind.sizes.items()} for kind in kinds),
    )


def _cut(b: Builder, n: OnnxNode, x: str, shape: Sequence[int]) -> str:
    """The value without what lies beyond `shape`, where no run has anything."""
    own = b.shape(x)
    least = [min(extent, most) for extent, most in zip(own, shape, strict=True)]
    if list(own) == least:
        return x
    numbers = ([0] * len(own), least, range(len(own)))
    bounds = [b.constant(np.asarray(bound, np.int64), f"{x}_bound") for bound in numbers]
    return b.emit(n, "Slice", (whole(b, n, x), *bounds), {}, (b.fresh(f"{x}_cut"),))


def _checked(b: Builder, n: OnnxNode, name: str, count: _Count, size: Size) -> str:
    """What a count becomes in an iteration; a run checks that there is room for it where iterations make it larger."""
    became = number(b, n, size)
    if not count.growth:
        return became
    return b.emit(n, "Bound", (became,), {"most": b.sizes.bounds[name]}, (b.fresh(f"{n.name}/room"),))


def handed_counts(b: Builder, n: OnnxNode, body: Body, given: Sequence[str], result: str) -> dict[int, str]:
    """The counts of what every iteration hands out, stacked: they have to be the same in all."""
    inner = {*given, *(x for node in body.nodes for x in node.outputs)}
    for axis, count in b.sizes.of(result).items():
        if count in inner:
            raise refuse(n, result, axis, "every iteration of a loop hands out another")
    return {axis + 1: count for axis, count in b.sizes.of(result).items()}
