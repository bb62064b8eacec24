"""Loops tagged `intrin:NAME` -> TIR: one application of an intrinsic (TensorIR, section 4.1).

The loops and the Leaf in them say what is computed; the intrinsic's YAML says how. Accumulators are

    vectors   one stack slot each, which LLVM promotes to a register
    tiles     numbered tile registers; what is multiplied gets the numbers that are left, and is loaded once for all
              applications in a straight line of code that read it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from modelc.codegen.intrinsics import lowering as code
from modelc.codegen.intrinsics.lowering import Place
from modelc.codegen.vectors import local_buffer
from modelc.errors import InvalidIR
from modelc.ir.affine import Linear, linear, simplify
from modelc.ir.expr import DTYPES, Const, Expr, Load, Var, op, substitute, variables
from modelc.ir.nest import Branch, For, Leaf, Region, Stmt
from modelc.target import Intrinsic
from modelc.target.binding import bindings
from modelc.target.intrinsic import Digit, Operand

Kind = tuple[str, tuple[int, ...]]  # an operand and its shape: a tile register has one as long as tiles are set up so
Flat = Callable[[Load], Linear | Expr]  # an access -> its element offset, over the application's and outer variables
Locate = Callable[[Operand, Load], tuple[Place, Linear | Expr]]  # an operand and what it is -> where it is; its base


@dataclass(frozen=True)
class Application:
    """Loops of one intrinsic and the Leaf in them."""

    intrinsic: Intrinsic  # as large as the loops where it is on tiles, which are set up so; else at least as large
    loops: tuple[For, ...]
    leaf: Leaf

    @cached_property
    def variables(self) -> dict[str, str]:
        """The intrinsic's iterators, as the loops' variables: loops are in the order of iterators."""
        iters = self.intrinsic.semantics.iters
        taken = iters if self.leaf.part == "update" else [i for i in iters if not i.reduce]
        return {i.name: loop.var for i, loop in zip(taken, self.loops, strict=True)}

    @cached_property
    def partial(self) -> dict[str, int]:
        """The intrinsic's iterators of which the loops have less than it takes, and how much they have."""
        extents = {name: self.ranges[var] for name, var in self.variables.items()}
        return {name: n for name, n in extents.items() if n < self.intrinsic.semantics.ranges[name]}

    @property
    def written(self) -> str:
        return self.leaf.writes[0].buffer

    @property
    def ranges(self) -> dict[str, int]:
        """The loops' variables and extents."""
        return {loop.var: loop.extent for loop in self.loops}

    def accesses(self, dtypes: Mapping[str, str]) -> dict[str, Load]:
        """What each operand is in the Leaf of an update: the expressions fit, and each operand moves with the
        variables that its semantics name."""
        semantics = self.intrinsic.semantics
        pattern = {x.buffer: x for x in (*semantics.writes, *semantics.reads)}
        names = {name: var for name, var in self.variables.items() if self.ranges[var] > 1}
        for binding in bindings(self.intrinsic, self.leaf.body[0], dtypes):
            operands = {self.intrinsic.accumulator.name: self.leaf.writes[0], **binding}
            moving = {n: variables(access) & set(names.values()) for n, access in operands.items()}
            if all(moving[n] == {names[v] for v in variables(a) & names.keys()} for n, a in pattern.items()):
                return operands
        raise InvalidIR(f"block {self.leaf.block} does not compute what {self.intrinsic.name} does")


def alike_loops(loop: For) -> list[For]:
    """The loops from `loop` on with its tag, as far as each is all that the one around it does."""
    loops = [loop]
    while len(loops[-1].body) == 1 and isinstance(inner := loops[-1].body[0], For) and inner.tag == loop.tag:
        loops.append(inner)
    return loops


def application_of(loop: For, intrinsics: Sequence[Intrinsic]) -> Application:
    """What the loops from `loop` on apply. Raises InvalidIR where they are not the intrinsic's."""
    loops = alike_loops(loop)
    leaf = loops[-1].body[0]
    if len(loops[-1].body) > 1 or not isinstance(leaf, Leaf):
        raise InvalidIR(f"something else than one leaf lies in the loops of {loop.intrinsic}")
    intrinsic = next((candidate for candidate in intrinsics if candidate.name == loop.intrinsic), None)
    if intrinsic is None:
        raise InvalidIR(f"block {leaf.block} is computed by {loop.intrinsic}, which the target has not")
    if unknown := [name for name in loop.once if name not in {o.name for o in intrinsic.operands}]:
        raise InvalidIR(f"block {leaf.block}: {intrinsic.name} has no operand {unknown[0]} to load once")
    iters = [i for i in intrinsic.semantics.iters if leaf.part == "update" or not i.reduce]
    if len(iters) != len(loops):
        raise InvalidIR(f"{len(loops)} loops are {intrinsic.name} in block {leaf.block}, expected {len(iters)}")
    extents = {i.name: x.extent for i, x in zip(iters, loops, strict=True)}
    if intrinsic.tiles is None and all(i.extent >= extents[i.name] for i in iters):
        return Application(intrinsic, tuple(loops), leaf)
    try:
        return Application(intrinsic.cut(extents), tuple(loops), leaf)
    except ValueError as error:
        raise InvalidIR(f"block {leaf.block}: {error}") from None


