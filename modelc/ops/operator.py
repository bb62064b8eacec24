"""What an entry of the operator library is, and the small words that every entry is written in.

An operator's meaning is a Definition: Blocks over formal buffers `x0, x1, ...` (inputs by position), `y0, y1, ...`
(outputs by position), locals, and small constant tables. Inputs that only steer (axes, shapes, pads) are read from
`Value.data` when the operator is defined and are no buffers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from modelc.errors import InvalidIR, ModelError, NotKnown
from modelc.ir.affine import Ranges, bounds, simplify
from modelc.ir.block import AGGREGATIONS, AnyBlock, Block, Buffer, Iter, OpaqueBlock
from modelc.ir.check import accesses, inside
from modelc.ir.expr import DTYPES, Const, Expr, Load, Var, cast, const, op
from modelc.ir.graph import Node, Value
from modelc.ops.row import Inputs as Inputs
from modelc.ops.row import Row

Shape = tuple[int, ...]
Types = tuple[tuple[str, Shape], ...]

FLOATS = ("float32", "float64", "float16", "bfloat16")
SMALL_FLOATS = ("float16", "bfloat16")


@dataclass(frozen=True)
class Definition:
    """The meaning of one node: Blocks in order of execution over formal buffers. `constants` are tables that the
    operator brings along (resize weights, index tables)."""

    locals: tuple[Buffer, ...] = ()
    blocks: tuple[AnyBlock, ...] = ()
    constants: tuple[tuple[Buffer, NDArray[Any]], ...] = ()


@dataclass(frozen=True)
class Operator(Row):
    """One operator of the library: what is known by its name; `infer` gives dtype and shape of every output, `define`
    its meaning. Both raise ModelError for what the operator does not take."""

    infer: Callable[[Node, Inputs], Types]
    meaning: Callable[[Node, Inputs, tuple[Value | None, ...]], Definition]

    def define(self, node: Node, inputs: Inputs, outputs: Sequence[Value | None]) -> Definition:
        """The node's meaning. Outputs that the node leaves out (None, or an empty name) are not computed; where every
        output is empty, nothing is."""
        wanted = {f"y{k}" for k, v in enumerate(outputs) if v is not None and v.name}
        types = self.infer(node, inputs)
        if all(0 in shape for _, shape in types):
            return Definition()
        definition = _pruned(self.meaning(node, inputs, tuple(outputs)), wanted, types)
        _check_inputs(node, inputs, definition)
        return _of_elements(definition, inputs)


def _of_elements(definition: Definition, inputs: Inputs) -> Definition:
    """The definition without Loads of what has no elements: conditions keep every one of them from being used."""
    empty = {f"x{k}": v.dtype for k, v in enumerate(inputs) if v is not None and 0 in v.shape}
    empty |= {b.name: b.dtype for b in definition.locals if 0 in b.shape}

    def visit(e: Expr) -> Expr | None:
        return const(0, empty[e.buffer]) if isinstance(e, Load) and e.buffer in empty else None

    if not empty:
        return definition
    blocks = tuple(b if isinstance(b, OpaqueBlock) else b.mapped(visit) for b in definition.blocks)
    return replace(definition, blocks=blocks, locals=tuple(b for b in definition.locals if b.name not in empty))


def _check_inputs(node: Node, inputs: Inputs, definition: Definition) -> None:
    """Raises ModelError where an input has another rank than its operator reads, or is read outside."""
    where = f"node {node.name!r} ({node.op})"
    for block in definition.blocks:
        if isinstance(block, OpaqueBlock):
            continue
        read = (*block.body, *block.where, *(index for w in block.writes for index in w.indices))
        for access, guards in (guarded for e in read for guarded in accesses(e, block.where)):
            value = given(inputs, int(access.buffer[1:])) if re.fullmatch(r"x\d+", access.buffer) else None
            if value is None:
                continue
            if len(value.shape) != (rank := len(access.indices)):
                fail(node, f"expected input {value.name!r} to have {rank} dimensions, found {list(value.shape)}")
            if not guards and 0 not in value.shape:  # guards are written for the shape that is read
                try:
                    inside(access, value.shape, block.ranges, (), "read", where, f"input {value.name!r}")
                except InvalidIR as error:
                    raise ModelError(str(error)) from None


def _pruned(definition: Definition, wanted: set[str], types: Types) -> Definition:
    """The definition without the blocks that compute nothing wanted; an absent output that is needed on the way
    becomes a local."""
    needed, kept = set(wanted), []
    dtypes = {b.name: b.dtype for b in definition.locals} | {f"y{k}": dtype for k, (dtype, _) in enumerate(types)}
    for block in reversed(definition.blocks):
        if not needed & set(written(block)):
            continue
        needed |= set(written(block))
        for part in _of_something(block, dtypes):
            needed |= set(read(part))
            kept.append(part)
    absent = [f"y{k}" for k in range(len(types)) if f"y{k}" in needed - wanted]
    locals_ = [b for b in definition.locals if b.name in needed]
    locals_ += [Buffer(name, *types[int(name[1:])]) for name in absent]
    constants = tuple(c for c in definition.constants if c[0].name in needed)
    return Definition(tuple(locals_), tuple(reversed(kept)), constants)


def _of_something(block: AnyBlock, dtypes: Mapping[str, str]) -> tuple[AnyBlock, ...]:
    """The Block, where it has points; a reduction of nothing assigns its identity, and what writes nothing is none."""
    if isinstance(block, OpaqueBlock) or all(i.extent for i in block.iters):
        return (block,)
    if not all(i.extent for i in block.spatial):
        return ()
    identity = AGGREGATIONS[block.aggregation].identity(tuple(dtypes[w.buffer] for w in block.writes))
    return tuple(
        Block(f"{block.name}{k or ''}", block.spatial, (write,), (value,))
        for k, (write, value) in enumerate(zip(block.writes, identity, strict=True))
    )


def written(block: AnyBlock) -> tuple[str, ...]:
    return block.outputs if isinstance(block, OpaqueBlock) else tuple(w.buffer for w in block.writes)


def read(block: AnyBlock) -> tuple[str, ...]:
    return block.inputs if isinstance(block, OpaqueBlock) else tuple(dict.fromkeys(x.buffer for x in block.reads))


# --- errors and steering inputs -----------------------------------------------------------------------------------


def fail(node: Node, sentence: str) -> NoReturn:
    raise ModelError(f"node {node.name!r} ({node.op}): {sentence}")


def given(inputs: Inputs, k: int) -> Value | None:
    """Input `k`, or None if the node has none there."""
    return inputs[k] if k < len(inputs) else None


def required(node: Node, inputs: Inputs, k: int) -> Value:
    value = given(inputs, k)
    if value is None:
        fail(node, f"expected an input at position {k}, found none")
    return value


def shape_of(node: Node, inputs: Inputs, k: int, rank: int) -> Shape:
    """The shape of input `k`, which has `rank` dimensions."""
    value = required(node, inputs, k)
    if len(value.shape) != rank:
        fail(node, f"expected input {value.name!r} to have {rank} dimensions, found {list(value.shape)}")
    return value.shape


def steering_data(node: Node, inputs: Inputs, k: int, what: str) -> NDArray[Any] | None:
    """The data of the steering input `k` (`what` it means); None if absent. It must be a constant."""
    value = given(inputs, k)
    if value is None:
        return None
    if value.data is None:
        raise NotKnown(
            f"node {node.name!r} ({node.op}): expected a constant as {what}, found {value.name!r}, which is computed "
            "when the model runs",
            value.name,
        )
    return value.data


def known_scalar(node: Node, inputs: Inputs, k: int, what: str) -> NDArray[Any] | None:
    """The same of an input that is one number, as an array without dimensions."""
    data = steering_data(node, inputs, k, what)
    if data is not None and data.size != 1:
        fail(node, f"expected one number as {what}, found {data.size} of shape {list(data.shape)}")
    return None if data is None else data.reshape(())


def check_known(node: Node, value: Value, data: NDArray[Any] | None, low: int, high: int) -> None:
    """Raises ModelError if `data`, what is known of `value`, has an element outside [low, high]."""
    wrong = np.array([]) if data is None else data[(data < low) | (data > high)]
    if wrong.size:
        fail(node, f"expected {value.name!r} from {low} to {high}, found {wrong[0]}")


def known_ints(node: Node, inputs: Inputs, k: int, what: str) -> tuple[int, ...] | None:
    """Whole numbers that steer: from input `k`, or else from the attribute `what` (older operator sets)."""
    data = steering_data(node, inputs, k, what)
    if data is not None:
        return tuple(int(v) for v in data.reshape(-1))
    attribute = node.attrs.get(what)
    if attribute is None:
        return None
    return tuple(int(v) for v in np.asarray(attribute).reshape(-1))


def axis_of(node: Node, rank: int, default: int = 0, name: str = "axis", extra: int = 0) -> int:
    """The attribute `axis`, counted from the front. `extra` allows an axis past the last."""
    axis = int(node.attrs.get(name, default))
    return normal_axis(node, axis, rank + extra if extra and axis >= 0 else rank, name)


def normal_axis(node: Node, axis: int, rank: int, name: str = "axis") -> int:
    if not -rank <= axis < rank:
        fail(node, f"expected {name} within a tensor of {rank} dimensions, found {axis}")
    return axis % rank if rank else 0


def normal_axes(node: Node, axes: Iterable[int], rank: int) -> tuple[int, ...]:
    normal = tuple(normal_axis(node, a, rank, "axes") for a in axes)
    if len(set(normal)) != len(normal):
        fail(node, f"expected distinct axes, found {normal}")
    return normal


def ints(node: Node, name: str, default: Sequence[int]) -> tuple[int, ...]:
    """A whole-number list attribute of as many entries as `default`."""
    numbers = tuple(int(v) for v in node.attrs.get(name) or default)
    if len(numbers) != len(default):
        fail(node, f"expected {len(default)} numbers in attribute {name}, found {numbers}")
    return numbers


def text(node: Node, name: str, default: str) -> str:
    value = node.attrs.get(name, default)
    return value.decode() if isinstance(value, bytes) else str(value)


def same_type(node: Node, inputs: Inputs) -> Types:
    """Every output is like the first input."""
    x = required(node, inputs, 0)
    return tuple((x.dtype, x.shape) for _ in node.outputs)


# --- iterators and indices ----------------------------------------------------------------------------------------

_NAMES: dict[int, tuple[str, ...]] = {
    1: ("n",),
    2: ("m", "n"),
    3: ("b", "m", "n"),
    4: ("n", "c", "h", "w"),
    5: ("n", "c", "d", "h", "w"),
}


def names(rank: int) -> tuple[str, ...]:
    """Iterator names for a tensor of `rank` dimensions."""
    return _NAMES.get(rank, tuple(f"i{k}" for k in range(rank)))


def grid(shape: Sequence[int], named: Sequence[str] = (), reduce: Iterable[int] = ()) -> tuple[Iter, ...]:
    """Iterators over `shape`: spatial ones, then those of the dimensions in `reduce`."""
    reduced = set(reduce)
    named = named or names(len(shape))
    spatial = tuple(Iter(named[k], e) for k, e in enumerate(shape) if k not in reduced)
    return spatial + tuple(Iter(named[k], e, True) for k, e in enumerate(shape) if k in reduced)


def point(iters: Sequence[Iter] | Sequence[str]) -> tuple[Var, ...]:
    return tuple(Var(i if isinstance(i, str) else i.name) for i in iters)


def load(buffer: str, indices: Iterable[Expr]) -> Load:
    return Load(buffer, tuple(indices))


def assign(name: str, iters: Sequence[Iter], write: Load, body: Expr, where: Iterable[Expr] = ()) -> Block:
    return Block(name, tuple(iters), (write,), (body,), "assign", tuple(where))


def fold(
    aggregation: str, name: str, iters: Sequence[Iter], write: Load, body: Expr, where: Iterable[Expr] = ()
) -> Block:
    """A reduction of one value."""
    return Block(name, tuple(iters), (write,), (body,), aggregation, tuple(where))


def within(index: Expr, extent: int, ranges: Ranges) -> tuple[Expr, ...]:
    """The conditions that keep `index` inside [0, extent): only those that the iterators' ranges do not imply."""
    limits = bounds(index, ranges)
    conditions = []
    if limits is None or limits[0] < 0:
        conditions.append(op("ge", index, 0))
    if limits is None or limits[1] >= extent:
        conditions.append(op("lt", index, extent))
    return tuple(conditions)


