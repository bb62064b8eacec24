"""(Task, Candidate, Target) -> one kernel in a shared library, and the constants as it reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from modelc.errors import MISFIT, InvalidIR
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.nest import Alloc, Nest
from modelc.measure.data import Array, Arrays, packed
from modelc.measure.measurement import Limits
from modelc.package import compile_kernel, find_toolchain, link_kernel
from modelc.space.check import unrolled
from modelc.space.choose import accepted
from modelc.space.rules.derivation import rounding_error
from modelc.target import Target

if TYPE_CHECKING:
    from modelc.codegen.kernel import Kernel

SYMBOL = "kernel"


@dataclass(frozen=True)
class Scheduled:
    """A Candidate that its Task accepts: the Task after its stages, the Nest, every constant's bytes as the Nest reads
    them, and whether rules among the stages round otherwise than the Task does."""

    derived: Task
    nest: Nest
    constants: Arrays
    filtered: bool


@dataclass(frozen=True)
class Built:
    """A kernel and the shared library with it."""

    kernel: Kernel
    library: bytes


def schedule(
    task: Task, candidate: Candidate, target: Target, constants: Mapping[str, Array], limits: Limits, verify: bool
) -> Scheduled:
    """Raises InvalidIR for a Candidate that breaks a constraint, is no schedule of this Task, or is too large; see
    accepted() of `verify`."""
    try:
        verified = accepted(task, candidate, target, verify)
        check_sizes(verified.nest, limits)
        stored = packed(task, candidate, constants)
        return Scheduled(verified.task, verified.nest, stored, rounding_error(task, candidate.stages) > 0)
    except InvalidIR:
        raise
    except MISFIT as wrong:  # a Candidate is data from elsewhere: what builds loops meets it unprepared
        raise InvalidIR(f"it is no schedule of this task: {type(wrong).__name__}: {wrong}") from wrong


def check_sizes(nest: Nest, limits: Limits) -> None:
    """Raises InvalidIR for a Nest of more statements after unrolling, or more memory, than `limits` say."""
    if (count := sum(map(unrolled, nest.phases))) > limits.statements:
        raise InvalidIR(f"it unrolls to {count} statements, and may have {limits.statements}")
    own = sum(s.region.bytes for s in nest.statements() if isinstance(s, Alloc))
    if (taken := own + sum(r.bytes for r in (*nest.params, *nest.temporaries))) > limits.buffer_bytes:
        raise InvalidIR(f"it takes {taken} bytes of memory, and may take {limits.buffer_bytes}")


def build(nest: Nest, target: Target, symbol: str = SYMBOL) -> Built:
    """Machine code for a Nest. Raises whatever code generation and linking do."""
    from modelc.codegen.kernels import compile_nest  # and TVM, which those that do not build do without

    return link(compile_nest(nest, symbol, target), target)


def link(kernel: Kernel, target: Target) -> Built:
    toolchain = find_toolchain(target.triple)
    code = kernel.object if kernel.object is not None else compile_kernel(toolchain, kernel.source or "", visible=True)
    return Built(kernel, link_kernel(toolchain, code))
