"""Bounds of the free dimensions that nobody gives any: what the model takes, as far as memory allows.

The model is imported at sizes that are tried, for an import refuses what does not fit: a table of positions that ends,
a map that is added to one of another size. The most of a dimension is the largest that is taken, among powers of two
and the lengths of the model's own tables; the least and the step are the smallest. An If may have a branch
that is not valid at some sizes: then the bounds enclose sizes with the same valid branches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from pathlib import Path

from modelc.compile.opened import Open
from modelc.errors import ModelError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.onnx import import_model
from modelc.frontend.steering.flags import Given, Shapes, looked_at, steered
from modelc.frontend.steering.specialise import Dims, dimension_names
from modelc.ir.graph import Graph

TRIED = (64, 128, 224, 256, 320, 640, 32, 96, 80, 100, 16, 8, 4, 2, 1)  # of a dimension that is no batch
WINDOWS = (512, 256, 64)  # the first is what speech comes in
MOST_ONES = 2
STEPS = (1, 2, 4, 8, 16, 32, 64)
LARGEST, LARGEST_BATCH = 4096, 32
LEAST_BATCH = 4  # of which memory allows fewer is one alone: what is large takes one at a time
ROOM = 1 << 28  # bytes of the two largest values that a run computes: about the memory of a package
WIDE = 4  # times the least: of a range up to that and more the usual size is not the least


@dataclass(frozen=True)
class Taken:
    """What the model is at a size that it takes: the `bytes` of the two largest values that a run computes, the
    `branches` that alone can be run of their If, and the places of `ones`, which operators treat in ways of their
    own."""

    bytes: int
    branches: frozenset[tuple[str, int]]
    ones: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, graph: Graph) -> Taken:
        computed = sorted((value.bytes for value in graph.values.values() if value.data is None), reverse=True)
        places = ((name, axis, n) for name, value in graph.every_value.items() for axis, n in enumerate(value.shape))
        return cls(
            sum(computed[:2]),
            graph.single_branches,
            frozenset((name, axis) for name, axis, n in places if n == 1),
        )


@dataclass
class Bounds:
    """What the model takes of its free dimensions. `open_dims` are their names, `batches` those that are the first of
    every input that has them; `graph_at` imports the model at numbers for them, and raises ModelError."""

    open_dims: tuple[str, ...]
    batches: frozenset[str]
    tables: tuple[int, ...]
    graph_at: Callable[[Mapping[str, int]], Graph]
    known: Mapping[str, int] = field(default_factory=dict)  # numbers that the model is to take
    lengths: Collection[str] = ()  # of caches, which begin empty
    tried: dict[tuple[int, ...], Taken | None] = field(default_factory=dict)
    refused: str = ""  # why the model did not take the first sizes that were tried

    def taken(self, numbers: Mapping[str, int]) -> Taken | None:
        """What the model is at these numbers; None where it does not take them, or where that is too much memory."""
        key = tuple(numbers[name] for name in self.open_dims)
        if key not in self.tried:
            try:
                taken = Taken.of(self.graph_at(numbers))
                self.tried[key] = taken if taken.bytes <= ROOM else None
            except ModelError as wrong:
                self.refused = self.refused or str(wrong)
                self.tried[key] = None
        return self.tried[key]

    def ranges(self) -> dict[str, range]:
        """The range of each dimension. Raises ModelError where none of the sizes that were tried is taken."""
        base = self.base()
        free = {name: self._range(base, name) for name in self.open_dims if name not in self.batches}
        while self.taken({**base, **{name: numbers[-1] for name, numbers in free.items()}}) is None:
            free = {name: _halved(numbers, base[name]) for name, numbers in free.items()}
        free |= {name: self._batch({**base, **{n: r[-1] for n, r in free.items()}}, name) for name in self.batches}
        return {name: free[name] for name in self.open_dims}

    def base(self) -> dict[str, int]:
        """Numbers that the model takes."""
        if self.known and self.taken(self.known) is not None:
            return dict(self.known)
        for batch in (2, 1):
            for number in TRIED:
                numbers = {name: batch if name in self.batches else number for name in self.open_dims}
                if self.taken(numbers) is not None:
                    return numbers
        for numbers in self._with_ones():
            if self.taken(numbers) is not None:
                return numbers
        raise ModelError(
            f"none of the sizes that were tried is taken for {', '.join(map(repr, self.open_dims))}: {self.refused}; "
            "fix them with --dim NAME=N, or say --dim NAME=A..B"
        )

    def _with_ones(self) -> Iterator[dict[str, int]]:
        """Numbers of which some are 1: of dimensions that nobody has named, batches may be anywhere."""
        several = [name for name in self.open_dims if name not in self.batches]
        for count in range(1, min(len(several), MOST_ONES + 1)):
            for ones in combinations(several, count):
                for number in WINDOWS:
                    yield {name: 1 if name in self.batches or name in ones else number for name in self.open_dims}

    def _range(self, base: Mapping[str, int], name: str) -> range:
        number = base[name]
        step = next((s for s in STEPS if number % s == 0 and self._takes(base, name, number + s)), 0)
        if not step:
            return range(number, number + 1)
        takes = partial(self._takes, base, name)
        least = next(filter(takes, _smallest(step, number)), number)
        if name in self.lengths:
            least, step = 0, 1
        most = next(filter(takes, self._largest(step, number)), number)
        usual = self.taken(base)
        if usual is not None and usual.branches:
            below, above = (
                max(_smallest(step, number), default=number),
                min(self._largest(step, number), default=number),
            )
            least = _farthest(number, below, step, takes) if least == number else least
            most = _farthest(number, above, step, takes) if most == number else most
            if most < WIDE * least:  # the usual size is the least, and has to be like others
                alike = partial(self._alike, base, name)
                least, most = (_farthest(number, end, step, alike) for end in (least, most))
        return range(least, most + 1, step)

    def _largest(self, step: int, number: int) -> Iterator[int]:
        """Numbers above one, the largest first: powers of two, and lengths of tables."""
        powers = [LARGEST >> k for k in range(12)]
        numbers = sorted({n // step * step for n in (*powers, *self.tables) if n <= LARGEST}, reverse=True)
        yield from (n for n in numbers if n > number)

    def _batch(self, base: Mapping[str, int], name: str) -> range:
        of_single = self.taken({**base, name: 1})
        most = min(LARGEST_BATCH, ROOM // max(of_single.bytes, 1)) if of_single is not None else 1
        if most < LEAST_BATCH and of_single is not None:
            return range(1, 2)
        most = max(most, base[name]) if most > 1 and self._takes(base, name, 2) else base[name]
        return range(1 if self._takes(base, name, 1) else base[name], 1 + most)

    def _takes(self, base: Mapping[str, int], name: str, number: int) -> bool:
        own, usual = self.taken({**base, name: number}), self.taken(base)
        return own is not None and usual is not None and own.branches == usual.branches

    def _alike(self, base: Mapping[str, int], name: str, number: int) -> bool:
        own, usual = self.taken({**base, name: number}), self.taken(base)
        return own is not None and usual is not None and replace(own, bytes=0) == replace(usual, bytes=0)


def _farthest(number: int, end: int, step: int, taken: Callable[[int], bool]) -> int:
    """The farthest number from one that is `taken` towards the `end`, where what is taken lies in one piece."""
    if taken(end):
        return end
    while abs(end - number) > step:
        middle = number + int((end - number) / 2 / step) * step
        number, end = (middle, end) if taken(middle) else (number, middle)
    return number


def _halved(numbers: range, at_least: int) -> range:
    """About the lower half of a range, with `at_least`, which is in it."""
    most = max(numbers[-1] // 2 // numbers.step * numbers.step, at_least)
    return range(numbers.start, most + 1, numbers.step)


def _smallest(step: int, number: int) -> Iterator[int]:
    """Multiples of the step below a number, the smallest first."""
    at = step
    while at < number:
        yield at
        at *= 2


def default_ranges(
    model: Path,
    partly: Mapping[str, Dims | None],
    open_dims: Sequence[str],
    fixed: tuple[Sequence[Shapes], Mapping[str, Sequence[int]], Mapping[str, Given]],
    known: Mapping[str, int] | None = None,
    lengths: Collection[str] = (),
    growing: Collection[str] = (),
) -> dict[str, range]:
    """The ranges of a model's dimensions `open_dims`, where its inputs have the shapes `partly`; shapes, dimensions and
    constants are `fixed`. `known` are numbers that it is to take, each in its range; `lengths` are of caches that grow,
    which are the inputs `growing`. Raises ModelError."""
    shapes, dims, constants = fixed
    places: dict[str, set[int]] = {name: set() for name in open_dims}
    for extents in partly.values():
        for axis, dim in enumerate(extents or ()):
            if dim in places:
                places[str(dim)].add(axis)

    def graph_at(numbers: Mapping[str, int]) -> Graph:
        given = steered(model, shapes, {**dims, **{name: (n,) for name, n in numbers.items()}}, constants)
        return import_model(model, given.shapes[0], given.constants, growing=growing)

    tables = {n for tensor in read_outline(model).graph.initializer for n in tensor.dims}
    several = len(open_dims) > 1
    batches = frozenset(name for name, axes in places.items() if (axes == {0} and several) or _is_batch(name))
    return Bounds(tuple(open_dims), batches, tuple(tables), graph_at, known or {}, lengths=lengths).ranges()


def ranges_around(model: Path, shapes: Shapes, constants: Mapping[str, Given]) -> dict[str, int | Open]:
    """Of a model's free dimensions the ranges that its inputs of these shapes are in, whose sizes matter most; one that
    is in no range is a number. Raises ModelError, and where an input has no shape."""
    _, partly = looked_at(read_outline(model).graph, {}, {}, constants)
    known: dict[str, int] = {}
    for name, extents in partly.items():
        if extents is None or len(extents) != len(shapes.get(name, ())):
            raise ModelError(f"input {name!r} has no shape of which dimensions could be left open")
        known |= {dim: n for dim, n in zip(extents, shapes[name], strict=True) if isinstance(dim, str)}
    names = dimension_names(partly)
    if missing := [name for name in names if name not in known]:
        raise ModelError(f"no input has the dimension {missing[0]!r} by itself")
    ranges = default_ranges(model, partly, names, ((), {}, constants), known)
    return {name: _around(known[name], numbers) for name, numbers in ranges.items()}


def _around(number: int, numbers: range) -> int | Open:
    """A range in which a number matters most, if it is there; a number alone where the range is too narrow for use."""
    if numbers[-1] < 2 * numbers[0]:
        return number if number in numbers else numbers[0]
    return Open(numbers, (number,) if number in numbers else ())


def _is_batch(name: str) -> bool:
    return name.lower() in {"batch", "batch_size", "n", "bs", "b"}
