"""Packages: what they are made of, writing, reading and checking them, running them for another machine."""

from modelc.package.emulate import (
    EmulatedRun,
    StepTime,
    check_described,
    emulated,
    run_emulated,
    run_package,
    variant_for,
)
from modelc.package.emulators import emulator, lacking
from modelc.package.form import Form
from modelc.package.link import compile_kernel, link_kernel, runtime_objects
from modelc.package.manifest import SCHEMA_VERSION, FileInfo, Manifest
from modelc.package.read import Package, at_sizes, read_choices, read_package, read_verification
from modelc.package.runs import (
    at_dims,
    at_given,
    at_inputs,
    dims_of,
    mattering,
    ranges_of,
    run_of,
    said_mattering,
    said_sizes,
    sizes_sentence,
    why_usual,
)
from modelc.package.sources import RUNTIME
from modelc.package.spec import ALIGNMENT, ArenaTensor, Argument, FixedInput, PackageSpec, PackageTarget, Plan, Step
from modelc.package.tensor import TensorInfo
from modelc.package.toolchain import Toolchain, find_toolchain, machine_of
from modelc.package.write import check_place, write_package, write_verification

__all__ = [
    "ALIGNMENT",
    "RUNTIME",
    "SCHEMA_VERSION",
    "ArenaTensor",
    "Argument",
    "EmulatedRun",
    "FileInfo",
    "FixedInput",
    "Form",
    "Manifest",
    "Package",
    "PackageSpec",
    "PackageTarget",
    "Plan",
    "Step",
    "StepTime",
    "TensorInfo",
    "Toolchain",
    "at_dims",
    "at_given",
    "at_inputs",
    "at_sizes",
    "check_described",
    "check_place",
    "compile_kernel",
    "dims_of",
    "emulated",
    "emulator",
    "find_toolchain",
    "lacking",
    "link_kernel",
    "machine_of",
    "mattering",
    "ranges_of",
    "read_choices",
    "read_package",
    "read_verification",
    "run_emulated",
    "run_of",
    "run_package",
    "runtime_objects",
    "said_mattering",
    "said_sizes",
    "sizes_sentence",
    "variant_for",
    "why_usual",
    "write_package",
    "write_verification",
]
