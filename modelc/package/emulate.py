"""Running a package through its C interface in a process of its own: natively, or under an emulator."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import InputError, PackageError, ToolchainError
from modelc.ir.expr import NARROW
from modelc.package.emulators import emulator
from modelc.package.glue import DTYPE_CODES
from modelc.package.manifest import Linked
from modelc.package.objects import Sources, lasting_folder, linked, objects_of
from modelc.package.read import Package, read_manifest_of, read_package
from modelc.package.runs import at_inputs
from modelc.package.sources import HEADERS, RUNTIME
from modelc.package.tensor import TensorInfo, with_shapes
from modelc.package.toolchain import find_toolchain, machine_of
from modelc.package.watch import Watch, watched
from modelc.runtime.bits import as_bits
from modelc.runtime.files import ModelError
from modelc.runtime.loader import load
from modelc.scratch import TemporaryFolder
from modelc.target.system import WASI


@dataclass(frozen=True)
class StepTime:
    name: str
    calls: int
    seconds: float


@dataclass(frozen=True)
class EmulatedRun:
    """`seconds` is the fastest run's time, `steps` what each step took over all runs, `open_seconds` what loading and
    opening took, `resident_bytes` the most memory of the process; under qemu they mean nothing."""

    outputs: dict[str, NDArray[Any]]
    seconds: float
    open_seconds: float
    resident_bytes: int
    steps: tuple[StepTime, ...]


def emulated(package: Package) -> bool:
    """Whether it runs in a process of its own alone: under an emulator, or for it has no library to load. Raises
    ToolchainError where there is no emulator."""
    target = package.manifest.target
    linked = package.manifest.linked
    loads = "so" in linked.emit and linked.libc != "musl"  # a library of another C library than this process has
    return bool(emulator(target.triple, target.features)) or not loads


def run_package(path: str | Path, inputs: Mapping[str, NDArray[Any]], check: bool = True) -> dict[str, NDArray[Any]]:
    """The outputs of a package for any machine that this one is, or emulates; `check`: with the checksums compared of
    all files. Raises PackageError, InputError, ToolchainError."""
    package = read_package(path)
    if not emulated(package):
        try:
            with load(package.path, check=check) as model:
                return model.run(inputs)
        except ModelError as error:
            raise PackageError(str(error)) from None
    given = {name: as_bits(array) for name, array in inputs.items()}
    return run_emulated(package.path, given, variant_for(at_inputs(package, given), given)).outputs


def variant_for(package: Package, inputs: Mapping[str, NDArray[Any]]) -> int:
    """The number of the variant with the inputs' shapes. Raises InputError where there is none."""
    manifest = package.manifest
    shapes = [np.shape(inputs[t.name]) for t in manifest.variants[0].inputs if t.name in inputs]
    number = with_shapes([plan.inputs for plan in manifest.variants], shapes)
    if number is None:
        takes = "; ".join(", ".join(f"{t.name} {list(t.shape)}" for t in plan.inputs) for plan in manifest.variants)
        raise InputError(f"{package.path} takes {takes}: give arrays of such shapes")
    return number


