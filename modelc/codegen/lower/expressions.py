"""Expressions and accesses of a Nest -> TIR, on scalars and on the lanes of a vector loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvm import tirx as tx

from modelc.codegen.lower.leaves import flattened, lane_step
from modelc.codegen.lower.places import Memory, Registers, Scope, bind, load_slots, number, store_slots, stored_dtype
from modelc.codegen.lower.vectors import INDEX_OPS, constant, held, int32, lanes_of, widen
from modelc.codegen.math.operations import lower_cast, lower_op
from modelc.ir.affine import Linear, linear, simplify
from modelc.ir.expr import OPERATIONS, Const, Expr, Load, Op, Var, dtype_of, op, substitute, variables, walk
from modelc.space.analysis.access import MOST_STEP


class Expressions:
    """Lowers expressions. `bindings` are statements that name values used twice, before the current store; None where
    there is no place for any."""

    def __init__(self, dtypes: dict[str, str]):
        self.dtypes = dtypes
        self.loop_vars: dict[str, Any] = {}
        self.sums: dict[tuple[tuple[Expr, int], ...], Any] = {}  # of multiples of the loop variables that there are now
        self.bindings: list[Any] | None = None
        self.rounded = False  # whether what is lowered is rounded to bfloat16 in the end

    def value(self, e: Expr, scope: Scope) -> tuple[Any, int]:
        """The TIR of a scalar expression, and its lanes (1: the same for every lane)."""
        if isinstance(e, Const):
            return constant(e), 1
        if isinstance(e, Var):
            index = self.index(e, scope)
            if isinstance(index, tx.IntImm):  # no cast of a constant: TVM's simplifier cannot bind it
                return tx.IntImm("int64", int(index.value)), 1
            return lower_cast("int64", index, "int32", lanes_of(index)), lanes_of(index)
        if isinstance(e, Load):
            return self.load(e, scope)
        if e.name in ("lt", "le", "gt", "ge", "eq", "ne") and all(self.is_index(a) for a in e.args):
            sides = [self.index(a, scope) for a in e.args]
            lanes = max(map(lanes_of, sides))
            return INDEX_OPS[e.name](*(widen(s, lanes_of(s), lanes) for s in sides)), lanes
        if e.name == "select":
            return self.select(e, scope)
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
        dtype = str(value.dtype if hasattr(value, "dtype") else value.ty.dtype)
        if self.bindings is None or isinstance(value, tx.Var) or dtype.startswith("bool"):
            return value
        var = tx.Var("part", dtype)
        self.bindings += held(var, value)
        return var

    def with_bindings(self, stores: Callable[[], list[Any]]) -> list[Any]:
        """The statements of `stores`, after the values that they name."""
        outer, self.bindings = self.bindings, []
        made = stores()
        found, self.bindings = self.bindings, outer
        return [*found, *made]

    def is_index(self, e: Expr) -> bool:
        return linear(e) is not None

    def select(self, e: Op, scope: Scope) -> tuple[Any, int]:
        """A select; one whose condition is the same for all lanes evaluates the side it takes alone."""
        condition = self.value(e.args[0], scope)
        outer, loaded = self.bindings, any(isinstance(x, Load) for a in e.args[1:] for x in walk(a))
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
                return None
            value = values.get(atom.name, atom)
            if type(value) is Const:
                constant += c * int(value.value)
            elif type(value) is not Var:
                return None
            elif ranges.get(value.name) != 1:
                terms[value] = terms.get(value, 0) + c
        return Linear(tuple([one for one in terms.items() if one[1]]), constant)

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
        step = form.coefficient(var)
        return Linear(tuple([one for one in form.terms if one[0] != var]), form.constant) if step else form, step

    def base_of(self, flat: Linear | Expr, offset: int, scope: Scope) -> Any:
        """The TIR of an element offset, so many elements further on."""
        if not isinstance(flat, Linear):
            return self.index_of(op("add", flat, offset), scope)
        constant = flat.constant + offset
        if not flat.terms:
            return int32(constant)
        known = self.sums.get(flat.terms)
        if known is None:
            known = self.sums[flat.terms] = self.index_of(Linear(flat.terms, 0).expr(), scope)
        return known if not constant else known + int32(constant) if constant > 0 else known - int32(-constant)

    def is_linear(self, access: Load, scope: Scope) -> bool:
        assert scope.vector is not None
        return self.form(access, scope) is not None or lane_step(self.flat(access, scope), scope.vector[0]) is not None

    def load(self, access: Load, scope: Scope) -> tuple[Any, int]:
        place = scope.storage[access.buffer]
        flat, step = self.located(access, scope)
        if step is None:  # every lane has an address of its own
            assert scope.vector is not None
            var, lanes = scope.vector
            single = [bind(scope, var, Const(k), 1) for k in range(lanes)]
            found = [self.load(access, Scope(s.values, s.ranges, s.storage, None, s.scratch))[0] for s in single]
            return tx.Shuffle(found, [int32(k) for k in range(lanes)]), lanes
        lanes = 1 if step == 0 or scope.vector is None else scope.vector[1]
        if isinstance(place, Registers):
            loaded = load_slots(place, number(flat), step, lanes)
        else:
            assert isinstance(place, Memory)
            base = self.base_of(flat, place.offset, scope)
            if lanes > 1 and 1 < step <= MOST_STEP:
                loaded = self.spread(place.buffer, base, step, lanes)
            else:
                loaded = tx.BufferLoad(place.buffer, [base if lanes == 1 else tx.Ramp(base, int32(step), lanes)])
        if place.region.dtype == "bool":
            loaded = tx.NE(loaded, widen(tx.IntImm("uint8", 0), 1, lanes))
        return loaded, lanes

    def spread(self, buffer: Any, base: Any, step: int, lanes: int) -> Any:
        """Every `step`-th element from `base` on, out of whole vectors: the last begins where it ends with what is
        wanted, so that nothing is read beyond."""
        starts = [min(k * lanes, (lanes - 1) * step + 1 - lanes) for k in range(step)]
        vectors = [tx.BufferLoad(buffer, [tx.Ramp(base + int32(s), int32(1), lanes)]) for s in starts]
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
        return tx.BufferStore(place.buffer, value, [base if lanes == 1 else tx.Ramp(base, int32(step or 0), lanes)])

    def index(self, e: Expr, scope: Scope) -> Any:
        """The TIR of an index expression, int32; the vector variable becomes a ramp."""
        e = simplify(substitute(e, scope.values), scope.ranges)
        return self.index_of(e, scope)

    def index_of(self, e: Expr, scope: Scope) -> Any:
        if isinstance(e, Const):
            return int32(int(e.value))
        if isinstance(e, Var):
            if scope.vector is not None and e.name == scope.vector[0]:
                return tx.Ramp(int32(0), int32(1), scope.vector[1])
            return self.loop_vars[e.name]
        if isinstance(e, Load):
            loaded, _ = self.load(e, scope)
            return tx.Cast("int32", loaded)
        if e.name in ("select", "cast", "bits") or OPERATIONS[e.name].result == "bool":
            value, _ = self.value(e, scope)
            return value if OPERATIONS[e.name].result == "bool" else tx.Cast("int32", value)
        if linear(e) is None and any(isinstance(x, Load) for x in walk(e)):
            value, _ = self.value(e, scope)
            return tx.Cast("int32", value)
        wide, lanes = [self.index_of(a, scope) for a in e.args], 1
        if scope.vector is not None and scope.vector[0] in variables(e):
            lanes = max(map(lanes_of, wide))
            wide = [widen(a, lanes_of(a), lanes) for a in wide]
        return INDEX_OPS[e.name](*wide) if e.name in INDEX_OPS else lower_op(e.name, wide, "int32", lanes)
