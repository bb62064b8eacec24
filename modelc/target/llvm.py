"""A Target as the dictionary that TVM's `Target` takes. TVM itself is codegen's to import."""

from __future__ import annotations

from modelc.target.schema import Target


def llvm_target(target: Target) -> dict[str, str | list[str]]:
    """The code generator's options. 512-bit vectors are asked for: LLVM's AVX-512 CPUs prefer 256 bits by default."""
    attributes = [f"+{name}" for name in target.features]
    if target.vector.bits == 512:
        attributes.append("-prefer-256-bit")
    options: dict[str, str | list[str]] = {
        "kind": "llvm",
        "mtriple": target.triple,
        "mcpu": target.cpu,
        "mattr": attributes,
    }
    if target.float_abi is not None:
        options["mfloat-abi"] = target.float_abi
    return options
