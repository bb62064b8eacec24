"""Which outputs are computed through 16-bit floats: those may be farther off, so that a manifest is not believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelc.ir.program import Program
from modelc.package import Package
from modelc.partition.precision import rounded_values

NARROW = ("bfloat16", "float16")


@dataclass(frozen=True)
class Narrow:
    """The `outputs` that are computed through 16-bit floats, and through which they, or
    values inside, are (`dtype`; "" where none is). `fault` says where the manifest says something else."""

    outputs: frozenset[str]
    dtype: str
    fault: str


def narrow_outputs(package: Package, programs: Sequence[Program]) -> Narrow:
    """What the Programs of all variants come to, where they are known, else what the manifest says, as far as its steps
    compute in such floats."""
    if not programs:
        return _by_manifest(package)
    outputs, dtype = frozenset[str](), ""
    for plan, program in zip(package.manifest.variants, programs, strict=True):
        computed = rounded_values(program)
        dtype = dtype or (_dtype_of(program) if computed else "")
        if wrong := sorted({*plan.rounded} - computed):
            return Narrow(outputs, "", _fault(wrong[0], "the package's choices give it kernels in float32"))
        outputs |= computed & {tensor.name for tensor in plan.outputs}
    return Narrow(outputs, dtype, "")


def _by_manifest(package: Package) -> Narrow:
    plans = package.manifest.variants
    claimed = [name for plan in plans for name in plan.rounded]
    dtypes = {step.dtype for plan in plans for step in plan.steps}
    if not claimed:
        return Narrow(frozenset(), "", "")
    if dtypes.isdisjoint(NARROW):
        return Narrow(frozenset(), "", _fault(claimed[0], "none of its steps computes in bfloat16 or float16"))
    return Narrow(frozenset(claimed), "float16" if "bfloat16" not in dtypes else "bfloat16", "")


def _dtype_of(program: Program) -> str:
    """A package has 16-bit floats of one precision."""
    dtypes = {buffer.dtype for bound in program.kernels for buffer in bound.task.buffers}
    return "bfloat16" if "bfloat16" in dtypes else "float16"


def _fault(output: str, but: str) -> str:
    return (
        f"is not as its manifest says: output {output!r} is not computed through 16-bit floats (rounded), for {but}; "
        "compile it anew"
    )
