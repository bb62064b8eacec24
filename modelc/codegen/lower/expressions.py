"""Expressions and accesses of a Nest -> TIR, on scalars and on the lanes of a vector loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from modelc.codegen.lean_tvm import tvm, tx
from modelc.codegen.lower.leaves import depends, flattened, lane_step
from modelc.codegen.lower.limits import limited_whole, limited_wide
from modelc.codegen.lower.places import Memory, Registers, Scope, bind, load_slots, number, store_slots, stored_dtype
from modelc.codegen.math.code import COMPARED, tir_dtype
from modelc.codegen.math.operations import lower_cast, lower_limited, lower_op
from modelc.codegen.vectors import (
    INDEX_OPS,
    constant,
    held,
    int32,
    integer,
    joined,
    lanes_of,
    moved,
    ramp,
    sequence,
    widen,
)
from modelc.ir.affine import Linear, linear, simplify
from modelc.ir.expr import Const, Expr, Load, Op, Size, Var, dtype_of, loads, op, sizes, substitute, variables
from modelc.ir.scalar import OPERATIONS
from modelc.space.analysis.access import MOST_STEP

LONG = 64  # statements of a loop whose addresses are too many to be compared

Terms = tuple[tuple[Expr, int], ...]  # multiples of loop variables


@dataclass
class OpenLoop:
    """A loop whose body is being lowered, and the element offsets that are computed once in it, before all else: sums
    of multiples of its variable and of those around it."""

    name: str
    named: list[Terms] = field(default_factory=list)
    statements: list[Any] = field(default_factory=list)


class Expressions:
    """Lowers expressions. `bindings` are statements that name values used twice, before the current store; None where
    there is no place for any. Loops count, and elements are numbered, in `counts`, as wide as addresses are: LLVM would
    widen each number by itself, and take long over it."""

    def __init__(self, dtypes: dict[str, str], counts: str):
        self.dtypes, self.counts = dtypes, counts
        self.loop_vars: dict[str, Any] = {}
        self.size_vars: dict[Size, Any] = {}  # that the function takes
        self.open_loops: list[OpenLoop] = []  # from the outermost inwards
        self.sums: dict[Terms, Any] = {}  # all that are named in them
        self.bindings: list[Any] | None = None
        self.rounded = False  # whether what is lowered is rounded to bfloat16 in the end

    def value(self, e: Expr, scope: Scope) -> tuple[Any, int]:
        """The TIR of a scalar expression, and its lanes (1: the same for every lane)."""
        if isinstance(e, Const):
            return constant(e), 1
        if isinstance(e, (Var, Size)):
            index = self.index(e, scope)
            if isinstance(index, tx.IntImm):  # no cast of a constant: TVM's simplifier cannot bind it
                return tx.IntImm("int64", int(index.value)), 1
            lanes = lanes_of(index)
            given = self.counts if lanes == 1 else "int32"
            return (index if given == "int64" else lower_cast("int64", index, given, lanes)), lanes
        if isinstance(e, Load):
            return self.load(e, scope)
        if e.name in COMPARED and all(linear(a) is not None for a in e.args):
            by_lanes = scope.vector is not None and any(scope.vector[0] in variables(a) for a in e.args)
            sides = [self.index(a, scope, by_lanes) for a in e.args]
            lanes = max(map(lanes_of, sides))
            return INDEX_OPS[e.name](*(widen(s, lanes_of(s), lanes) for s in sides)), lanes
        if e.name == "select":
            return self.select(e, scope)
        limited, whole = limited_wide(e, self.dtypes), limited_whole(e, self.dtypes)
        if (limits := limited or whole) is not None:
            value, lanes = self.value(limits.number, scope)
            return self.named(lower_limited(str(e.dtype), value, limits.most, limits.added, lanes)), lanes
        outer, self.rounded = self.rounded, self.rounded or (e.name == "cast" and e.dtype == "bfloat16")
        parts = [self.value(a, scope) for a in e.args]
        self.rounded = outer
        lanes = max(n for _, n in parts)
        args = [widen(v, n, lanes) for v, n in parts]
        dtype = dtype_of(e.args[0], self.dtypes)
        if e.name == "cast":
            assert e.dtype is not None
            return self.named(lower_cast(e.dtype, args[0], dtype, lanes)), lanes
        if e.name == "bits":
            assert e.dtype is not None
            to, stored = stored_dtype(e.dtype), stored_dtype(dtype)
            return (args[0] if to == stored else tx.reinterpret(f"{to}x{lanes}" if lanes > 1 else to, args[0])), lanes
        return self.operate(e.name, args, dtype, lanes), lanes

    def operate(self, name: str, args: list[Any], dtype: str, lanes: int) -> Any:
        return self.named(lower_op(name, args, dtype, lanes, rounded=self.rounded))

    def named(self, value: Any) -> Any:
        """`value` with its Lets as statements before the current store, where that is a place to compute them."""
        while self.bindings is not None and isinstance(value, tx.Let):
            self.bindings += held(value.var, value.value)
            value = value.body
        return value

    def bound(self, value: Any) -> Any:
        """`value` under a name, so that using it twice does not compute it twice."""
        dtype = tir_dtype(value)
        if self.bindings is None or isinstance(value, tx.Var) or dtype.startswith("bool"):
            return value
        var = tx.Var("part", dtype)
        self.bindings += held(var, value)
        return var

    def with_bindings(self, stores: Callable[[], list[Any]]) -> list[Any]:
        """The statements of `stores`, after the values that they name."""
        outer, self.bindings = self.bindings, []
        made = stores()
        named, self.bindings = self.bindings, outer
        return [*named, *made]

    def select(self, e: Op, scope: Scope) -> tuple[Any, int]:
        """A select; one whose condition is the same for all lanes evaluates the side it takes alone."""
        condition = self.value(e.args[0], scope)
        outer, loaded = self.bindings, any(map(loads, e.args[1:]))
        if loaded:
            self.bindings = None  # a side that is not taken must not be computed: it may load from outside
        parts = [condition, *(self.value(a, scope) for a in e.args[1:])]
        self.bindings = outer
        lanes = max(n for _, n in parts)
        condition, then, otherwise = (v for v, _ in parts)
        if parts[0][1] == 1:
            then, otherwise = widen(then, parts[1][1], lanes), widen(otherwise, parts[2][1], lanes)
            if loaded:
                return tx.if_then_else(condition, then, otherwise), lanes
            return tx.Select(widen(condition, 1, lanes), then, otherwise), lanes
        wide = [widen(v, n, lanes) for v, n in parts]
        return tx.Select(*wide), lanes

    def flat(self, access: Load, scope: Scope) -> Expr:
        """The element offset of an access within its Region."""
        form = self.form(access, scope)
        if form is not None:
            return form.expr()
        flat, _ = flattened(access, scope.storage[access.buffer].region.stride)
        return simplify(substitute(flat, scope.values), scope.ranges)

    def form(self, access: Load, scope: Scope) -> Linear | None:
        """That offset as a sum of multiples of loop variables; None if it is none."""
        _, form = flattened(access, scope.storage[access.buffer].region.stride)
        if form is None:
            return None
        terms: dict[Expr, int] = {}
        values, ranges, constant = scope.values, scope.ranges, form.constant
        for atom, c in form.terms:
            if type(atom) is not Var:
                part = linear(substitute(atom, values)) if sizes(atom) else None
                if part is None:
                    return None
                constant += c * part.constant
                for factor, k in part.terms:
                    terms[factor] = terms.get(factor, 0) + c * k
                continue
            value = values.get(atom.name, atom)
            if type(value) is Const:
                constant += c * int(value.value)
            elif type(value) is not Var:
                return None
            elif ranges.get(value.name) != 1:
                terms[value] = terms.get(value, 0) + c
        return Linear(tuple([term for term in terms.items() if term[1]]), constant)

    def located(self, access: Load, scope: Scope) -> tuple[Linear | Expr, int | None]:
        """(the element offset of an access, of its first lane; how far one lane moves, None if not evenly)."""
        form = self.form(access, scope)
        if form is None:
            flat = self.flat(access, scope)
            step = 0 if scope.vector is None else lane_step(flat, scope.vector[0])
            if scope.vector is not None and step:
                flat = simplify(substitute(flat, {scope.vector[0]: Const(0)}), scope.ranges)
            return flat, step
        if scope.vector is None:
            return form, 0
        var = Var(scope.vector[0])
        if any(depends(atom, var.name) for atom, _ in form.terms if atom != var):
            return form.expr(), None
        step = form.coefficient(var)
        return Linear(tuple([term for term in form.terms if term[0] != var]), form.constant) if step else form, step

    def base_of(self, flat: Linear | Expr, offset: int, scope: Scope) -> Any:
        """The TIR of an element offset, so many elements further on."""
        if not isinstance(flat, Linear):
            return self.index_of(op("add", flat, offset), scope)
        constant = flat.constant + offset
        if not flat.terms:
            return integer(self.counts, constant)
        base = self.sums.get(flat.terms)
        if base is None:
            base = self.named_sum(flat.terms, scope)
        return moved(base, constant)

    def named_sum(self, terms: Terms, scope: Scope) -> Any:
        """A sum that has its name in the innermost loop that it depends on: TVM would compute it with every access,
        and LLVM would take long to find that out."""
        names = {name for atom, _ in terms for name in variables(atom)}
        loop = next((loop for loop in reversed(self.open_loops) if loop.name in names), None)
        if loop is None:
            return self.index_of(Linear(terms, 0).expr(), scope)
        var = tx.Var("offset", self.counts)
        loop.statements.append(tx.Bind(var, self.index_of(Linear(terms, 0).expr(), scope)))
        loop.named.append(terms)
        self.sums[terms] = var
        return var

    def inside(self, name: str, body: Callable[[], list[Any]]) -> tuple[Any, Any]:
        """(the variable of a loop, its body). Each loop has one of its own: TVM keeps facts by variable, so no two may
        share one."""
        self.loop_vars[name] = var = tx.Var(name, self.counts)
        loop = OpenLoop(name)
        self.open_loops.append(loop)
        made = body()
        self.open_loops.pop()
        for terms in loop.named:
            del self.sums[terms]
        return var, sequence([*loop.statements, *without_access_analysis(made)])

    def is_linear(self, access: Load, scope: Scope) -> bool:
        return self.located(access, scope)[1] is not None

    def load(self, access: Load, scope: Scope) -> tuple[Any, int]:
        place = scope.storage[access.buffer]
        flat, step = self.located(access, scope)
        if step is None:  # every lane has an address of its own
            assert scope.vector is not None
            var, lanes = scope.vector
            single = [bind(scope, var, Const(k), 1) for k in range(lanes)]
            elements = [self.load(access, Scope(s.values, s.ranges, s.storage, None, s.scratch))[0] for s in single]
            return joined(elements, lanes), lanes
        lanes = 1 if step == 0 or scope.vector is None else scope.vector[1]
        if isinstance(place, Registers):
            loaded = load_slots(place, number(flat), step, lanes)
        else:
            assert isinstance(place, Memory)
            base = self.base_of(flat, place.offset, scope)
            if lanes > 1 and 1 < step <= MOST_STEP:
                loaded = self.spread(place.buffer, base, step, lanes)
            else:
                loaded = tx.BufferLoad(place.buffer, [ramp(base, step, lanes)])
        if place.region.dtype == "bool":
            loaded = tx.NE(loaded, widen(tx.IntImm("uint8", 0), 1, lanes))
        return loaded, lanes

    def spread(self, buffer: Any, base: Any, step: int, lanes: int) -> Any:
        """Every `step`-th element from `base` on, out of whole vectors: the last begins where it ends with what is
        wanted, so that nothing is read beyond."""
        starts = [min(k * lanes, (lanes - 1) * step + 1 - lanes) for k in range(step)]
        vectors = [tx.BufferLoad(buffer, [ramp(moved(base, s), 1, lanes)]) for s in starts]
        places = [(k * step, min(k * step // lanes, step - 1)) for k in range(lanes)]
        return tx.Shuffle(vectors, [int32(piece * lanes + at - starts[piece]) for at, piece in places])

    def store(self, access: Load, value: Any, scope: Scope, lanes: int) -> Any:
        place = scope.storage[access.buffer]
        if place.region.dtype == "bool":
            value = tx.Select(value, widen(tx.IntImm("uint8", 1), 1, lanes), widen(tx.IntImm("uint8", 0), 1, lanes))
        flat, step = self.located(access, scope)
        assert lanes > 1 or not step, "one value is stored for all lanes"
        if isinstance(place, Registers):
            return store_slots(place, number(flat), step or 0, value, lanes)
        assert isinstance(place, Memory)
        base = self.base_of(flat, place.offset, scope)
        return tx.BufferStore(place.buffer, value, [ramp(base, step or 0, lanes)])

    def index(self, e: Expr, scope: Scope, by_lanes: bool = False) -> Any:
        """The TIR of an index expression; the vector variable becomes a ramp."""
        e = simplify(substitute(e, scope.values), scope.ranges)
        by_lanes = by_lanes or (scope.vector is not None and scope.vector[0] in variables(e))
        return self.index_of(e, scope, "int32" if by_lanes else self.counts)

    def index_of(self, e: Expr, scope: Scope, dtype: str = "") -> Any:
        """As numbers of `dtype`, that in which loops count if none is said: narrow ones where a vector is to hold one
        for each lane."""
        dtype = dtype or self.counts
        if isinstance(e, Const):
            return integer(dtype, int(e.value))
        if isinstance(e, Size):
            given = self.size_vars.setdefault(e, tx.Var(f"size_{e.name}", self.counts))
            return given if dtype == self.counts else tx.Cast(dtype, given)
        if isinstance(e, Var):
            if scope.vector is not None and e.name == scope.vector[0]:
                return ramp(int32(0), 1, scope.vector[1])
            var = self.loop_vars[e.name]
            return var if dtype == self.counts else tx.Cast(dtype, var)
        if isinstance(e, Load):
            loaded, _ = self.load(e, scope)
            return tx.Cast(dtype, loaded)
        if e.name in ("select", "cast", "bits") or OPERATIONS[e.name].result == "bool":
            value, _ = self.value(e, scope)
            return value if OPERATIONS[e.name].result == "bool" else tx.Cast(dtype, value)
        if linear(e) is None and loads(e):
            value, _ = self.value(e, scope)
            return tx.Cast(dtype, value)
        wide, lanes = [self.index_of(a, scope, dtype) for a in e.args], 1
        if scope.vector is not None and scope.vector[0] in variables(e):
            lanes = max(map(lanes_of, wide))
            wide = [widen(a, lanes_of(a), lanes) for a in wide]
        return INDEX_OPS[e.name](*wide) if e.name in INDEX_OPS else lower_op(e.name, wide, dtype, lanes)


def without_access_analysis(body: list[Any]) -> list[Any]:
    """The statements of a loop, such that LLVM does not compare each address in a long one with each other. It would
    (LoopLoadElimination), to carry values from one iteration to the next, take up to half of its time for that, and
    find none. It compares nothing where there is a call that it knows nothing of, and this one leaves no code."""
    if len(body) < LONG:
        return body
    nothing = tx.reinterpret(tvm.ir.PointerType(tvm.ir.PrimType("uint8")), integer("int64", 0))
    return [tx.Evaluate(tx.call_llvm_intrin("int32", "llvm.annotation", int32(0), nothing, nothing, int32(0))), *body]
