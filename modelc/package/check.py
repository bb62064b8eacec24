"""Whether the parts of a package fit together: its variants, steps, arguments, parameters and free sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import cast

from modelc.errors import PackageError
from modelc.ir.sizes import least, most, same, sized
from modelc.package.spec import (
    ALIGNMENT,
    RANDOM_BYTES,
    SIZE_BYTES,
    SLOTS,
    Argument,
    Branch,
    Carried,
    Made,
    Moving,
    PackageSpec,
    Plan,
    Repeat,
    Step,
    SummedConstant,
    made_bytes,
    parts_of,
)
from modelc.package.tensor import DTYPE_BYTES, TensorInfo
from modelc.runtime.library import FOUND, LENGTH

MOST_BYTES = 2**63 - 1  # of a tensor
WIDENED = ("int8", "uint8", "int16", "float16")  # what the runtime makes floats of
MOST_CHECKED_RANK = 32  # MC_MOST_RANK in modelc_runtime.h


def check_spec(spec: PackageSpec) -> None:
    """Raises PackageError if the parts do not fit together: a mistake of code generation, not of a user."""
    _check_params(spec)
    check_made(spec.made, spec.params_bytes)
    check_plans(spec.variants, spec.params_bytes, f"package '{spec.name}'", made_bytes(spec.made))


def check_plans(variants: tuple[Plan, ...], params_bytes: int, where: str, made: int = 0) -> None:
    """Raises PackageError if the variants do not fit each other, or a step uses what is not there."""
    if not variants:
        raise PackageError(f"{where} has no variant")
    first = variants[0]
    for number, plan in enumerate(variants):
        for tensors, of_first in ((plan.inputs, first.inputs), (plan.outputs, first.outputs)):
            _check_tensors(tensors, f"variant {number} of {where}")
            if [(t.name, t.dtype) for t in tensors] != [(t.name, t.dtype) for t in of_first]:
                raise PackageError(f"variant {number} of {where} differs from variant 0 in more than shapes")
        _check_control(plan, f"variant {number} of {where}")
        _check_free(plan, f"variant {number} of {where}")
        ranks = [len(t.shape) for t in plan.outputs]
        if any(not (0 <= s.output < len(ranks) and 0 <= s.axis < ranks[s.output]) for s in plan.sizes):
            raise PackageError(f"variant {number} of {where} has sizes of outputs or axes that are not there")
        spaces = _spaces(plan, params_bytes, made)
        for place in (x for control in plan.control for part in parts_of(control) for x in vars(part).values()):
            if isinstance(place, Argument):
                _check_argument(place, 1, spaces, "control flow")
        end = 0
        for loop in plan.loops:
            if loop.first < end or loop.length < 1 or loop.count < 1 or loop.end > len(plan.steps):
                raise PackageError(
                    f"variant {number} of {where} has a loop over steps that are not there, or another's"
                )
            end = loop.end
        for step, calls in zip(plan.steps, plan.calls, strict=True):
            _check_step(step, calls, spaces)
    shapes = [tuple(t.shape for t in plan.inputs) for plan in variants]
    if len(set(shapes)) != len(shapes):
        raise PackageError(f"two variants of {where} have equal input shapes")


def _check_params(spec: PackageSpec) -> None:
    end = 0
    for offset, array in spec.params:
        if offset % ALIGNMENT or offset < end:
            raise PackageError(
                f"the parameters at offset {offset} are not {ALIGNMENT}-byte aligned, or overlap those before"
            )
        end = offset + array.nbytes


def check_made(made: Sequence[Made], params_bytes: int) -> None:
    """Raises PackageError unless constants that opening makes lie apart, and are made of parameters that are there."""
    end = 0
    for constant in made:
        places, ends = [constant.offset, constant.source], [constant.source + constant.source_bytes]
        if isinstance(constant, SummedConstant):
            extents: tuple[int, ...] = (constant.outer, constant.rows, constant.columns, constant.inner)
            fits = constant.matrix >= 0
            if constant.widened:
                ends = [constant.source + constant.source_bytes + params_bytes - end]
        else:
            extents, strides = constant.extents, constant.strides
            fits = constant.dtype in WIDENED and 0 < len(extents) == len(strides) and min(strides) >= 0
            places.append(constant.factors)
            ends.append(constant.factors + constant.factor_bytes if fits else 0)
        fits = fits and min(extents) >= 1 and prod(extents) < 2**31 and max(ends) <= params_bytes
        if not fits or constant.offset < end or min(places) < 0 or any(place % ALIGNMENT for place in places):
            raise PackageError(f"the constant that is made at {constant.offset} of {constant.source} cannot be made so")
        end = constant.offset + constant.bytes


def _check_tensors(tensors: tuple[TensorInfo, ...], where: str) -> None:
    if len({t.name for t in tensors}) != len(tensors):
        raise PackageError(f"two inputs or two outputs of {where} have the same name")
    for tensor in tensors:
        if tensor.dtype not in DTYPE_BYTES or any(extent < 0 for extent in tensor.shape) or tensor.bytes > MOST_BYTES:
            raise PackageError(f"'{tensor.name}' of {where} has dtype {tensor.dtype} and shape {list(tensor.shape)}")
        if "\0" in tensor.name:
            raise PackageError(f"{tensor.name!r} of {where} has a null character in its name, where C's strings end")


def _spaces(plan: Plan, params_bytes: int, made: int) -> Mapping[str, tuple[int, ...]]:
    """The bytes of each buffer that arguments may lie in, by space."""
    return {
        "input": tuple(t.bytes for t in plan.inputs),
        "output": tuple(t.bytes for t in plan.outputs),
        "slot": plan.slots,
        "size": (SIZE_BYTES,) * len(plan.sizes),
        "dim": tuple(SIZE_BYTES * size.is_found for size in plan.free),
        "arena": (plan.arena_bytes,),
        "params": (params_bytes,),
        "made": (made,),
        "random": (RANDOM_BYTES,),
    }


def _check_step(step: Step, calls: int, spaces: Mapping[str, tuple[int, ...]]) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", step.symbol) or step.symbol.startswith(("mc_", "modelc_", "step_")):
        raise PackageError(f"step '{step.name}' has the symbol '{step.symbol}', which cannot name a kernel")
    if not 0 <= least(step.extent) <= most(step.extent) < 2**31:
        raise PackageError(
            f"step '{step.name}' has an outermost loop of {step.extent} iterations; below 2^31 is possible"
        )
    for check in step.checks:
        if check.dtype not in ("int32", "int64") or len(check.shape) > MOST_CHECKED_RANK:
            raise PackageError(f"step '{step.name}' checks '{check.value}', {check.dtype} {list(check.shape)}")
    if any(most(cast(int, number)) < 0 for number in (step.flops, step.bytes)):
        raise PackageError(f"step '{step.name}' does less than nothing: {step.flops} operations, {step.bytes} bytes")
    for argument in (*step.arguments, *(check.argument for check in step.checks)):
        _check_argument(argument, calls, spaces, f"step '{step.name}'")


def _check_argument(argument: Argument, calls: int, spaces: Mapping[str, tuple[int, ...]], what: str) -> None:
    if argument.space not in spaces:
        raise PackageError(f"{what} has an argument in '{argument.space}'")
    sizes = spaces[argument.space]
    if not 0 <= argument.index < len(sizes):
        raise PackageError(f"{what} uses {argument.space} {argument.index} of {len(sizes)}")
    size, last = sizes[argument.index], argument.offset + (calls - 1) * argument.stride
    if not 0 <= min(least(argument.offset), least(last)) <= max(most(argument.offset), most(last)) <= size:
        raise PackageError(f"{what} uses offset {argument.offset} of {argument.space}, which has {size} bytes")


def _check_free(plan: Plan, where: str) -> None:
    """Raises PackageError unless each free size is what an input has along an axis, and shapes are the most that the
    extents say."""
    names = [size.name for size in plan.free]
    if len(set(names)) != len(names):
        raise PackageError(f"{where} has two free sizes of the same name")
    for tensor in (*plan.inputs, *plan.outputs):
        extents = tensor.extents or tensor.shape
        if (
            len(extents) != len(tensor.shape)
            or tuple(map(most, extents)) != tensor.shape
            or min(map(least, extents), default=0) < 0
        ):
            raise PackageError(
                f"'{tensor.name}' of {where} has the shape {list(tensor.shape)}, and extents {list(extents)}, of which "
                "it is not the most"
            )
    for size in plan.lengths:
        if size.axis != -1 or not 0 <= size.least <= size.most or least(size.growth) < 0:
            raise PackageError(f"{where} has a cache of the length '{size.name}' that does not grow")
    for k in (k for k, size in enumerate(plan.free) if size.is_found):
        writes = [step for step in plan.steps for n in step.written if step.arguments[n] == Argument("dim", k)]
        if len(writes) != 1 or not 0 <= plan.free[k].least <= plan.free[k].most:
            raise PackageError(f"{where} has the free size '{plan.free[k].name}', which not one step finds")
    for size in (size for size in plan.free if size.input not in (LENGTH, FOUND)):
        there = 0 <= size.input < len(plan.inputs) and 0 <= size.axis < len(plan.inputs[size.input].extents)
        extent = plan.inputs[size.input].extents[size.axis] if there else 0
        if not there or size.least > size.most or not same(extent, size.unit * sized(size.size)):
            raise PackageError(f"{where} has the free size '{size.name}', which no input has along that axis")
        if any(not size.least <= n <= size.most for n in size.matter):
            raise PackageError(f"{where} has the free size '{size.name}', of which a size matters that it cannot be")
    for step in plan.steps:
        if not {*step.takes} <= {*names}:
            raise PackageError(
                f"step '{step.name}' takes {', '.join(step.takes)}, and free sizes are {', '.join(names)}"
            )
        for check in step.checks:
            if min(map(least, check.shape), default=0) < 0 or len(check.shape) != len(check.strides):
                raise PackageError(f"step '{step.name}' checks '{check.value}' {list(check.shape)}")


def _check_control(plan: Plan, where: str) -> None:
    """Raises PackageError unless control flow is over steps that are there, and within each other, each before what is
    within it."""
    around = [(0, len(plan.steps))]
    spans = [(c.first, c.end, (c.middle,) if isinstance(c, Branch) else ()) for c in plan.control]
    for first, end, cuts in spans:
        while around and first >= around[-1][1]:
            around.pop()
        if not around or not around[-1][0] <= first < end <= around[-1][1]:
            raise PackageError(f"{where} has control flow over steps {first} to {end}, which reach outside it")
        cut = cuts[0] if cuts else end
        if not first <= cut <= end:
            raise PackageError(f"{where} has a branch of steps {first} to {end} that parts at {cut}")
        around += [part for part in ((cut, end), (first, cut)) if part[0] < part[1]]
    for control in plan.control:
        numbers = [least(part.bytes) for part in parts_of(control) if isinstance(part, Carried | Moving)]
        if min(numbers, default=0) < 0 or (isinstance(control, Repeat) and least(control.limit) < -1):
            raise PackageError(f"{where} has a loop over parts of fewer than no bytes, or of fewer than no iterations")
    for what, parts in (("states", plan.states), ("control flow", [x for c in plan.control for x in parts_of(c)])):
        slots = [n for part in parts for name, n in vars(part).items() if name in SLOTS]
        if any(not 0 <= slot < len(plan.slots) for slot in slots):
            raise PackageError(f"{where} has {what} over slots that are not there")