def applications(body: tuple[Stmt, ...], intrinsics: Sequence[Intrinsic]) -> Iterator[Application]:
    """What is applied in `body`."""
    for stmt in body:
        if isinstance(stmt, For) and stmt.intrinsic:
            yield application_of(stmt, intrinsics)
        elif isinstance(stmt, For):
            yield from applications(stmt.body, intrinsics)
        elif isinstance(stmt, Branch):
            yield from applications((*stmt.then, *stmt.otherwise), intrinsics)


def accumulating(region: Region, body: tuple[Stmt, ...], intrinsics: Sequence[Intrinsic]) -> list[Application]:
    """What adds to the Region."""
    return [x for x in applications(body, intrinsics) if x.leaf.part == "update" and x.written == region.name]


def stores_accumulators(region: Region, body: tuple[Stmt, ...], intrinsics: Sequence[Intrinsic]) -> bool:
    """Whether tile registers are stored to the Region."""
    assigning = (x for x in applications(body, intrinsics) if x.leaf.part == "assign")
    return any(x.intrinsic.tiles is not None and x.written == region.name for x in assigning)


# --- where operands are -------------------------------------------------------------------------------------------


def steps(operand: Operand, flat: Linear | Expr, names: Mapping[str, str]) -> tuple[Linear | Expr, tuple[int, ...]]:
    """(offset of the first element, elements from one index to the next in every dimension of the operand)."""
    form, moving = flat if isinstance(flat, Linear) else linear(flat), set(names.values())
    even = form is not None and all(isinstance(x, Var) or not variables(x) & moving for x, _ in form.terms)
    if form is not None and even and (form.plain or isinstance(flat, Linear)):
        still = tuple([(atom, c) for atom, c in form.terms if not (isinstance(atom, Var) and atom.name in moving)])
        strides = tuple([d.step * form.coefficient(Var(names[d.iterator])) for d in operand.digits])
        return Linear(still, form.constant), strides
    flat = flat.expr() if isinstance(flat, Linear) else flat
    zero = {var: Const(0) for var in names.values()}
    ranges = {names[d.iterator]: d.step * d.extent for d in operand.digits}

    def at(values: Mapping[str, int]) -> Expr:
        return simplify(substitute(flat, {**zero, **{names[n]: Const(v) for n, v in values.items()}}), ranges)

    def distance(values: Mapping[str, int]) -> int:
        moved = simplify(op("sub", at(values), base), ranges)
        if not isinstance(moved, Const):
            raise InvalidIR(f"operand {operand.name} does not move evenly: {flat}")
        return int(moved.value)

    base = at({})
    if form is not None and even:
        return base, tuple(d.step * form.coefficient(Var(names[d.iterator])) for d in operand.digits)
    strides = tuple(distance({d.iterator: d.step}) for d in operand.digits)
    last = {n: sum(d.step * (d.extent - 1) for d in operand.digits if d.iterator == n) for n in names}
    if distance(last) != sum(s * (d.extent - 1) for s, d in zip(strides, operand.digits, strict=True)):
        raise InvalidIR(f"operand {operand.name} does not move evenly: {flat}")
    return base, strides


def lies_packed(application: Application, operand: Operand, access: Load, shape: tuple[int, ...]) -> bool:
    """Whether the last dimensions of a buffer of `shape` are the operand's own, so that what a partial application
    leaves out is padding there, which can be read."""
    indices, names = access.indices[-len(operand.shape) :], application.variables
    if not operand.shape or shape[-len(operand.shape) :] != operand.shape:
        return False
    digits = ((i, d, names[d.iterator]) for i, d in zip(indices, operand.digits, strict=True))
    return all(_is_digit(i, d, var, application.ranges[var]) for i, d, var in digits)


