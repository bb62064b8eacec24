"""A Target as the dictionary that TVM's `Target` takes. TVM itself is codegen's to import."""

from __future__ import annotations

from modelc.target.schema import Target
from modelc.target.system import WASI, system_of


def llvm_target(target: Target) -> dict[str, str | int | list[str]]:
    """The code generator's options. 512-bit vectors are asked for: LLVM's AVX-512 CPUs prefer 256 bits by default."""
    attributes = [f"+{name}" for name in target.features]
    if target.vector.bits == 512:
        attributes.append("-prefer-256-bit")
    options: dict[str, str | int | list[str]] = {
        "kind": "llvm",
        "mtriple": _with_vendor(target.triple),
        "mcpu": target.cpu,
        "mattr": attributes,
    }
    if system_of(target.triple) is WASI:
        options["vector-width"] = target.vector.bits  # which TVM knows for other machines
    if target.float_abi is not None:
        options["mfloat-abi"] = target.float_abi
    if target.architecture.c_abi is not None:
        options["mabi"] = target.architecture.c_abi
    return options


def _with_vendor(triple: str) -> str:
    """All parts of a triple, without which LLVM takes the system for the vendor: on ARM it would then call the
    conversions of 64-bit integers by another convention than libgcc's."""
    parts, system = triple.split("-"), system_of(triple)
    if system is not None and system.llvm:
        return f"{parts[0]}-{system.llvm}"
    return "-".join([parts[0], "unknown", *parts[1:]]) if len(parts) == 3 else triple