def tidy(index: Expr, iters: Sequence[Iter]) -> Expr:
    """A canonical index over these iterators; iterators of one step stay, so that writes keep their shape."""
    return simplify(index, {i.name: i.extent for i in iters if i.extent > 1})


def broadcast(node: Node, *shapes: Shape) -> Shape:
    """NumPy's broadcasting of shapes."""
    try:
        return tuple(int(n) for n in np.broadcast_shapes(*shapes))
    except ValueError:
        fail(node, f"expected shapes that broadcast, found {' and '.join(map(str, map(list, shapes)))}")


def aligned(shape: Shape, over: Sequence[Expr], extents: Shape) -> tuple[Expr, ...]:
    """Indices into a tensor of `shape` broadcast to `extents`, at the point `over`."""
    offset = len(extents) - len(shape)
    return tuple(
        Const(0) if extent == 1 and extents[offset + k] != 1 else over[offset + k] for k, extent in enumerate(shape)
    )


def scalar(value: Value | None) -> Const | None:
    """The number that a constant of one element holds."""
    if value is None or value.data is None or value.data.size != 1:
        return None
    return const(value.data.reshape(()), value.dtype)


def accumulator(dtype: str) -> str:
    """What sums of `dtype` are kept in: half floats are summed in float32."""
    return "float32" if dtype in SMALL_FLOATS else dtype


def widened(e: Expr, dtype: str, to: str) -> Expr:
    return e if dtype == to else cast(to, e)


def clamped(e: Expr, of: str, to: str) -> Expr:
    """The float `e` of dtype `of` as the nearest number of the integer dtype `to`, truncated."""
    limits = np.iinfo(DTYPES[to])
    most = const(int(limits.max), of)
    if most.value > limits.max:
        most = const(np.nextafter(DTYPES[of].type(limits.max), DTYPES[of].type(0)), of)
    return cast(to, op("min", op("max", e, const(int(limits.min), of)), most))


def renamed_output(block: Block, buffer: str) -> Block:
    return replace(block, writes=tuple(Load(buffer, w.indices) for w in block.writes))
