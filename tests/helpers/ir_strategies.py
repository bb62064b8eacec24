"""Random expressions, layouts, Blocks, Tasks and Nests for property tests."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from modelc.ir.block import AGGREGATIONS, Block, Buffer, Iter, OpaqueBlock, Task
from modelc.ir.expr import DTYPES, FLOATS, Const, Expr, Load, Op, Var
from modelc.ir.layout import Layout, Primitive
from modelc.ir.nest import SCOPES, TAGS, Alloc, Branch, Call, For, Leaf, Nest, Region
from modelc.ir.scalar import OPERATIONS

ITERATORS = ("i", "j", "k", "o2", "exp")
names = st.sampled_from(["x0", "y", "acc", "conv", "pad_x0", "T_1"])
dtypes = st.sampled_from(sorted(DTYPES))


@st.composite
def constants(draw: st.DrawFn) -> Const:
    dtype = draw(dtypes)
    if dtype == "bool":
        return Const(draw(st.booleans()), dtype)
    if dtype in FLOATS:
        return Const(draw(st.floats() | st.sampled_from([math.inf, -math.inf, math.nan, -0.0, 1e-05])), dtype)
    return Const(draw(st.integers(-(2**40), 2**40)), dtype)


def _grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    plain = [
        st.builds(Op, st.just(name), st.tuples(*[inner] * operation.arity))
        for name, operation in OPERATIONS.items()
        if name not in ("cast", "bits")
    ]
    casts = st.builds(Op, st.sampled_from(["cast", "bits"]), st.tuples(inner), dtypes)
    loads = st.builds(Load, names, st.lists(inner, max_size=3).map(tuple))
    return st.one_of(*plain, casts, loads)


expressions: st.SearchStrategy[Expr] = st.recursive(
    st.one_of(st.builds(Var, st.sampled_from(ITERATORS)), st.builds(Const, st.integers(-9, 99)), constants()),
    _grown,
    max_leaves=12,
)
loads = st.builds(Load, names, st.lists(expressions, max_size=2).map(tuple))
shapes = st.lists(st.integers(0, 64), max_size=4).map(tuple)


@st.composite
def quasi_affine(draw: st.DrawFn, ranges: dict[str, int], depth: int = 3) -> Expr:
    """Sums, differences, multiples, quotients and remainders by constants."""
    if depth == 0 or draw(st.booleans()):
        return draw(st.sampled_from([Var(n) for n in ranges]) | st.builds(Const, st.integers(-20, 20)))
    inner = quasi_affine(ranges, depth - 1)
    kind = draw(st.sampled_from(["add", "sub", "mul", "floordiv", "mod", "neg"]))
    a = draw(inner)
    if kind == "neg":
        return Op("neg", (a,))
    if kind in ("add", "sub"):
        return Op(kind, (a, draw(inner)))
    if kind == "mul":
        return Op(kind, draw(st.permutations((a, Const(draw(st.integers(-6, 6)))))))  # type: ignore[arg-type]
    return Op(kind, (a, Const(draw(st.integers(1, 12)))))


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    """A layout that fits a tensor of `shape` (extents of at least 1)."""
    layout = Layout()
    for _ in range(draw(st.integers(0, 4))):
        now = layout.shape(shape)
        dim = draw(st.integers(0, len(now) - 1))
        kind = draw(st.sampled_from(["split", "reorder", "fuse", "unfold", "pad", "store_at"]))
        if kind == "split":
            factors = [f for f in (1, 2, 3, 4) if now[dim] % f == 0]
            args: tuple[int, ...] = (dim, draw(st.sampled_from(factors)))
        elif kind == "reorder":
            args = tuple(draw(st.permutations(range(len(now)))))
        elif kind == "fuse":
            args = (dim, draw(st.integers(1, len(now) - dim)))
        elif kind == "unfold":
            tile = draw(st.integers(1, now[dim]))
            args = (dim, tile, draw(st.integers(1, tile)))
        elif kind == "pad":
            args = (dim, draw(st.integers(0, 3)), draw(st.integers(0, 3)))
        else:
            args = (dim, draw(st.integers(0, 3)))
        layout = layout.then(kind, *args)
    return layout


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    aggregation = draw(st.sampled_from(sorted(AGGREGATIONS)))
    arity = AGGREGATIONS[aggregation].arity
    iters = tuple(Iter(n, draw(st.integers(0, 99)), draw(st.booleans())) for n in ITERATORS[: draw(st.integers(0, 5))])
    writes, body = (tuple(draw(s) for _ in range(arity)) for s in (loads, expressions))
    where = draw(st.lists(expressions, max_size=3).map(tuple))
    return Block(draw(names), iters, writes, body, aggregation, where)


attribute = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda x: st.lists(x, max_size=2) | st.lists(x, max_size=2).map(tuple) | st.dictionaries(st.text(max_size=3), x),
    max_leaves=4,
)
attributes = st.dictionaries(st.sampled_from(["axis", "k", "mode"]), attribute).map(lambda d: tuple(sorted(d.items())))
several = st.lists(names, max_size=3).map(tuple)
opaque = st.builds(OpaqueBlock, names, names, several, several, attributes)
primitives = st.one_of(
    st.builds(Primitive, st.just("reorder"), st.permutations(range(3)).map(tuple)),
    st.builds(Primitive, st.just("split"), st.tuples(st.integers(0, 3), st.integers(1, 9))),
    st.builds(Primitive, st.just("pad"), st.tuples(*[st.integers(0, 3)] * 3)),
)
stored = st.lists(primitives, max_size=3).map(lambda p: Layout(tuple(p)))
buffers = st.builds(Buffer, names, dtypes, shapes, stored, st.none() | shapes)


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    found = tuple({b.name: b for b in draw(st.lists(buffers, max_size=5))}.values())
    known = [b.name for b in found]
    inputs = tuple(draw(st.permutations(known)))[: draw(st.integers(0, len(known)))]
    outputs = tuple(n for n in draw(st.permutations(known)) if n not in inputs)[: draw(st.integers(0, 2))]
    constant = frozenset(inputs[: draw(st.integers(0, len(inputs)))])
    body = draw(st.lists(blocks() | opaque, max_size=3).map(tuple))
    nodes = draw(st.lists(st.text(max_size=4), max_size=2).map(tuple))
    return Task(draw(names), found, inputs, outputs, body, draw(names), constant, nodes)


regions = st.builds(Region, names, dtypes, shapes, st.none() | shapes)


@st.composite
def leaves(draw: st.DrawFn) -> Leaf:
    aggregation = draw(st.sampled_from(sorted(AGGREGATIONS)))
    arity = AGGREGATIONS[aggregation].arity
    writes, body = (tuple(draw(s) for _ in range(arity)) for s in (loads, expressions))
    part = draw(st.sampled_from(["init", "update", "assign"]))
    where = draw(st.lists(expressions, max_size=2).map(tuple))
    binding = draw(st.dictionaries(st.sampled_from(ITERATORS), expressions, max_size=2).map(lambda d: tuple(d.items())))
    return Leaf(draw(names), part, writes, body, aggregation, where, binding)


def _bodies(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    body = st.lists(inner, max_size=3).map(tuple)
    loops = st.builds(For, st.sampled_from(["h0", "o1"]), st.integers(1, 99), body, st.sampled_from(TAGS))
    return loops | st.builds(Branch, expressions, body, body)


calls = st.builds(Call, names, names, several, several, attributes)
statements = st.recursive(
    leaves() | st.builds(Alloc, regions, st.sampled_from(SCOPES)) | calls,
    _bodies,
    max_leaves=5,
)
phases = st.lists(st.lists(statements, max_size=2).map(tuple), max_size=2).map(tuple)
some_regions = st.lists(regions, max_size=3).map(tuple)
nests = st.builds(Nest, names, some_regions, several, phases, some_regions)
