"""Nest -> object file: lowering through TVM's passes and LLVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

from modelc.codegen.intrinsics.checked import require_checked
from modelc.codegen.kernel import Kernel, KernelStep
from modelc.codegen.lean_tvm import tvm
from modelc.codegen.llvm import build_module, object_code
from modelc.codegen.llvm_check import check_llvm
from modelc.codegen.lower.nest import lower_nest
from modelc.codegen.opaque import opaque_source
from modelc.codegen.opaque_sizes import general_source, opaque_samples
from modelc.errors import InvalidIR
from modelc.ir.explain import Explained, Unexplained
from modelc.ir.expr import Op, Size, operations
from modelc.ir.generalise import generalised, instance, nest_at
from modelc.ir.nest import Call, For, Leaf, Nest, Stmt, walk
from modelc.ir.scalar import OPERATIONS
from modelc.ir.sizes import most, sizes_of
from modelc.target import Target, llvm_target

SHORT = 16  # iterations of a loop that LLVM may unroll to its gain
LOADED_WHERE_USED = "-sink-insts-to-avoid-spills:bool=true"  # constants, of LLVM's machine code


def compile_nest(nest: Nest, symbol: str, target: Target) -> Kernel:
    """Machine code for `nest`. Deterministic: equal nests give equal bytes."""
    temporaries = tuple((t.name, t.bytes) for t in nest.temporaries)
    calls = [s for phase in nest.phases for s in phase if isinstance(s, Call)]
    if calls:
        return opaque_kernel(nest, calls, symbol, temporaries)
    options = (LOADED_WHERE_USED,) if target.architecture.memory_operands and spills_accumulators(nest) else ()
    machine = llvm_machine(target, options, 3 if leaves_short_loops(nest) else 2)
    with machine:  # some operations have a cheaper form on some machines
        phases = lower_nest(nest, symbol, target.available_intrinsics, target.architecture.address_bits)
    functions = {p.step.symbol: p.function.with_attr("target", machine) for p in phases}
    code = object_code(build_module(tvm.IRModule(functions), machine), machine)
    return Kernel(symbol, code, None, tuple(p.step for p in phases), temporaries)


def spills_accumulators(nest: Nest) -> bool:
    """Whether polynomials are computed beside a contraction: LLVM keeps their constants in registers over all loops,
    and spills accumulators for them."""
    leaves = [s for phase in nest.phases for s in walk(phase) if isinstance(s, Leaf)]
    called = {name for leaf in leaves for x in leaf.body for name in operations(x)}
    contracted = (x for leaf in leaves if leaf.part == "update" and leaf.aggregation == "add" for x in leaf.body)
    return any(OPERATIONS[name].constants for name in called) and any(
        isinstance(x, Op) and x.name == "mul" for x in contracted
    )


def leaves_short_loops(nest: Nest) -> bool:
    """Whether there are innermost loops of few iterations, which LLVM's level 3 unrolls: windows of depthwise
    convolutions take 0.5 to 0.7 of the time then. Elsewhere that level compiles a fifth longer than level 2, for
    kernels that are as fast."""
    return any(
        is_rolled(s) and most(s.extent) <= SHORT and not any(map(is_rolled, walk(s.body))) for s in nest.statements()
    )


def is_rolled(stmt: Stmt) -> TypeGuard[For]:
    return isinstance(stmt, For) and stmt.tag == "for"


def llvm_machine(target: Target, llvm_options: Sequence[str] = (), level: int = 3) -> tvm.target.Target:
    """The target as TVM's, with options of LLVM's own and a `level` of its optimisation. Raises TargetError for a CPU
    that LLVM does not know, which TVM would ignore, or that is none of the triple's, for which LLVM would end the
    process; and for intrinsics of the user's that do not compute what they say."""
    options = llvm_target(target)
    options["opt-level"] = level
    if llvm_options:
        options["cl-opt"] = [*llvm_options]
    check_llvm(target)
    require_checked(target)
    return tvm.target.Target(options)


def opaque_kernel(nest: Nest, calls: list[Call], symbol: str, temporaries: tuple[tuple[str, int], ...]) -> Kernel:
    """A Task that is one opaque Block, as C source."""
    (call,) = calls
    if free := sizes_of(n for region in nest.params for n in region.shape):
        return _opaque_of_any_size(nest, call, symbol, temporaries, free)
    regions = {r.name: r for r in (*nest.params, *nest.temporaries)}
    inputs, outputs = ([(regions[n].dtype, regions[n].shape) for n in names] for names in (call.inputs, call.outputs))
    source, extent, scratch = opaque_source(symbol, call.meaning, dict(call.attrs), inputs, outputs)
    step = KernelStep(symbol, (*call.inputs, *call.outputs), frozenset(call.outputs), extent, scratch)
    return Kernel(symbol, None, source, (step,), temporaries)


def _opaque_of_any_size(
    nest: Nest, call: Call, symbol: str, temporaries: tuple[tuple[str, int], ...], free: Sequence[Size]
) -> Kernel:
    """The same of a Block of any size: its source at several sizes, of which the numbers that differ are explained."""
    runs = opaque_samples(free)
    kernels = [opaque_kernel(nest_at(nest, run), [instance(call, run)], symbol, ()) for run in runs]
    explained = Explained(tuple(free), tuple(runs))
    try:
        source = general_source([str(kernel.source) for kernel in kernels], explained)
        (step,) = generalised([kernel.steps for kernel in kernels], explained)
    except Unexplained as wrong:
        raise InvalidIR(f"{call.meaning} is not compiled for every size: {wrong}") from None
    step = replace(step, scratch_bytes=most(step.scratch_bytes), sizes=tuple(free))
    return Kernel(symbol, None, source, (step,), temporaries)
