"""Some elements of what Blocks compute, and nothing else: in float64, with the bound of rounding beside (rounding.py).

Asked for elements of a buffer, the evaluator finds which points of which Block write them, evaluates the body there and
asks for the elements that it reads, until it comes to arrays that are known. Elements are lists of S indices; a
reduction of K points is S x K; contractions are matrix products (products.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import AGGREGATIONS, AnyBlock, Block, OpaqueBlock
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, Var, conjunction, loads
from modelc.ir.interpret import evaluate
from modelc.partition.half_sums import SMALLEST
from modelc.verify.kernels.inverse import CannotSay, Index, Inverse
from modelc.verify.kernels.products import Factors, factors_of, matrix_products, rows_of
from modelc.verify.kernels.rounding import (
    Rounded,
    exact,
    extreme,
    is_float,
    multiplied,
    operate,
    summed,
)

Array = NDArray[Any]
Order = tuple[int, ...]
LAST: Order = (1 << 62,)
GRID = 1 << 20  # points that are evaluated at once
MANY_READS = 16  # of a map, which are collected before they are evaluated
ROWS = 1 << 22  # elements of a factor that are read at once
REMEMBERED = 1 << 26  # elements of a buffer whose values are kept, at most: pages that are not touched take no memory
OPERATION = 1 << 10  # elements that take as long as the fixed part of one operation on arrays
MULTIPLIED = 1 / 64  # of an element's work: one multiplication inside a product of matrices
DENSE = 5  # sorting so many places takes as long as looking through 2^DENSE times as many elements
FEW_MEMBERS = 4  # of a group of samples that have iterators of both factors in common, for which rows are not shared


@dataclass(frozen=True)
class Definitions:
    """Where numbers come from: known `arrays` by buffer, in logical shape; what else is computed by `writers`, the
    Blocks that write a buffer with their places in the order of execution. `buffer` gives dtype and shape. `short`:
    functions may be those for results in bfloat16. `roundoff`: the relative error of known numbers of float32, where
    they are rounded before they are multiplied. `halves`: products are added up in float16."""

    arrays: Mapping[str, Array]
    writers: Callable[[str], Sequence[tuple[Order, AnyBlock]]]
    buffer: Callable[[str], tuple[str, tuple[int, ...]]]
    opaque: Mapping[str, Callable[..., tuple[Array, ...]]]
    short: bool = False
    roundoff: float = 0.0
    halves: bool = False


@dataclass
class _Memory:
    """Elements of one buffer that are there: values, sigma, bias; whether any of these is not 0."""

    value: Array
    sigma: Array
    bias: Array
    there: Array
    varies: bool = False
    biased: bool = False

    @classmethod
    def of(cls, dtype: str, count: int) -> _Memory:
        kind = np.dtype(np.float64) if is_float(dtype) else DTYPES[dtype]
        return cls(np.zeros(count, kind), np.zeros(count), np.zeros(count), np.zeros(count, bool))

    def put(self, place: Array, made: Rounded) -> None:
        self.value[place] = made.value
        if made.sigma is not None:
            self.sigma[place], self.varies = made.sigma, True
        if made.bias is not None:
            self.bias[place], self.biased = made.bias, True
        self.there[place] = True

    def get(self, place: Array, dtype: str) -> Rounded:
        sigma = self.sigma[place] if self.varies else None
        return Rounded(self.value[place], dtype, sigma, self.bias[place] if self.biased else None)


@dataclass(frozen=True)
class _Part:
    """Elements that write `number` of a Block makes: which of those that are asked for, and by which points."""

    number: int
    at: Array
    points: dict[str, Array]


@dataclass
class Evaluator:
    """Evaluates elements by `definitions`; at most `budget` points in all. `work` counts what it took, in operations on
    one element: the same number on every machine."""

    definitions: Definitions
    budget: int
    spent: int = 0
    work: float = 0.0
    _memory: dict[tuple[str, Order], _Memory] = field(default_factory=dict)
    _inverses: dict[tuple[int, int], Inverse] = field(default_factory=dict)
    _whole: dict[tuple[str, Order], dict[str, Array]] = field(default_factory=dict)
    _blocks: list[Block] = field(default_factory=list)  # whose ids are keys of _inverses

    def elements(self, buffer: str, index: Index, before: Order = LAST) -> Rounded:
        """The elements of `buffer` at `index`, arrays of one length, as Blocks before `before` leave them. Raises
        CannotSay."""
        array = self.definitions.arrays.get(buffer)
        if array is not None:
            return self._read(buffer, array, index)
        writers = [(order, block) for order, block in self.definitions.writers(buffer) if order < before]
        if not writers:
            raise CannotSay(f"{buffer!r} is computed by nothing that is known")
        dtype, shape = self.definitions.buffer(buffer)
        flat = np.ravel_multi_index(index, shape) if shape else np.zeros(len(index[0]) if index else 1, np.int64)
        if prod(shape) > REMEMBERED:
            places, back = np.unique(flat, return_inverse=True)
            made = self._written(buffer, writers, dtype, _unravelled(places, shape), places.size)
            return made.get(back.reshape(-1), dtype)
        memory = self._remembered(buffer, writers)
        missing = flat[~memory.there[flat]]
        if missing.size:
            self._fill(memory, buffer, writers, _distinct(missing, prod(shape)))
        return memory.get(flat, dtype)

    def _remembered(self, buffer: str, writers: Sequence[tuple[Order, AnyBlock]]) -> _Memory:
        key = (buffer, writers[-1][0])
        if key not in self._memory:
            dtype, shape = self.definitions.buffer(buffer)
            self._memory[key] = _Memory.of(dtype, prod(shape))
        return self._memory[key]

    def _fill(self, memory: _Memory, buffer: str, writers: Sequence[tuple[Order, AnyBlock]], missing: Array) -> None:
        dtype, shape = self.definitions.buffer(buffer)
        if missing.size:
            made = self._written(buffer, writers, dtype, _unravelled(missing, shape), missing.size)
            memory.put(missing, made.get(np.arange(missing.size), dtype))

    def _read(self, buffer: str, array: Array, index: Index) -> Rounded:
        elements = exact(np.asarray(array[index]), self.definitions.buffer(buffer)[0])
        if self.definitions.roundoff and elements.dtype == "float32":
            least = SMALLEST if self.definitions.halves else 0.0
            return replace(elements, sigma=self.definitions.roundoff * np.maximum(np.abs(elements.value), least))
        return elements

    def _written(
        self, buffer: str, writers: Sequence[tuple[Order, AnyBlock]], dtype: str, index: Index, count: int
    ) -> _Memory:
        """What the last of `writers` that writes each of `count` elements makes of it."""
        made = _Memory.of(dtype, count)
        for order, block in reversed(writers):
            if made.there.all():
                break
            if isinstance(block, OpaqueBlock):
                at = np.flatnonzero(~made.there)
                made.put(at, exact(self._opaque(order, block)[buffer][tuple(i[at] for i in index)], dtype))
                continue
            parts = list(self._parts(order, block, buffer, index, made))
            self._prepare(order, block, parts)
            for part in parts:
                made.put(part.at, self._computed(order, block, part))
        if not made.there.all():  # nobody writes it: it may hold anything
            made.bias[~made.there], made.biased = np.inf, True
        return made

    def _parts(self, order: Order, block: Block, buffer: str, index: Index, made: _Memory) -> Iterator[_Part]:
        """The elements that each write of `block` is the last to make."""
        taken = made.there.copy()
        for number in reversed(range(len(block.writes))):
            if block.writes[number].buffer != buffer:
                continue
            at = np.flatnonzero(~taken)
            self.work += OPERATION + at.size * len(block.iters)
            written, points = self._inverse(block, number).points(tuple(i[at] for i in index), at.size)
            at, points = at[written], {name: values[written] for name, values in points.items()}
            if block.aggregation == "assign" and block.where and at.size:
                holds = self._values(conjunction(block.where), points, at.size, order)
                if holds.bias is not None:
                    raise CannotSay(f"where {block.name} writes is not certain")
                inside = np.broadcast_to(holds.value, at.shape)
                at, points = at[inside], {name: values[inside] for name, values in points.items()}
            taken[at] = True
            if at.size:
                yield _Part(number, at, points)

    def _prepare(self, order: Order, block: Block, parts: Sequence[_Part]) -> None:
        """Evaluates what the maps of all parts read, buffer by buffer and not read by read."""
        if block.aggregation != "assign" or sum(len(loads(block.body[part.number])) for part in parts) < MANY_READS:
            return
        asked: dict[str, list[Array]] = {}
        for part in parts:
            for read in dict.fromkeys(loads(block.body[part.number])):
                _, shape = self.definitions.buffer(read.buffer)
                if read.buffer in self.definitions.arrays or not 0 < prod(shape) <= REMEMBERED:
                    continue
                if any(isinstance(x, Load) for i in read.indices for x in loads(i)):
                    continue
                places = [evaluate(i, part.points, {}) for i in read.indices]
                inside = [np.minimum(np.maximum(i, 0), n - 1) for i, n in zip(places, shape, strict=True)]
                flat = np.ravel_multi_index(inside, shape) if shape else np.zeros(1, np.int64)
                asked.setdefault(read.buffer, []).append(np.asarray(flat).reshape(-1))
        for buffer, places in asked.items():
            writers = [(at, by) for at, by in self.definitions.writers(buffer) if at < order]
            if writers:
                memory = self._remembered(buffer, writers)
                missing = [flat[~memory.there[flat]] for flat in places]
                size = prod(self.definitions.buffer(buffer)[1])
                self._fill(memory, buffer, writers, _distinct(np.concatenate(missing), size))

    def _opaque(self, order: Order, block: OpaqueBlock) -> dict[str, Array]:
        """All that an opaque Block writes, of inputs that are exact."""
        key = (block.name, order)
        if key not in self._whole:
            meaning = self.definitions.opaque.get(block.meaning)
            if meaning is None:
                raise CannotSay(f"{block.meaning} is control flow, whose kernels are judged by themselves")
            arrays = []
            for name in block.inputs:
                dtype, shape = self.definitions.buffer(name)
                grid = tuple(axis.reshape(-1) for axis in np.indices(shape)) if shape else ()
                read = self.elements(name, grid, order)
                if not read.exact:
                    raise CannotSay(f"{block.meaning} is of numbers that rounding may have moved")
                arrays.append(read.value.astype(DTYPES[dtype], copy=False).reshape(shape))
            self._whole[key] = dict(zip(block.outputs, meaning(dict(block.attrs), *arrays), strict=False))
        return self._whole[key]

    # --- Blocks ---------------------------------------------------------------------------------------------------

    def _computed(self, order: Order, block: Block, part: _Part) -> Rounded:
        """What `block` makes of a part."""
        count = part.at.size
        if block.aggregation != "assign":
            return self._reduction(order, block, part.number, part.points, count)
        pieces = []
        for k in range(0, count, GRID):
            points = {name: values[k : k + GRID] for name, values in part.points.items()}
            pieces.append(self._values(block.body[part.number], points, min(GRID, count - k), order))
        return _joined(pieces, self.definitions.buffer(block.writes[part.number].buffer)[0])

    def _inverse(self, block: Block, number: int) -> Inverse:
        key = (id(block), number)
        if key not in self._inverses:
            self._blocks.append(block)
            self._inverses[key] = Inverse(block, block.writes[number])
        return self._inverses[key]

    def _values(self, e: Expr, env: Mapping[str, Array], count: int, order: Order) -> Rounded:
        """`e` at `count` points."""
        self._spend(count)
        made = self._evaluate(e, env, order, {})
        return Rounded(*_broadcast(made, (count,)))

    def _spend(self, points: int) -> None:
        self.spent += points
        if self.spent > self.budget:
            raise CannotSay("it would take too long")

    def _evaluate(self, e: Expr, env: Mapping[str, Array], order: Order, shared: dict[Expr, Rounded]) -> Rounded:
        if isinstance(e, Var):
            return Rounded(env[e.name], "int64")
        if isinstance(e, Const):
            return exact(np.asarray(e.value, DTYPES[e.dtype]), e.dtype)
        if e in shared:
            return shared[e]
        if isinstance(e, Load):
            made = self._load(e, env, order, shared)
        else:
            direct = _direct(e)
            operands = [self._evaluate(a, env, order, shared) for a in direct.args]
            made = operate(direct, operands, self.definitions.short)
        self.work += OPERATION + made.value.size
        shared[e] = made
        return made

    def _load(self, e: Load, env: Mapping[str, Array], order: Order, shared: dict[Expr, Rounded]) -> Rounded:
        dtype, shape = self.definitions.buffer(e.buffer)
        if not all(shape):
            return exact(np.zeros((), DTYPES[dtype]), dtype)
        places = [self._evaluate(i, env, order, shared) for i in e.indices]
        index = tuple(np.minimum(np.maximum(p.value, 0), n - 1) for p, n in zip(places, shape, strict=True))
        array = self.definitions.arrays.get(e.buffer)
        if array is not None:
            made = self._read(e.buffer, array, index)
        else:
            whole = np.broadcast_shapes(*(i.shape for i in index))
            made = self.elements(e.buffer, tuple(np.broadcast_to(i, whole).reshape(-1) for i in index), order)
            errors = (None if x is None else x.reshape(whole) for x in (made.sigma, made.bias))
            made = Rounded(made.value.reshape(whole), made.dtype, *errors)
        moved = [p.bias for p in places if p.bias is not None]
        if moved:  # where it is read is not certain
            bias = np.where(sum(moved) > 0, np.inf, 0.0 if made.bias is None else made.bias)
            made = replace(made, bias=np.broadcast_to(bias, made.value.shape))
        return made

    # --- reductions -----------------------------------------------------------------------------------------------

    def _reduction(self, order: Order, block: Block, number: int, points: dict[str, Array], count: int) -> Rounded:
        extents = [i.extent for i in block.reduction]
        depth = prod(extents)
        dtype = self.definitions.buffer(block.writes[number].buffer)[0]
        if not count:
            return exact(np.zeros(0, DTYPES[dtype]), dtype)
        flat = [axis.reshape(1, -1) for axis in np.indices(extents)] if extents else []
        reduced = dict(zip((i.name for i in block.reduction), flat, strict=True))
        factors = factors_of(block)
        if factors is not None and depth:
            made = self._contraction(order, block, factors, points, reduced, count, depth)
            if made is not None:
                return made
        rows = max(1, GRID // max(depth, 1))
        parts = []
        for k in range(0, count, rows):
            part = {name: values[k : k + rows, None] for name, values in points.items()}
            shape = (min(rows, count - k), depth)
            self._spend(prod(shape))
            terms = [self._terms(order, block, {**part, **reduced}, shape, n) for n in range(len(block.body))]
            parts.append(self._folded(block, terms, number))
        return _joined(parts, dtype)

    def _terms(
        self, order: Order, block: Block, env: Mapping[str, Array], shape: tuple[int, ...], number: int
    ) -> Rounded:
        """What is combined: body `number` over samples and reduction; the identity where a condition fails."""
        dtypes = tuple(self.definitions.buffer(w.buffer)[0] for w in block.writes)
        terms = Rounded(*_broadcast(self._evaluate(block.body[number], env, order, {}), shape))
        if not block.where:
            return terms
        holds = Rounded(*_broadcast(self._evaluate(conjunction(block.where), env, order, {}), shape))
        if holds.bias is not None:
            raise CannotSay(f"what {block.name} adds up is not certain")
        inside = holds.value.astype(bool)
        identity = AGGREGATIONS[block.aggregation].identity(dtypes)[number]
        value = np.where(inside, terms.value, np.asarray(identity.value, terms.value.dtype))
        sigma, bias = (None if x is None else np.where(inside, x, 0.0) for x in (terms.sigma, terms.bias))
        return Rounded(value, terms.dtype, sigma, bias)

    def _folded(self, block: Block, terms: Sequence[Rounded], number: int) -> Rounded:
        name = block.aggregation
        if name == "add":
            product = isinstance(block.body[0], Op) and block.body[0].name == "mul"
            return summed(terms[0], 1, self.definitions.halves and product)
        if name == "mul":
            return multiplied(terms[0], 1)
        if name in ("max", "min"):
            return extreme(terms[0], 1, name == "max")
        return _chosen(terms, number, greatest=name == "argmax")

    def _contraction(
        self,
        order: Order,
        block: Block,
        factors: Factors,
        points: dict[str, Array],
        reduced: Mapping[str, Array],
        count: int,
        depth: int,
    ) -> Rounded | None:
        """Sums of products as matrix products; None where samples are too scattered for it, or not finite."""
        first, second = (rows_of(points, names) for names in (factors.first_names, factors.second_names))
        if count > 1 and max(len(first.rows), len(second.rows)) * depth > ROWS:
            # the longer side is halved, so that one half of its rows is read at a time
            longer = first if len(first.rows) >= len(second.rows) else second
            place = np.argsort(longer.of, kind="stable")
            halves = (place[: count // 2], place[count // 2 :])
            parts = [
                self._reduction(order, block, 0, {n: v[half] for n, v in points.items()}, len(half)) for half in halves
            ]
            return _taken(_joined(parts, parts[0].dtype), np.argsort(np.concatenate(halves)))
        groups = rows_of(points, factors.shared)
        if len(groups.rows) * FEW_MEMBERS > count and len(groups.rows) > 1:
            return None
        sides = []
        factors_of_rows = zip((first, second), (factors.first, factors.second), factors.guards, strict=True)
        for rows, factor, guard in factors_of_rows:
            env = {name: rows.rows[:, k, None] for k, name in enumerate(rows.names)} | dict(reduced)
            shape = (len(rows.rows), depth)
            self._spend(prod(shape))
            side = Rounded(*_broadcast(self._evaluate(factor, env, order, {}), shape))
            if guard is not None:
                holds = self._evaluate(guard, env, order, {})
                if not holds.exact:
                    return None
                inside = np.broadcast_to(holds.value, shape)
                zero = side.value.dtype.type(0)
                errors = (None if x is None else np.where(inside, x, 0.0) for x in (side.sigma, side.bias))
                side = Rounded(np.where(inside, side.value, zero), side.dtype, *errors)
            sides.append(side)
        if not all(np.isfinite(np.asarray(s.value, np.float64)).all() for s in sides):
            return None
        self.work += OPERATION + MULTIPLIED * depth * len(first.rows) * len(second.rows)
        return matrix_products(sides[0], sides[1], first.of, second.of, groups.of, count, self.definitions.halves)


# --- small ----------------------------------------------------------------------------------------------------------


def _direct(e: Op) -> Op:
    """A cast of a cast to whole numbers that are as wide as one cast: what wraps on the way wraps back."""
    inner = e.args[0]
    if e.name != "cast" or not isinstance(inner, Op) or inner.name != "cast":
        return e
    kinds = [DTYPES[str(dtype)] for dtype in (e.dtype, inner.dtype)]
    whole = all(kind.kind in "iu" for kind in kinds) and kinds[0].itemsize <= kinds[1].itemsize
    return Op("cast", inner.args, e.dtype) if whole else e


def _chosen(terms: Sequence[Rounded], number: int, greatest: bool) -> Rounded:
    """The best of (value, place) pairs; of equal ones the lower place. The place is not certain where another value is
    as near as rounding."""
    values, places = terms
    best = extreme(values, 1, greatest)
    if number == 0:
        return best
    at = best.value[:, None]
    place = np.where(values.value == at, places.value, np.iinfo(np.int64).max).min(axis=1)
    if values.exact:
        return Rounded(place.astype(places.value.dtype), places.dtype)
    near = np.abs(values.value - at) <= values.bound + np.broadcast_to(best.bound, best.value.shape)[:, None]
    open_ = near.sum(axis=1) > 1
    return Rounded(place.astype(places.value.dtype), places.dtype, None, np.where(open_, np.inf, 0.0))


def _broadcast(x: Rounded, shape: tuple[int, ...]) -> tuple[Array, str, Array | None, Array | None]:
    sigma, bias = (None if part is None else np.broadcast_to(part, shape) for part in (x.sigma, x.bias))
    return np.broadcast_to(x.value, shape), x.dtype, sigma, bias


def _taken(x: Rounded, at: Array) -> Rounded:
    return Rounded(x.value[at], x.dtype, *(None if part is None else part[at] for part in (x.sigma, x.bias)))


def _joined(parts: Sequence[Rounded], dtype: str) -> Rounded:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return exact(np.zeros(0, DTYPES[dtype]), dtype)
    errors = []
    for given in ([p.sigma for p in parts], [p.bias for p in parts]):
        filled = [np.zeros(p.value.shape) if x is None else x for p, x in zip(parts, given, strict=True)]
        errors.append(None if all(x is None for x in given) else np.concatenate(filled))
    return Rounded(np.concatenate([p.value for p in parts]), parts[0].dtype, *errors)


def _distinct(places: Array, size: int) -> Array:
    """The distinct ones of places in a buffer of `size` elements, in order."""
    if places.size < size >> DENSE:
        return np.unique(places)
    mask = np.zeros(size, bool)
    mask[places] = True
    return np.flatnonzero(mask)


def _unravelled(flat: Array, shape: tuple[int, ...]) -> Index:
    return np.unravel_index(flat, shape) if shape else ()