def run_emulated(
    path: str | Path,
    inputs: Mapping[str, NDArray[Any]],
    variant: int = 0,
    threads: int = 1,
    repeat: int = 1,
    profile: bool = False,
    timeout: float = 600.0,
    watch: Watch | None = None,
) -> EmulatedRun:
    """Runs `variant` of the library on `inputs` (bfloat16 as its bits in uint16) with the very library in the package.
    Raises InputError, PackageError with what the library said, ToolchainError if there is no compiler or emulator."""
    package = read_package(path, check=True)  # for it executes the library
    variants = package.manifest.variants
    if not 0 <= variant < len(variants):
        raise InputError(f"variant {variant} was asked for; {path} has {len(variants)}")
    most = variants[variant]
    package = at_inputs(package, inputs)
    plan, before = package.manifest.variants[variant], driver(package)
    with TemporaryFolder("run") as name:
        given, taken = Path(name) / "inputs.bin", Path(name) / "outputs.bin"
        given.write_bytes(input_bytes(package, variant, inputs))
        numbers = {"--threads": threads, "--variant": variant, "--repeat": repeat}
        flags = [part for flag, number in numbers.items() for part in (flag, str(number))] + ["--profile"] * profile
        flags += extents_flags(package, variant, inputs)
        command = [*before, str(given), str(taken)]
        if watch is None:
            said = _run([*command, *flags], timeout, package.path)
        else:
            said = _watched(command, flags, watch, Path(name) / "places.txt", timeout, package.path)
        outputs = _split(most.outputs, taken.read_bytes(), package.path)
    lines = said.splitlines()
    for number, *shape in (map(int, line.split()[1:]) for line in lines if line.startswith("shape ")):
        name = plan.outputs[number].name
        if most.free:  # what is there has no gaps
            outputs[name] = outputs[name].reshape(-1)[: prod(shape)].reshape(shape)
        else:
            outputs[name] = outputs[name][tuple(map(slice, shape))]
    words = [line.split(" ", 3) for line in lines if not line.startswith("shape ")]
    steps = tuple(StepTime(w[3], int(w[1]), int(w[2]) * 1e-9) for w in words if w[0] == "step")
    figures = {w[0]: float(w[1]) for w in words if w[0] != "step"}
    seconds, opening = figures["nanoseconds"] * 1e-9, figures["open"] * 1e-9
    return EmulatedRun(outputs, seconds, opening, int(figures["resident"]), steps)


def extents_flags(package: Package, variant: int, inputs: Mapping[str, NDArray[Any]]) -> list[str]:
    """What tells the driver the shapes of inputs, where they may have several; the last of its arguments."""
    if not package.runs:
        return []
    tensors = package.manifest.variants[variant].inputs
    return ["--extents", *(str(n) for tensor in tensors for n in np.shape(inputs[tensor.name]))]


def check_described(package: Package) -> None:
    """Raises PackageError if the manifest tells of other inputs or outputs than the library, or that does not open."""
    if package.runs:
        package = read_package(package.path)
    said = _run([*driver(package), "--describe"], 600.0, package.path)
    codes = {dtype: str(code) for dtype, code in DTYPE_CODES.items()}
    wanted = [
        [str(number), kind, codes[tensor.dtype], *map(str, tensor.shape)]
        for number, plan in enumerate(package.manifest.variants)
        for kind, tensors in (("input", plan.inputs), ("output", plan.outputs))
        for tensor in tensors
    ]
    if [line.split() for line in said.splitlines()] != wanted:
        raise PackageError(
            f"{package.path} is damaged: its manifest describes other inputs or outputs than its library; "
            "copy the whole package again"
        )


def driver(package: Package) -> list[str]:
    """What runs the package, up to the arguments that say what to do."""
    target, made = package.manifest.target, package.manifest.linked
    if made.form.on is WASI:
        if "so" not in made.emit:
            raise ToolchainError(f"{package.path} has no module to run: it was compiled without --emit so")
        runner = RUNTIME / "run_module.mjs"
    elif "so" in made.emit and made.libc != "musl":
        runner = _runner(machine_of(target.triple).gnu_triple, made.libc)
    else:
        runner = _static_runner(package.path.resolve(), made)
    return [*emulator(target.triple, target.features), str(runner), str(package.path), made.prefix]


def input_bytes(package: Package, variant: int, inputs: Mapping[str, NDArray[Any]]) -> bytes:
    """What the driver reads the inputs of a variant from. Raises InputError where they do not fit."""
    return b"".join(_bytes_of(tensor, inputs) for tensor in package.manifest.variants[variant].inputs)


def _bytes_of(tensor: TensorInfo, inputs: Mapping[str, NDArray[Any]]) -> bytes:
    if tensor.name not in inputs:
        raise InputError(f"the input '{tensor.name}' is missing")
    array = np.asarray(inputs[tensor.name], order="C")
    dtype = array.dtype.name
    if tensor.shape != array.shape or array.dtype != _numpy_dtype(tensor.dtype):
        raise InputError(
            f"input '{tensor.name}' is {dtype} {list(array.shape)}; the model takes {tensor.dtype} {list(tensor.shape)}"
        )
    return array.tobytes()