@lru_cache(maxsize=4096)
def _is_digit(index: Expr, digit: Digit, var: str, extent: int) -> bool:
    """Whether an index is the digit of a loop's variable."""
    if variables(index) - {var}:
        return False
    values = (simplify(substitute(index, {var: Const(v)}), {}) for v in range(extent))
    return all(value == Const(v // digit.step % digit.extent) for v, value in enumerate(values))


# --- accumulators in vectors of more than one dimension --------------------------------------------------------------


@dataclass
class Slots:
    """Accumulators that are vectors of several rows: one slot for each, by the offset of its first element."""

    region: Region
    slots: list[Any]
    places: dict[int, int] = field(default_factory=dict)

    def at(self, offset: int) -> Any:
        return self.slots[self.places.setdefault(offset, len(self.places))]


def slots_of(region: Region, application: Application) -> Slots:
    """A slot for each accumulator of the Region that is as the application's, those of fewer rows too."""
    intrinsic, sizes = application.intrinsic, list[int]()
    for index in application.leaf.writes[0].indices:
        moving = [name for name, var in application.variables.items() if var in variables(index)]
        sizes.append(prod(intrinsic.semantics.ranges[name] for name in moving))
    count = prod(-(-extent // size) for extent, size in zip(region.shape, sizes, strict=True))
    lanes = intrinsic.accumulator.type.lanes
    return Slots(region, [local_buffer(lanes, region.dtype, f"{region.name}_{k}") for k in range(count)])


# --- tile registers -------------------------------------------------------------------------------------------------


def tile_file(region: Region, applied: Iterable[Application]) -> TileFile:
    """Tile registers for a Region's accumulators and for what the `applied` multiply."""
    cut = [application.intrinsic for application in applied]
    return TileFile(region, cut[0], {(o.name, o.shape) for c in cut for o in c.operands if o != c.accumulator})


@dataclass
class TileFile:
    """The tile registers while the accumulators of `region` are in them: who has which number."""

    region: Region
    intrinsic: Intrinsic
    kinds: set[Kind]  # of what is multiplied
    accumulators: dict[int, int] = field(default_factory=dict)  # offset of the first element -> number
    shapes: dict[int, tuple[int, int]] = field(default_factory=dict)  # number -> (rows, bytes of a row)
    pools: dict[Kind, list[int]] = field(default_factory=dict)
    held: dict[tuple[object, ...], int] = field(default_factory=dict)  # what is known to be in which number
    turn: dict[Kind, int] = field(default_factory=dict)

    def forget(self) -> None:
        """Something else ran: nothing is known of what was multiplied."""
        self.held.clear()
        self.turn.clear()

    def accumulator(self, intrinsic: Intrinsic, base: Linear | Expr) -> int:
        assert isinstance(base, Linear) and not base.terms, "tile registers are indexed by constants"
        offset = base.constant
        if offset not in self.accumulators:
            self.accumulators[offset] = self._take(intrinsic.accumulator)
        return self.accumulators[offset]

    def operand(self, operand: Operand, key: tuple[object, ...]) -> tuple[int, bool]:
        """(number, whether what `key` names is in it already)."""
        if key in self.held:
            return self.held[key], True
        kind = (operand.name, operand.shape)
        pool = self.pools.setdefault(kind, [])
        turn = self.turn.get(kind, 0)
        if not pool or (turn >= len(pool) and self._left() > len(self.kinds - self.pools.keys())):
            pool.append(self._take(operand))
        number = pool[turn % len(pool)]
        self.turn[kind] = turn + 1
        self.held = {k: n for k, n in self.held.items() if n != number} | {key: number}
        return number, False

    def _left(self) -> int:
        assert self.intrinsic.tiles is not None
        return self.intrinsic.tiles.count - len(self.shapes)

    def _take(self, operand: Operand) -> int:
        if not self._left():
            raise InvalidIR(f"{self.intrinsic.name} has no tile left for {operand.name}")
        number = len(self.shapes)
        self.shapes[number] = operand.shape[0], prod(operand.shape[1:]) * DTYPES[operand.dtype].itemsize
        return number


def common_shapes(files: Iterable[TileFile]) -> dict[int, tuple[int, int]] | None:
    """Shapes of tile registers that suit all of `files`; None if there are none."""
    shapes: dict[int, tuple[int, int]] = {}
    for file in files:
        if any(shapes.setdefault(number, shape) != shape for number, shape in file.shapes.items()):
            return None
    return shapes


def on_tiles(
    application: Application, accesses: Mapping[str, Load], file: TileFile, offset: Flat, locate: Locate
) -> list[Any]:
    """Statements of one application, whose operands are `accesses`, on tile registers."""
    intrinsic, leaf, names = application.intrinsic, application.leaf, application.variables
    accumulator = intrinsic.accumulator
    held = leaf.body[0] if leaf.part == "assign" else leaf.writes[0]
    assert isinstance(held, Load)
    number = file.accumulator(intrinsic, steps(accumulator, offset(held), names)[0])
    if leaf.part == "assign":
        place, _ = locate(accumulator, leaf.writes[0])
        return [code.store_tile(intrinsic, accumulator, number, place)]
    if leaf.part == "init":
        return [code.zero(intrinsic, number)]
    tiles, result = {accumulator.name: number}, []
    once = application.loops[0].once
    multiplied = [name for name in accesses if name != accumulator.name]
    for name in sorted(multiplied, key=lambda n: n not in once):  # streamed operands come from afar: asked for first
        access = accesses[name]
        operand = intrinsic.operand(name)
        place, base = locate(operand, access)
        key = (access.buffer, base, place.strides, operand.shape)
        tiles[name], there = file.operand(operand, key)
        if not there:
            result.append(code.load_tile(intrinsic, operand, tiles[name], place, name in once))
    return [*result, code.multiply(intrinsic, tiles)]
