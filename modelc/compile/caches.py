"""Caches that grow: states of which a run gives back more than it was handed, Concat(past, new) = present.

    past     [1, heads, past length, width]           is the beginning of present, where it lay before
    present  [1, heads, past length + new, width]     lies in memory that has room for the longest
    new      is written behind the past, by whoever computes it: nothing that is there is copied or moved

A package for any size knows the past length itself: it is the length of the cache, which a run makes longer by what is
new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from modelc.errors import ModelError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.steering.specialise import declared_shapes
from modelc.ir.explain import Explained, Unexplained
from modelc.ir.graph import Graph, Grown
from modelc.ir.sizes import Sizes, at, is_sized, most, same, sizes_of, text_of
from modelc.package.spec import FreeSize

SOME = (7, 1, 1, 3)  # new in each of some runs one after the other
FILLING = 4  # runs at most in which a cache is filled

APPENDED = "expected it to be Concat of {past!r} and what is new, and {past!r} to be read by that alone"
INSTEAD = "leave out --state and hand the cache over, or give the dimension a number"


def growing_states(model: Path, states: Collection[str], lengths: Collection[str]) -> dict[str, str]:
    """The states that have one of the dimensions `lengths`, and which one. Raises ModelError where one has two."""
    declared, growing = declared_shapes(read_outline(model).graph), dict[str, str]()
    for state in states:
        names = [dim for dim in declared.get(state) or () if dim in lengths]
        if len(names) > 1:
            raise ModelError(f"--state {state} is open along {' and '.join(map(repr, names))}; a cache grows along one")
        if names:
            growing[state] = str(names[0])
    return growing


@dataclass(frozen=True)
class Caches:
    """Where caches that grow lie, and by how much a run makes each of the lengths longer."""

    grown: tuple[Grown, ...] = ()
    growth: Mapping[str, int] = field(default_factory=dict)

    def placed(self, graph: Graph) -> Graph:
        """A simplified graph with the places of the caches."""
        return replace(graph, grown=self.grown)

    def lengthened(self, free: Sequence[FreeSize]) -> tuple[FreeSize, ...]:
        """The free sizes of a package, of which lengths grow."""
        return tuple(replace(size, growth=self.growth.get(size.name, 0)) for size in free)


def caches_of(
    graphs: Sequence[Graph], states: Mapping[str, str], growing: Mapping[str, str], explained: Explained
) -> Caches:
    """The caches among the `states`, which are `growing` along a dimension each, by the simplified graphs at the
    samples. Raises ModelError for one that does not grow by what is appended to it, or otherwise than another of its
    length."""
    grown, growth = list[Grown](), dict[str, int]()
    for past, dim in growing.items():
        present = states[past]
        said = f"--state {past}={present}"
        axis = _appended(graphs[0], past, present)
        if axis is None:
            raise ModelError(f"{said}: {present!r} is something else: {APPENDED.format(past=past)}; {INSTEAD}")
        try:
            before, after = (
                [explained.number(extents) for extents in zip(*(g.value(name).shape for g in graphs), strict=True)]
                for name in (past, present)
            )
        except Unexplained as wrong:
            raise ModelError(f"{said}: how long {present!r} is cannot be said for every size: {wrong}") from None
        others = [n for k, n in enumerate(after) if k != axis and is_sized(n)]
        if others:
            raise ModelError(
                f"{said}: {present!r} depends on {text_of(others[0])} too, along which a cache does not grow; give "
                "that dimension a number (--dim batch_size=1)"
            )
        (name,) = (size.name for size in sizes_of([before[axis]]))
        longer = after[axis] - before[axis]
        if not same(growth.setdefault(name, longer), longer):
            raise ModelError(f"{said}: another cache of the length {dim!r} grows otherwise in the same run; {INSTEAD}")
        grown.append(Grown(past, present, axis, most(after[axis])))
    return Caches(tuple(grown), growth)


def runs_in_order(free: Sequence[FreeSize]) -> Iterator[Sizes]:
    """Runs one after the other, by which a package is verified whose caches grow; where all are empty, a handle is
    reset. Some at once, each by itself, some more:

        cache 0, 7 new     cache 7, 1 new     cache 8, 1 new     cache 9, 3 new

    and as much at once as is possible, until no more is."""
    lengths = [size for size in free if size.is_length]
    others = [size for size in free if not size.is_length]
    adding = {size.name for length in lengths for size in sizes_of([length.growth])}

    def new(number: int) -> dict[str, int]:
        return {size.name: min(size.most, max(size.least, number)) for size in others}

    def longer(run: Sizes) -> dict[str, int]:
        return {length.name: run[length.name] + at(length.growth, run) for length in lengths}

    held = {length.name: 0 for length in lengths}
    for number in SOME:
        yield (run := {**new(number), **held})
        held = longer(run)
        if any(held[length.name] > length.most for length in lengths):
            break
    held = {length.name: 0 for length in lengths}
    largest = {size.name: size.most if size.name in adding else size.least for size in others}
    for _ in range(FILLING):
        run = {**largest, **held}
        room = min(length.most - held[length.name] for length in lengths)
        if room and any(longer(run)[length.name] > length.most for length in lengths):
            run = {**new(room), **held}
        yield run
        held = longer(run)
        if not room or any(held[length.name] > length.most for length in lengths):
            return


def _appended(graph: Graph, past: str, present: str) -> int | None:
    """The axis along which `present` is `past` and more; None where it is something else, or `past` is read
    otherwise."""
    node = graph.producers().get(present)
    if node is None or node.op != "Concat" or node.inputs[0] != past or past in (*node.inputs[1:], *graph.outputs):
        return None
    if graph.consumers()[past] != [node] or any(past in body.values for n in graph.nodes for body in n.bodies):
        return None
    pairs = zip(graph.value(past).shape, graph.value(present).shape, strict=True)
    longer = [axis for axis, (n, m) in enumerate(pairs) if n != m]
    return longer[0] if len(longer) == 1 else None
