"""Some elements of what Blocks compute, and nothing else, by an arithmetic (rounding.py, machine.py).

Asked for elements of a buffer, the evaluator finds which points of which Block write them and which elements these
read, Block by Block from the last to the first, until it comes to arrays that are given; then it computes them from the
first to the last. Elements are lists of S indices; a reduction of K points is S x K; contractions are matrix products
(products.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.block import AGGREGATIONS, AnyBlock, Block, OpaqueBlock
from modelc.ir.evaluate import evaluate, walked
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, conjunction, loads, operations
from modelc.partition.narrow_products import SMALLEST
from modelc.verify.kernels.definitions import Definitions, Order
from modelc.verify.kernels.elements import (
    GRID,
    Memory,
    best,
    broadcast,
    distinct,
    joined,
    reduction_of,
    taken,
    unravelled,
    with_reduction,
)
from modelc.verify.kernels.inverse import CannotSay, Index, Inverse, TakesTooLong
from modelc.verify.kernels.machine import Machine
from modelc.verify.kernels.products import Factors, factors_of, matrix_products, rows_of
from modelc.verify.kernels.rounding import PLACES, Rounded, exact, extreme, has_digits_of, is_float

Array = NDArray[Any]
LAST: Order = (1 << 62,)
ROWS = 1 << 22  # elements of a factor that are read at once
OPERATION = 1 << 10  # elements that take as long as the fixed part of one operation on arrays
MULTIPLIED = 1 / 64  # of an element's work: one multiplication inside a product of matrices
FOLDED = 4  # units of roundoff that a constant may be off by that was computed in its dtype
FEW_MEMBERS = 4  # of a group of samples that have iterators of both factors in common, for which rows are not shared


@dataclass(frozen=True)
class _Part:
    """Elements that write `number` of a Block makes: which of those that are asked for, and by which points."""

    number: int
    at: Array
    points: dict[str, Array]


@dataclass(frozen=True)
class _Writing:
    """The elements of one buffer that are computed together, and the parts that the Blocks which write it make."""

    buffer: str
    memory: Memory
    places: Array
    parts: Sequence[tuple[Order, AnyBlock, _Part]]


@dataclass
class Evaluator:
    """Evaluates elements by `definitions`; at most `budget` points in all. `work` counts what it took, in operations on
    one element: the same number on every machine."""

    definitions: Definitions
    budget: int
    spent: int = 0
    work: float = 0.0
    _memory: dict[tuple[str, Order], Memory] = field(default_factory=dict)
    _inverses: dict[tuple[int, int], Inverse] = field(default_factory=dict)
    _whole: dict[tuple[str, Order], dict[str, Array]] = field(default_factory=dict)
    _blocks: list[Block] = field(default_factory=list)  # whose ids are keys of _inverses

    def elements(self, buffer: str, index: Index, before: Order = LAST) -> Rounded:
        """The elements of `buffer` at `index`, arrays of one length, as Blocks before `before` leave them. Raises
        CannotSay."""
        array = self.definitions.given(buffer)
        if array is not None:
            return self._read(buffer, array, index)
        writers = self._writers(buffer, before)
        shape = self.definitions.buffer(buffer)[1]
        flat = np.ravel_multi_index(index, shape) if shape else np.zeros(len(index[0]) if index else 1, np.int64)
        memory = self._remembered(buffer, writers)
        at, there = memory.at(flat)
        if not there.all():
            for writing in reversed(self._demanded(buffer, writers, flat[~there])):
                self._write(writing)
            at, _ = memory.at(flat)
        return taken(memory.elements, at)

    def _writers(self, buffer: str, before: Order) -> list[tuple[Order, AnyBlock]]:
        writers = [(order, block) for order, block in self.definitions.writers(buffer) if order < before]
        if not writers:
            raise CannotSay(f"{buffer!r} is computed by nothing that is known")
        return writers

    def _remembered(self, buffer: str, writers: Sequence[tuple[Order, AnyBlock]]) -> Memory:
        key = (buffer, writers[-1][0])
        if key not in self._memory:
            self._memory[key] = Memory.of(self.definitions.buffer(buffer)[0])
        return self._memory[key]

    def _read(self, buffer: str, array: Array, index: Index) -> Rounded:
        elements = exact(np.asarray(array[index]), self.definitions.buffer(buffer)[0])
        if self.definitions.stands_for_real(buffer):
            return self._real(elements)
        if self.definitions.roundoff and elements.dtype == "float32":
            least = SMALLEST if self.definitions.analysis.halves else 0.0
            return replace(elements, sigma=self.definitions.roundoff * np.maximum(np.abs(elements.value), least))
        return elements

    # --- what is demanded, from the last Block to the first ---------------------------------------------------------

    def _demanded(self, buffer: str, writers: Sequence[tuple[Order, AnyBlock]], places: Array) -> list[_Writing]:
        """What has to be computed for elements of `buffer`, each before what it is computed from. Elements that are
        read where data says are not among it."""
        asked: dict[tuple[Order, str], list[Array]] = {(writers[-1][0], buffer): [places]}
        demanded: list[_Writing] = []
        while asked:
            last, name = max(asked)
            writers = self._writers(name, (*last, 0))
            memory = self._remembered(name, writers)
            missing = memory.missing(np.concatenate(asked.pop((last, name))))
            if not missing.size:
                continue
            shape = self.definitions.buffer(name)[1]
            parts = self._divided(name, writers, unravelled(missing, shape), missing.size)
            demanded.append(_Writing(name, memory, missing, parts))
            for order, block, part in parts:
                for read, flat in self._reads(block, part):
                    before = self._writers(read, order)
                    asked.setdefault((before[-1][0], read), []).append(flat)
        return demanded

    def _divided(
        self, buffer: str, writers: Sequence[tuple[Order, AnyBlock]], index: Index, count: int
    ) -> list[tuple[Order, AnyBlock, _Part]]:
        """Which of `writers` is the last to write each of `count` elements, and by which points."""
        there = np.zeros(count, bool)
        parts: list[tuple[Order, AnyBlock, _Part]] = []
        for order, block in reversed(writers):
            if there.all():
                break
            if isinstance(block, OpaqueBlock):
                parts.append((order, block, _Part(0, np.flatnonzero(~there), {})))
                there[:] = True
                continue
            for part in self._parts(order, block, buffer, index, there):
                parts.append((order, block, part))
        return parts

    def _parts(self, order: Order, block: Block, buffer: str, index: Index, there: Array) -> Iterator[_Part]:
        """The elements that each write of `block` is the last to make, of those that are not `there`, and then are."""
        for number in reversed(range(len(block.writes))):
            if block.writes[number].buffer != buffer:
                continue
            at = np.flatnonzero(~there)
            self.work += OPERATION + at.size * len(block.iters)
            written, points = self._inverse(block, number).points(tuple(i[at] for i in index), at.size)
            at, points = at[written], {name: values[written] for name, values in points.items()}
            if block.aggregation == "assign" and block.where and at.size:
                holds = self._values(conjunction(block.where), points, at.size, order)
                if holds.bias is not None:
                    raise CannotSay(f"where {block.name} writes is not certain")
                inside = np.broadcast_to(holds.value, at.shape)
                at, points = at[inside], {name: values[inside] for name, values in points.items()}
            there[at] = True
            if at.size:
                yield _Part(number, at, points)

    def _reads(self, block: AnyBlock, part: _Part) -> Iterator[tuple[str, Array]]:
        """The elements that a part of a Block reads of buffers that are computed, at places that no data decides."""
        if isinstance(block, OpaqueBlock):
            for name in block.inputs:
                if self.definitions.given(name) is None:
                    yield name, np.arange(prod(self.definitions.buffer(name)[1]))
            return
        for body, env in self._environments(block, part):
            for read in dict.fromkeys(loads(body)):
                shape = self.definitions.buffer(read.buffer)[1]
                by_data = any(isinstance(x, Load) for i in read.indices for x in loads(i))
                if by_data or not all(shape) or self.definitions.given(read.buffer) is not None:
                    continue
                places = [evaluate(i, env, {}) for i in read.indices]
                inside = [np.minimum(np.maximum(i, 0), n - 1) for i, n in zip(places, shape, strict=True)]
                flat = np.ravel_multi_index(inside, shape) if shape else np.zeros(1, np.int64)
                yield read.buffer, distinct(flat.reshape(-1))

    def _environments(self, block: Block, part: _Part) -> Iterator[tuple[Expr, Mapping[str, Array]]]:
        """The expressions that a part evaluates, and the iterators' values: of a contraction each factor over its own
        rows, of another reduction the body over points x reduction, some points at a time."""
        count = part.at.size
        if block.aggregation == "assign":
            yield block.body[part.number], part.points
            return
        reduced, depth = reduction_of(block)
        factors = self._factors(block)
        for e in block.where:
            yield from ((e, env) for env, _ in with_reduction(part.points, reduced, count, depth))
        if factors is None:
            for e in block.body:
                yield from ((e, env) for env, _ in with_reduction(part.points, reduced, count, depth))
            return
        for factor, names in ((factors.first, factors.first_names), (factors.second, factors.second_names)):
            rows = rows_of(part.points, names)
            points = {name: rows.rows[:, k] for k, name in enumerate(rows.names)}
            yield from ((factor, env) for env, _ in with_reduction(points, reduced, len(rows.rows), depth))

    def _factors(self, block: Block) -> Factors | None:
        """The factors of a contraction, where it is computed as products of matrices: a machine whose order is known
        adds up one by one."""
        if isinstance(self.definitions.analysis, Machine) and self.definitions.order_of(block) is not None:
            return None
        return factors_of(block)

    # --- what is computed, from the first Block to the last -----------------------------------------------------------

    def _write(self, writing: _Writing) -> None:
        """Computes elements and remembers them."""
        dtype = self.definitions.buffer(writing.buffer)[0]
        written, made = [np.zeros(0, np.int64)], [exact(np.zeros(0, DTYPES[dtype]), dtype)]
        for order, block, part in writing.parts:
            written.append(part.at)
            if isinstance(block, OpaqueBlock):
                whole = self._opaque(order, block)[writing.buffer]
                made.append(exact(whole.reshape(-1)[writing.places[part.at]], dtype))
            else:
                made.append(self._computed(order, block, part))
        if sum(at.size for at in written) < writing.places.size:  # nobody writes the others: they may hold anything
            nobody = np.setdiff1d(np.arange(writing.places.size), np.concatenate(written))
            anything = np.zeros(nobody.size, made[0].value.dtype)
            written.append(nobody)
            made.append(Rounded(anything, dtype, None, np.full(nobody.size, np.inf)))
        elements = taken(joined(made, dtype), np.argsort(np.concatenate(written), kind="stable"))
        left = ~writing.memory.at(writing.places)[1]  # some may be there, read where data says
        writing.memory.put(writing.places[left], taken(elements, left))

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
        return joined(pieces, self.definitions.buffer(block.writes[part.number].buffer)[0])

    def _inverse(self, block: Block, number: int) -> Inverse:
        key = (id(block), number)
        if key not in self._inverses:
            self._blocks.append(block)
            self._inverses[key] = Inverse(block, block.writes[number])
        return self._inverses[key]

    def _values(self, e: Expr, env: Mapping[str, Array], count: int, order: Order) -> Rounded:
        """`e` at `count` points."""
        self._spend(count)
        (made,) = self._evaluate([e], env, order)
        return Rounded(*broadcast(made, (count,)))

    def _spend(self, points: int) -> None:
        self.spent += points
        if self.spent > self.budget:
            raise TakesTooLong("it would take too long")

    def _evaluate(self, body: Sequence[Expr], env: Mapping[str, Array], order: Order) -> list[Rounded]:
        """Expressions at the points of `env`."""
        points = {name: Rounded(values, "int64") for name, values in env.items()}
        return walked(body, points, self._constant, partial(self._load, order), self._operate, _operands)

    def _real(self, numbers: Rounded) -> Rounded:
        """Numbers that stand for real ones, of a computation in float64; a machine takes them as they are."""
        if not is_float(numbers.dtype) or self.definitions.analysis.places[numbers.dtype] == PLACES[numbers.dtype]:
            return numbers
        return replace(numbers, bias=FOLDED * 2.0 ** -PLACES[numbers.dtype] * np.abs(numbers.value))

    def _constant(self, e: Const) -> Rounded:
        """A number of an operator or the model, which stands for a real one, as sqrt(2) in a Gelu does, unless it has
        few digits."""
        constant = exact(np.asarray(e.value, DTYPES[e.dtype]), e.dtype)
        few_digits = is_float(e.dtype) and has_digits_of(constant.value, "float16").all()
        return constant if few_digits else self._real(constant)

    def _operate(self, e: Op, args: list[Rounded]) -> Rounded:
        """An operation, of a machine with what is open where operands of a sum or difference may be products that are
        not rounded."""
        direct, analysis = _direct(e), self.definitions.analysis
        made = analysis.operate(direct, args)
        if isinstance(analysis, Machine) and direct.name in ("add", "sub") and is_float(made.dtype):
            for operand, number in zip(direct.args, args, strict=True):
                if self._may_be_product(operand):
                    made = analysis.contracting(made, number.value)
        self.work += OPERATION + made.value.size
        return made

    def _may_be_product(self, e: Expr) -> bool:
        """Whether `e` is a product that is rounded, here or where it was stored in registers."""
        if isinstance(e, Op):
            return e.name == "mul" and not any(isinstance(a, Const) and _is_power_of_two(a) for a in e.args)
        if not isinstance(e, Load) or self.definitions.given(e.buffer) is not None:
            return False
        maps = (b for _, b in self.definitions.writers(e.buffer) if isinstance(b, Block) and b.aggregation == "assign")
        return any(isinstance(body, Op) and self._may_be_product(body) for block in maps for body in block.body)

    def _load(self, order: Order, e: Load, places: list[Rounded]) -> Rounded:
        dtype, shape = self.definitions.buffer(e.buffer)
        if not all(shape):
            return exact(np.zeros((), DTYPES[dtype]), dtype)
        index = tuple(np.minimum(np.maximum(p.value, 0), n - 1) for p, n in zip(places, shape, strict=True))
        array = self.definitions.given(e.buffer)
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
        self.work += OPERATION + made.value.size
        return made

    # --- reductions -----------------------------------------------------------------------------------------------

    def _reduction(self, order: Order, block: Block, number: int, points: dict[str, Array], count: int) -> Rounded:
        dtype = self.definitions.buffer(block.writes[number].buffer)[0]
        if not count:
            return exact(np.zeros(0, DTYPES[dtype]), dtype)
        reduced, depth = reduction_of(block)
        factors = self._factors(block)
        if factors is not None and depth:
            made = self._contraction(order, block, factors, points, reduced, count, depth)
            if made is not None:
                return made
        parts = []
        for env, rows in with_reduction(points, reduced, count, depth):
            shape = (rows, depth)
            self._spend(prod(shape))
            terms = [self._terms(order, block, env, shape, n) for n in range(len(block.body))]
            parts.append(self._folded(block, [values for values, _ in terms], number, any(cut for _, cut in terms)))
        return joined(parts, dtype)

    def _terms(
        self, order: Order, block: Block, env: Mapping[str, Array], shape: tuple[int, ...], number: int
    ) -> tuple[Rounded, bool]:
        """What is combined: body `number` over samples and reduction; the identity where a condition fails, and whether
        it does anywhere."""
        dtypes = tuple(self.definitions.buffer(w.buffer)[0] for w in block.writes)
        body = block.body[number]
        if self._is_fused(block):
            assert isinstance(body, Op) and isinstance(self.definitions.analysis, Machine)
            made = self.definitions.analysis.product(self._evaluate(body.args, env, order))
        else:
            (made,) = self._evaluate([body], env, order)
        terms = Rounded(*broadcast(made, shape))
        if not block.where:
            return terms, False
        (holds,) = self._evaluate([conjunction(block.where)], env, order)
        holds = Rounded(*broadcast(holds, shape))
        if holds.bias is not None:
            raise CannotSay(f"what {block.name} adds up is not certain")
        inside = holds.value.astype(bool)
        identity = AGGREGATIONS[block.aggregation].identity(dtypes)[number]
        value = np.where(inside, terms.value, np.asarray(identity.value, terms.value.dtype))
        sigma, bias = (None if x is None else np.where(inside, x, 0.0) for x in (terms.sigma, terms.bias))
        return Rounded(value, terms.dtype, sigma, bias), not inside.all()

    def _is_fused(self, block: Block) -> bool:
        """Whether a machine adds up products that are not rounded by themselves."""
        analysis, body = self.definitions.analysis, block.body[0]
        if not isinstance(analysis, Machine) or analysis.contracted is False or block.aggregation != "add":
            return False
        order = self.definitions.order_of(block)
        one_by_one = order is not None and order.shape[1] == 1
        real = is_float(self.definitions.buffer(block.writes[0].buffer)[0])
        return one_by_one and real and isinstance(body, Op) and body.name == "mul"

    def _folded(self, block: Block, terms: Sequence[Rounded], number: int, cut: bool) -> Rounded:
        """The terms combined. `cut`: a condition leaves some out. Loops are cut where it fails, or a select changes
        sides, and LLVM may contract products in one part and round them in the other."""
        name, analysis = block.aggregation, self.definitions.analysis
        if name == "add":
            product = isinstance(block.body[0], Op) and block.body[0].name == "mul"
            if not isinstance(analysis, Machine):
                return analysis.summed(terms[0], 1, product)
            loose = isinstance(block.body[0], Load) and self._may_be_product(block.body[0])
            order = self.definitions.order_of(block)
            cut = analysis.contracted is None and (cut or "select" in operations(block.body[0]))
            return analysis.added(terms[0], order, loose or (product and (cut or order is None)), product)
        if name == "mul":
            return analysis.multiplied(terms[0], 1)
        if name in ("max", "min"):
            return extreme(terms[0], 1, name == "max")
        return best(terms, number, greatest=name == "argmax")

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
            return taken(joined(parts, parts[0].dtype), np.argsort(np.concatenate(halves)))
        groups = rows_of(points, factors.shared)
        if len(groups.rows) * FEW_MEMBERS > count and len(groups.rows) > 1:
            return None
        sides = []
        factors_of_rows = zip((first, second), (factors.first, factors.second), factors.guards, strict=True)
        for rows, factor, guard in factors_of_rows:
            env = {name: rows.rows[:, k, None] for k, name in enumerate(rows.names)} | dict(reduced)
            shape = (len(rows.rows), depth)
            self._spend(prod(shape))
            (side,) = self._evaluate([factor], env, order)
            side = Rounded(*broadcast(side, shape))
            if guard is not None:
                (holds,) = self._evaluate([guard], env, order)
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
        return matrix_products(sides[0], sides[1], first.of, second.of, groups.of, count, self.definitions.analysis)


def _direct(e: Op) -> Op:
    """A cast of a cast to whole numbers that are as wide as one cast: what wraps on the way wraps back."""
    inner = e.args[0]
    if e.name != "cast" or not isinstance(inner, Op) or inner.name != "cast":
        return e
    kinds = [DTYPES[str(dtype)] for dtype in (e.dtype, inner.dtype)]
    whole = all(kind.kind in "iu" for kind in kinds) and kinds[0].itemsize <= kinds[1].itemsize
    return Op("cast", inner.args, e.dtype) if whole else e


def _operands(e: Expr) -> tuple[Expr, ...]:
    return e.indices if isinstance(e, Load) else _direct(e).args if isinstance(e, Op) else ()


def _is_power_of_two(constant: Const) -> bool:
    return bool(np.frexp(np.abs(float(constant.value)))[0] == 0.5)