def _split(tensors: Sequence[TensorInfo], data: bytes, path: Path) -> dict[str, NDArray[Any]]:
    outputs, offset, wanted = {}, 0, sum(tensor.bytes for tensor in tensors)
    if len(data) != wanted:
        raise PackageError(f"{path} is damaged: its outputs have {len(data)} bytes; the manifest says {wanted}")
    for tensor in tensors:
        part = np.frombuffer(data[offset : offset + tensor.bytes], _numpy_dtype(tensor.dtype))
        outputs[tensor.name] = part.reshape(tensor.shape).copy()
        offset += tensor.bytes
    return outputs


def _run(
    command: Sequence[str], timeout: float, package: Path, consume: Callable[[], None] | None = None, pipe: int = -1
) -> str:
    """What a command prints, that is given the end `pipe` of a pipe to write into, which `consume` reads. Raises
    PackageError where it does not come to its end."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "errors": "replace"}
    try:
        process = subprocess.Popen(command, pass_fds=(pipe,) if consume else (), **streams)
    except OSError as error:
        raise ToolchainError(f"cannot run {command[0]}: {error.strerror}") from None
    finally:
        if consume:
            os.close(pipe)
    try:
        if consume:
            consume()
        said, complaint = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise PackageError(f"{package} did not finish within {timeout:g} s") from None
    finally:
        process.kill()
        process.wait()
    words = complaint.strip()[-500:]
    if process.returncode < 0:
        sentence = f"{package} was killed by signal {-process.returncode} while it ran"
        raise PackageError(f"{sentence}: {words}" if words else sentence)
    if process.returncode:
        raise PackageError(f"{package} did not run: {words}")
    return str(said)


def _watched(
    command: Sequence[str], flags: Sequence[str], watch: Watch, file: Path, timeout: float, package: Path
) -> str:
    """What the driver prints while it is watched."""
    file.write_text("".join(place.line for place in watch.places))
    reading, writing = os.pipe()
    options = ["--watch", str(file), str(writing), *flags]  # --extents takes all that follows it
    try:
        consume = partial(watch.consume, watched(reading, watch.places, timeout))
        return _run([*command, *options], timeout, package, consume, writing)
    finally:
        os.close(reading)


def _driver(*flags: str) -> Sources:
    """The source of the driver."""
    headers = tuple(RUNTIME / name for name in HEADERS)
    return Sources((RUNTIME / "run_main.c",), headers, ("-std=c11", "-O2", "-pthread", *flags))


def _runner(triple: str, libc: str = "") -> Path:
    """The driver for a machine, which loads libraries."""
    return linked(find_toolchain(triple, libc), _driver(), ("-ldl", "-pthread", "-lm"), "runner")


def _static_runner(package: Path, made: Linked) -> Path:
    """The driver that a package's static library, or object, is linked into; it needs nothing where it runs."""
    kinds = [kind for kind in ("a", "o") if kind in made.emit]
    if not kinds:
        raise ToolchainError(f"{package} is linked with musl, and is run by a static library alone: add a to --emit")
    toolchain = find_toolchain(read_manifest_of(package).target.triple, "" if made.libc == "none" else made.libc)
    folder, code = lasting_folder(), str(package / made.form.file_of(kinds[0]))
    for file, data in objects_of(toolchain, _driver(f"-DAPI={made.prefix}_api")).items():
        (folder / file).write_bytes(data)
    toolchain.linking_all().compile(["run_main.o", code, "-pthread", "-lm", "-o", "runner"], folder)
    return folder / "runner"


def _numpy_dtype(dtype: str) -> np.dtype[Any]:
    return np.dtype("uint16" if dtype == "bfloat16" else "uint8" if dtype in NARROW else dtype)
