"""Nest -> TIR: one plain C function per phase.

    void NAME(T* param..., uint8_t* scratch, int32_t begin, int32_t end)

runs iterations [begin, end) of the phase's parallel loops, counted as of one. Unrolled loops are expanded here and
vector loops become vector expressions, so that TVM only simplifies and generates code: what the Nest says is what runs.
Register storage becomes one stack slot per vector, which LLVM promotes to registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod
from typing import Any, NamedTuple, TypeVar

from modelc.codegen.intrinsics.applications import (
    Application,
    Slots,
    TileFile,
    accumulating,
    application_of,
    common_shapes,
    lies_packed,
    on_tiles,
    slots_of,
    steps,
    stores_accumulators,
    tile_file,
)
from modelc.codegen.intrinsics.lowering import Place, emit, imported, release, set_up, store
from modelc.codegen.kernel import KernelStep
from modelc.codegen.lean_tvm import tvm, tx
from modelc.codegen.lower.expressions import Expressions
from modelc.codegen.lower.in_place import in_place
from modelc.codegen.lower.leaves import (
    accesses,
    depends,
    first_sides,
    guarded_value,
    holds_from_first,
    indexed_by_constants,
    is_inequality,
    selects_by_lanes,
    slot_width,
)
from modelc.codegen.lower.pipelining import pipelined
from modelc.codegen.lower.places import (
    Memory,
    Registers,
    Scope,
    Storage,
    bind,
    load_slots,
    number,
    store_slots,
    stored_dtype,
)
from modelc.codegen.lower.transpose import crossed
from modelc.codegen.math.llvm_text import importing, with_texts
from modelc.codegen.vectors import constant, halved, int32, integer, local_buffer, parameter, sequence, widen
from modelc.errors import InvalidIR
from modelc.ir.affine import Linear, bounds, simplify
from modelc.ir.block import AGGREGATIONS, compact_strides
from modelc.ir.expr import DTYPES, Const, Expr, Load, Op, Var, dtype_of, loads, op, select, substitute
from modelc.ir.nest import Alloc, Branch, Call, For, Leaf, Nest, Prefetch, Stmt, parallel_inside, phase_regions
from modelc.ir.nest import walk as statements
from modelc.ir.sizes import expr_of, is_sized, least, most
from modelc.target import Intrinsic
from modelc.target.intrinsic import Operand

STACK_BYTES = 1 << 14  # larger local storage is taken from the scratch of the thread; rows of tiles too: TVM aligns the
# stack to 16 bytes, and each would lie across two lines
ALIGN = 64

T = TypeVar("T", bound=Stmt)


class Phase(NamedTuple):
    """A step of a kernel, and its TIR."""

    step: KernelStep
    function: tx.PrimFunc


def lower_nest(nest: Nest, symbol: str, intrinsics: Sequence[Intrinsic] = (), address_bits: int = 64) -> list[Phase]:
    """The functions of `nest`, one per phase, named `symbol` and `symbol_1`, ...; `intrinsics` are what its loops may
    be tagged with."""
    names = [symbol if k == 0 else f"{symbol}_{k}" for k in range(len(nest.phases))]
    counts = f"int{address_bits}"
    return [_lowered(nest, phase, name, intrinsics, counts) for phase, name in zip(nest.phases, names, strict=True)]


def _lowered(nest: Nest, body: tuple[Stmt, ...], symbol: str, intrinsics: Sequence[Intrinsic], counts: str) -> Phase:
    first = _Lowering(nest, body, symbol, intrinsics, counts)
    phase = first.phase()
    return _Lowering(nest, body, symbol, intrinsics, counts, first.files).phase() if first.files else phase


def iterations(parallel: For | None) -> int:
    """How many iterations a phase's parallel loop and those inside it have together."""
    return 1 if parallel is None else parallel.extent * iterations(parallel_inside(parallel.body))


class _Lowering(Expressions):
    def __init__(
        self,
        nest: Nest,
        body: tuple[Stmt, ...],
        symbol: str,
        intrinsics: Sequence[Intrinsic],
        counts: str,
        shaped: Mapping[int, TileFile] | None = None,
    ):
        self.nest, self.body, self.symbol, self.intrinsics = nest, body, symbol, intrinsics
        self.shaped = shaped or {}  # what is known of `files` before they are lowered
        self.shapes: Mapping[int, tuple[int, int]] = {}  # of the tile registers, where lowering is
        self.files: dict[int, TileFile] = {}  # by the identity of their Alloc
        self.open: TileFile | None = None  # the last of them
        self.applied: dict[str, Intrinsic] = {}
        self.remembered: dict[int, tuple[Stmt, Any]] = {}  # what is the same for every copy of a statement, by identity
        regions = (*nest.params, *nest.temporaries, *(s.region for s in statements(body) if isinstance(s, Alloc)))
        super().__init__({r.name: r.dtype for r in regions}, counts)
        self.scratch_bytes = 0
        self.roomy: set[str] = set()  # Regions of which a vector may be read behind their end
        self.declared: list[Any] = []
        self.scratch_buffers: dict[str, Any] = {}
        self.scratch = tx.Var("scratch", tvm.ir.PointerType(tvm.ir.PrimType("uint8")))

    def phase(self) -> Phase:
        regions = phase_regions(self.nest, self.body)
        params, storage = [], {}
        for region in regions:
            itemsize = DTYPES[region.dtype].itemsize
            elements = max(region.bytes // itemsize, 1)
            pointer, buffer, declared = parameter(region.name, stored_dtype(region.dtype), elements, itemsize)
            self.declared.append(declared)
            params.append(pointer)
            storage[region.name] = Memory(region, buffer)
        begin, end = tx.Var("begin", "int32"), tx.Var("end", "int32")
        scope = Scope(storage=storage)
        first = parallel_inside(self.body)
        before = self.shaping(self.body)
        with importing() as texts:
            if first is not None:
                code = self.share(first, scope, tx.Cast(self.counts, begin), tx.Cast(self.counts, end))
            else:
                code = self.block(self.body, scope)
        if self.open is not None:
            code = [*before, *code, release(self.open.intrinsic)]
        body = with_texts(texts, imported(self.applied.values(), sequence([*self.declared, *code])))
        numbers = tuple(self.size_vars)
        function = tx.PrimFunc([*params, *self.size_vars.values(), self.scratch, begin, end], body)
        function = function.with_attr("global_symbol", self.symbol).with_attr("tirx.noalias", not in_place(self.nest))
        args, leaves = tuple(r.name for r in regions), (s for s in statements(self.body) if isinstance(s, Leaf))
        written = frozenset(write.buffer for leaf in leaves for write in leaf.writes) & {*args}
        applied = tuple(self.applied.values())
        extent = iterations(first)
        return Phase(KernelStep(self.symbol, args, written, extent, self.scratch_bytes, applied, numbers), function)

    def share(self, loop: For, scope: Scope, begin: Any, end: Any) -> list[Any]:
        """The iterations [begin, end) of nested parallel loops, in the numbering of the fused loop. An iteration of the
        outer loop runs the intersection of its own numbers with the interval."""
        inner, bound = parallel_inside(loop.body), bind(scope, loop.var, Var(loop.var), loop.extent)
        if inner is None:
            var, inside = self.inside(loop.var, lambda: self.block(loop.body, bound))
            return [tx.For(var, begin, end - begin, tx.ForKind.SERIAL, inside)]
        each = integer(self.counts, iterations(inner))
        zero, one = integer(self.counts, 0), integer(self.counts, 1)

        def body() -> list[Any]:
            before = self.loop_vars[loop.var] * each
            part = tx.Max(begin - before, zero), tx.Min(end - before, each)
            return [*self.block(loop.body[:-1], bound), *self.share(inner, bound, *part)]

        var, inside = self.inside(loop.var, body)
        first, behind = tx.floordiv(begin, each), tx.floordiv(end - one, each) + one
        return [tx.For(var, first, behind - first, tx.ForKind.SERIAL, inside)]

    def prefetch(self, stmt: Prefetch, scope: Scope) -> Any:
        """A read that is soon to come, into the second-level cache: what is worked on keeps the first to itself; or a
        write, for which the line has to be ours."""
        place = scope.storage[stmt.access.buffer]
        assert isinstance(place, Memory)
        form = self.form(stmt.access, scope)
        at = self.base_of(self.flat(stmt.access, scope) if form is None else form, place.offset, scope)
        address = tx.address_of(tx.BufferLoad(place.buffer, [at]))
        kind = (int32(1), int32(3)) if stmt.write else (int32(0), int32(2))
        return tx.Evaluate(tx.call_llvm_intrin("void", "llvm.prefetch", address, *kind, int32(1)))

    def serial(self, name: str, extent: int, body: Callable[[], list[Any]]) -> Any:
        self.forget()
        var, inside = self.inside(name, body)
        self.forget()
        count = self.index_of(expr_of(extent), Scope())
        return tx.For(var, integer(self.counts, 0), count, tx.ForKind.SERIAL, inside)

    def forget(self) -> None:
        """The end of a straight line of code: what tile registers hold is not known any more."""
        if self.open is not None:
            self.open.forget()

    def shaping(self, body: tuple[Stmt, ...]) -> list[Any]:
        """Statements that shape the tile registers for all of `body`, if that is possible and they are not so."""
        files = [self.shaped[id(s)] for s in statements(body) if isinstance(s, Alloc) and id(s) in self.shaped]
        if not files:
            return []
        shapes = common_shapes(files)
        if shapes is None:
            self.shapes = {}
            return []
        if shapes.items() <= self.shapes.items():
            return []
        self.shapes = shapes
        return set_up(files[0].intrinsic, shapes)

    # --- statements -----------------------------------------------------------------------------------------------

    def block(self, body: tuple[Stmt, ...], scope: Scope) -> list[Any]:
        result: list[Any] = []
        for k, stmt in enumerate(body):
            result += self.shaping((stmt,))
            if isinstance(stmt, Alloc):
                scope, allocs = self.allocate(stmt, body[k + 1 :], scope)
                result += allocs
            elif isinstance(stmt, For):
                result += self.loop(stmt, scope)
            elif isinstance(stmt, Branch):
                condition = self.value(stmt.condition, scope)[0]
                shapes = self.shapes
                self.forget()
                then = sequence(self.block(stmt.then, scope))
                self.forget()
                then_shapes, self.shapes = self.shapes, shapes
                otherwise = sequence(self.block(stmt.otherwise, scope)) if stmt.otherwise else None
                self.forget()
                self.shapes = self.shapes if self.shapes == then_shapes else {}
                result.append(tx.IfThenElse(condition, then, otherwise))
            elif isinstance(stmt, Leaf):
                self.forget()
                result += self.leaf(stmt, scope)
            elif isinstance(stmt, Prefetch):
                result.append(self.prefetch(stmt, scope))
            else:
                assert isinstance(stmt, Call)
                raise InvalidIR(f"opaque block {stmt.block} inside a loop of {self.nest.name}")
        return result

    def loop(self, loop: For, scope: Scope) -> list[Any]:
        if loop.tag == "unroll":
            if (moved := crossed(self, loop, scope)) is not None:
                return moved
            return [s for k in range(loop.extent) for s in self.block(loop.body, bind(scope, loop.var, Const(k), 1))]
        if loop.intrinsic is not None:
            return self.application(loop, scope)
        if loop.tag == "vector" and all(isinstance(s, Leaf) for s in loop.body):
            vector = replace(bind(scope, loop.var, Var(loop.var), loop.extent), vector=(loop.var, loop.extent))
            return [s for leaf in loop.body for s in self.vector_leaf(leaf, vector)]  # type: ignore[arg-type]
        if loop.tag == "pipeline":
            return self.block(pipelined(loop), scope)
        bound = bind(scope, loop.var, Var(loop.var), loop.extent)
        return [self.serial(loop.var, loop.extent, lambda: self.block(loop.body, bound))]

    def allocate(self, alloc: Alloc, after: tuple[Stmt, ...], scope: Scope) -> tuple[Scope, list[Any]]:
        region = alloc.region
        accumulated = accumulating(region, after, self.intrinsics) if alloc.scope == "register" else []
        dtype, itemsize, size = stored_dtype(region.dtype), DTYPES[region.dtype].itemsize, prod(map(most, region.shape))
        if alloc.scope != "register" and any(map(is_sized, region.shape)):
            size += ALIGN // itemsize  # for the lanes of a last vector
            self.roomy.add(region.name)
        else:
            self.roomy.discard(region.name)
        place: Storage
        stmts: list[Any] = []
        used = scope.scratch
        if accumulated and accumulated[0].intrinsic.tiles is not None:
            place = self.files[id(alloc)] = self.open = tile_file(region, accumulated)
        elif accumulated and len(accumulated[0].intrinsic.accumulator.shape) > 1:
            place = slots_of(region, accumulated[0])
            stmts = [tx.AllocBuffer(s) for s in place.slots]
        elif alloc.scope == "register" and indexed_by_constants(region.name, after):
            width = slot_width(region, after, ALIGN // itemsize)
            slots = [local_buffer(width, dtype, f"{region.name}_{k}") for k in range(size // width)]
            stmts = [tx.AllocBuffer(s) for s in slots]
            place = Registers(region, slots, width)
        elif size * itemsize <= STACK_BYTES and not stores_accumulators(region, after, self.intrinsics):
            buffer = local_buffer(max(size, 1), dtype, f"{region.name}_")
            stmts = [tx.AllocBuffer(buffer)]
            place = Memory(region, buffer)
        else:
            place = Memory(region, self.scratch_buffer(dtype), scope.scratch // itemsize)
            used = scope.scratch + -(-size * itemsize // ALIGN) * ALIGN
            self.scratch_bytes = max(self.scratch_bytes, used)
        return replace(scope, storage={**scope.storage, region.name: place}, scratch=used), stmts

    def scratch_buffer(self, dtype: str) -> Any:
        """The scratch pointer as a buffer of `dtype`."""
        if dtype not in self.scratch_buffers:
            buffer = tx.decl_buffer((1 << 30,), dtype, f"scratch_{dtype}")
            data = tx.reinterpret(tvm.ir.PointerType(tvm.ir.PrimType(dtype)), self.scratch)
            self.declared.append(tx.DeclBuffer(buffer, data=data))
            self.scratch_buffers[dtype] = buffer
        return self.scratch_buffers[dtype]

    # --- intrinsics -----------------------------------------------------------------------------------------------

    def once(self, stmt: T, compute: Callable[[T], Any]) -> Any:
        """What is computed of a statement: the same for every copy of it."""
        if id(stmt) not in self.remembered:
            self.remembered[id(stmt)] = stmt, compute(stmt)
        return self.remembered[id(stmt)][1]

    def applied_by(self, loop: For) -> tuple[Application, Mapping[str, Load]]:
        """What the loops from `loop` on apply, and of an update what each operand is."""
        application = application_of(loop, self.intrinsics)
        return application, application.accesses(self.dtypes) if application.leaf.part == "update" else {}

    def application(self, loop: For, scope: Scope) -> list[Any]:
        """One application of an intrinsic."""
        application, accesses = self.once(loop, self.applied_by)
        intrinsic, leaf, names = application.intrinsic, application.leaf, application.variables
        self.applied[intrinsic.name] = intrinsic
        inner = scope
        for applied_loop in application.loops:
            inner = bind(inner, applied_loop.var, Var(applied_loop.var), applied_loop.extent)

        def offset(access: Load) -> Linear | Expr:
            form = self.form(access, inner)
            return self.flat(access, inner) if form is None else form

        def locate(operand: Operand, access: Load) -> tuple[Place, Linear | Expr]:
            place = scope.storage[access.buffer]
            assert isinstance(place, Memory)
            base, strides = steps(operand, offset(access), names)
            if isinstance(base, Linear):
                base = Linear(base.terms, base.constant + place.offset)
            else:
                base = simplify(op("add", base, place.offset), scope.ranges)
            extents = application.partial
            if leaf.part == "update" and extents and lies_packed(application, operand, access, place.region.shape):
                strides, extents = compact_strides(operand.shape), {}
            return Place(place.buffer, self.base_of(base, 0, scope), strides, extents), base

        held = leaf.body[0] if leaf.part == "assign" else leaf.writes[0]
        assert isinstance(held, Load)
        place = scope.storage[held.buffer]
        if isinstance(place, TileFile):
            return on_tiles(application, accesses, place, offset, locate)
        assert isinstance(place, Registers | Slots)
        accumulator = intrinsic.accumulator
        first, _ = steps(accumulator, offset(held), names)
        lanes = accumulator.type.lanes
        if leaf.part == "assign":
            there, _ = locate(accumulator, leaf.writes[0])
            return store(accumulator, there, load_slots(place, number(first), 1, lanes))
        if leaf.part == "init":
            value = widen(constant(Const(0, accumulator.dtype)), 1, lanes)
        else:
            operands: dict[str, Any] = {accumulator.name: load_slots(place, number(first), 1, lanes)}
            for name, access in accesses.items():
                if name != accumulator.name:
                    operands[name], _ = locate(intrinsic.operand(name), access)
            value = emit(intrinsic, operands)
        return [store_slots(place, number(first), 1, value, lanes)]

    # --- leaves ---------------------------------------------------------------------------------------------------

    def leaf(self, leaf: Leaf, scope: Scope) -> list[Any]:
        """One execution of a leaf: on scalars, or for all lanes of the vector loop around it."""
        return self.guarded(leaf, self.with_bindings(lambda: self.stores(leaf, scope)), scope)

    def guarded(self, leaf: Leaf, stores: list[Any], scope: Scope) -> list[Any]:
        if not leaf.where:
            return stores
        return [tx.IfThenElse(self.all_of(leaf.where, scope), sequence(stores), None)]

    def all_of(self, conditions: Iterable[Expr], scope: Scope) -> Any:
        return reduce(tx.And, [self.value(c, scope)[0] for c in conditions])

    def with_stored(self, leaf: Leaf, values: list[Any], scope: Scope, lanes: int = 1) -> list[Any]:
        """What is stored already, combined with `values`."""
        return self.combined(leaf, [widen(*self.load(w, scope), lanes) for w in leaf.writes], values, lanes)

    def combined(self, leaf: Leaf, a: list[Any], b: list[Any], lanes: int) -> list[Any]:
        """What a Leaf's aggregation makes of two values of each of its results."""
        sides = [tuple(Load(f"{side}{i}", ()) for i in range(len(a))) for side in "ab"]
        names = [x.buffer for side in sides for x in side]
        values_by_name = dict(zip(names, map(self.bound, (*a, *b)), strict=True))
        kinds = dict(zip(names, 2 * [self.dtypes[w.buffer] for w in leaf.writes], strict=True))
        exprs = AGGREGATIONS[leaf.aggregation].combine(*sides)
        return [self.known_value(e, values_by_name, kinds, lanes) for e in exprs]

    def known_value(self, e: Expr, values_by_name: Mapping[str, Any], kinds: Mapping[str, str], lanes: int) -> Any:
        if isinstance(e, Load):
            return values_by_name[e.buffer]
        assert isinstance(e, Op)
        args = [self.known_value(a, values_by_name, kinds, lanes) for a in e.args]
        return self.operate(e.name, args, dtype_of(e.args[-1], kinds), lanes)

    def vector_leaf(self, leaf: Leaf, scope: Scope) -> list[Any]:
        """A leaf executed for all lanes of the vector loop around it."""
        assert scope.vector is not None
        var, _ = scope.vector
        if not all(self.is_linear(w, scope) for w in leaf.writes):
            return self.lane_by_lane(leaf, scope)
        if any(depends(c, var) for c in leaf.where):
            return self.split_conditions(leaf, scope)
        leaf, guards, selects = self.once(leaf, lambda leaf: selects_by_lanes(leaf, var))
        if guards:
            return self.split_guards(leaf, guards, scope)
        if any(self.is_guarding(x, scope) for x in selects):
            return self.lane_by_lane(leaf, scope)
        if any(self.dtypes[w.buffer] == "bool" and leaf.part == "update" for w in leaf.writes):
            return self.lane_by_lane(leaf, scope)
        if len(leaf.body) == 1 and (guarded := guarded_value(leaf.body[0], var)) is not None:
            return self.branch(leaf, *guarded, scope)
        return self.leaf(leaf, scope)

    def branch(self, leaf: Leaf, conditions: list[Expr], then: Expr, otherwise: Expr, scope: Scope) -> list[Any]:
        """A leaf whose whole value hangs on conditions that are the same for all lanes: a branch around the vector."""
        condition = self.all_of(conditions, scope)
        sides = [sequence(self.vector_leaf(replace(leaf, body=(side,)), scope)) for side in (then, otherwise)]
        return [tx.IfThenElse(condition, *sides)]

    def stores(self, leaf: Leaf, scope: Scope) -> list[Any]:
        var, lanes = scope.vector or ("", 1)
        values = [self.value(b, scope) for b in leaf.body]
        if leaf.part == "update" and scope.vector is not None and not any(depends(w, var) for w in leaf.writes):
            return self.across_lanes(leaf, values, scope)
        wide = [widen(v, n, lanes) for v, n in values]
        if leaf.part == "update":
            wide = self.with_stored(leaf, wide, scope, lanes)
        return [self.store(w, v, scope, lanes) for w, v in zip(leaf.writes, wide, strict=True)]

    def lane_by_lane(self, leaf: Leaf, scope: Scope) -> list[Any]:
        assert scope.vector is not None
        var, lanes = scope.vector
        if lanes > 4 and not any(isinstance(scope.storage[x.buffer], Registers) for x in accesses(leaf)):
            # a loop, not copies: this is not the hot path
            return [self.serial(var, lanes, lambda: self.leaf(leaf, replace(scope, vector=None)))]
        scalar = [bind(scope, var, Const(k), 1) for k in range(lanes)]
        return [s for lane_scope in scalar for s in self.leaf(leaf, replace(lane_scope, vector=None))]

    def split_conditions(self, leaf: Leaf, scope: Scope) -> list[Any]:
        """Whole vectors where every lane meets a Leaf's conditions, else lane by lane: of inequalities in the lane the
        first and the last one decide. Where what is read has room behind it, lanes that do not meet them combine
        nothing."""
        assert scope.vector is not None
        var, lanes = scope.vector
        of_lanes = [c for c in leaf.where if depends(c, var)]
        if not all(is_inequality(c, var) for c in of_lanes):
            return self.lane_by_lane(leaf, scope)
        unmasked = replace(leaf, where=tuple(c for c in leaf.where if c not in of_lanes))
        first, last = ([substitute(c, {var: Const(k)}) for c in of_lanes] for k in (0, lanes - 1))
        if leaf.part == "update" and self.has_room(leaf, var) and all(holds_from_first(c, var) for c in of_lanes):
            nothing = AGGREGATIONS[leaf.aggregation].identity(tuple(self.dtypes[w.buffer] for w in leaf.writes))
            met = reduce(partial(op, "and"), of_lanes)
            body = tuple(select(met, value, none) for value, none in zip(leaf.body, nothing, strict=True))
            masked = sequence(self.leaf(replace(unmasked, body=body), scope))
            return [tx.IfThenElse(self.all_of(first, scope), masked, None)]
        then = sequence(self.vector_leaf(unmasked, scope))
        return [tx.IfThenElse(self.all_of((*first, *last), scope), then, sequence(self.lane_by_lane(leaf, scope)))]

    def has_room(self, leaf: Leaf, var: str) -> bool:
        """Whether a vector may be read behind the end of everything that differs from lane to lane."""
        return all(x.buffer in self.roomy for value in leaf.body for x in loads(value) if depends(x, var))

    def split_guards(self, leaf: Leaf, guards: list[Expr], scope: Scope) -> list[Any]:
        """Whole vectors where every lane takes the first side of its selects, else lane by lane. The conditions are
        inequalities in the lane, so the first and the last lane decide."""
        assert scope.vector is not None
        var, lanes = scope.vector
        inside = self.all_of((substitute(g, {var: Const(k)}) for g in guards for k in (0, lanes - 1)), scope)
        body = tuple(first_sides(b, guards) for b in leaf.body)
        then = self.vector_leaf(replace(leaf, body=body), scope)
        return [tx.IfThenElse(inside, sequence(then), sequence(self.lane_by_lane(leaf, scope)))]

    def is_guarding(self, e: Op, scope: Scope) -> bool:
        """Whether the select `e`, by lanes, has a load that only its condition keeps inside its Region."""
        for access in (x for arm in e.args[1:] for x in loads(arm)):
            for index, extent in zip(access.indices, scope.storage[access.buffer].region.shape, strict=True):
                limits = bounds(simplify(substitute(index, scope.values), scope.ranges), scope.ranges)
                if limits is None or limits[0] < 0 or limits[1] >= least(extent):
                    return True
        return False

    def across_lanes(self, leaf: Leaf, values: list[tuple[Any, int]], scope: Scope) -> list[Any]:
        """Lanes combined by halving, then with what is stored."""
        assert scope.vector is not None
        lanes = scope.vector[1]
        combine = partial(self.combined, leaf)
        wide = halved([widen(v, n, lanes) for v, n in values], lanes, combine, self.bound)
        wide = self.with_stored(leaf, wide, scope)
        return [self.store(w, v, scope, 1) for w, v in zip(leaf.writes, wide, strict=True)]
