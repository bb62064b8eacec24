"""Sweeps of sizes: a package for any size, in C under AddressSanitizer and UndefinedBehaviorSanitizer, at one size
after the other with memory of just the bytes that a run has, and at sizes that it has to refuse (size_sweep.c). Kernels
are machine code in which no sanitizer looks: what they touch outside inputs and outputs is a page without access.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tiny_package import NATIVE_TRIPLE

import modelc
from modelc.errors import ModelcError
from modelc.ir.sizes import Sizes, is_sized, same, sized
from modelc.package import at_dims, dims_of, find_toolchain, read_package
from modelc.package.spec import Plan
from modelc.runtime import ModelError
from modelc.verify.check import drawn

HERE = Path(__file__).parent
RUNTIME = Path(modelc.__file__).parent / "runtime"
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
HUGE = 1 << 40
PREFIX = "swept"

Feed = Mapping[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


@dataclass
class Sweep:
    """What came of a sweep: the outputs at each size, by the sizes' dimensions, and the sentence of each bad one."""

    model: Path
    inputs: dict[tuple[int, ...], Feed] = field(default_factory=dict)
    outputs: dict[tuple[int, ...], Feed] = field(default_factory=dict)
    refused: list[tuple[str, Shapes, str]] = field(default_factory=list)


def sanitized(model: Path, package: Path, **options: object) -> Path:
    """The package with its static library, of which runtime, tables and kernels in C have the sanitizers' checks.
    Raises ToolchainError where there is no gcc with them."""
    before = os.environ.get("CC")
    os.environ["CC"] = f"gcc {SANITIZERS}"
    try:
        made = modelc.compile(model, output=package, emit="a", prefix=PREFIX, verify=False, database=False, **options)
    finally:
        os.environ.pop("CC") if before is None else os.environ.update(CC=before)
    return made.path


def swept(model: Path, package: Path, most: int) -> Sweep:
    """Runs a sanitized package at `most` sizes, or at all where these are fewer, and at bad ones. Raises AssertionError
    where it does anything but give the same outputs each time, or refuse."""
    read, sweep = read_package(package), Sweep(model)
    (plan,) = read.manifest.variants
    records: list[tuple[Sizes | None, Shapes]] = []
    for run in sizes_of(plan, most):
        dims = dims_of(plan, run)
        sweep.inputs[tuple(dims.values())] = next(drawn(at_dims(read, dims), model))
        records.append((run, {}))
    bad = [*bad_shapes(plan)]
    for k, (_, shapes) in enumerate(bad):  # between the others
        records.insert(2 * k + 1, (None, shapes))
    with tempfile.TemporaryDirectory() as name:
        given, taken = Path(name) / "records.bin", Path(name) / "outputs.bin"
        given.write_bytes(b"".join(_record(plan, run, shapes, sweep.inputs) for run, shapes in records) + _words(-1))
        command = [_program(package), package, given, taken]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600, env={**os.environ, **OPTIONS})
        assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
        data = taken.read_bytes()
    at = 0
    for run in (run for run, _ in records if run is not None):
        tensors = [tensor.at(run) for tensor in plan.outputs]
        arrays = {}
        for t in tensors:
            arrays[t.name] = np.frombuffer(data, t.dtype, int(np.prod(t.shape)), at).reshape(t.shape)
            at += t.bytes
        sweep.outputs[tuple(dims_of(plan, run).values())] = arrays
    said = [line.partition(" ")[2] for line in done.stdout.splitlines() if line.startswith("1 ")]
    sweep.refused = [(what, shapes, sentence) for (what, shapes), sentence in zip(bad, said, strict=True)]
    return sweep


def sizes_of(plan: Plan, most: int) -> list[Sizes]:
    """Sizes of a package: all where they are few, else the corners and others spread between, in an order in which
    large and small ones follow each other."""
    every = [range(size.least, size.most + 1) for size in plan.free]
    count = int(np.prod([len(numbers) for numbers in every]))
    rng = np.random.default_rng(0)
    if count <= most:
        chosen = np.stack(np.meshgrid(*every, indexing="ij"), -1).reshape(-1, len(every))
    else:
        corners = np.stack(np.meshgrid(*((n[0], n[-1]) for n in every), indexing="ij"), -1).reshape(-1, len(every))
        others = np.stack([rng.integers(n[0], n[-1] + 1, 4 * most) for n in every], -1)
        chosen = np.unique(np.concatenate([corners, others]), axis=0)
        kept = rng.permutation(len(chosen))[:most]
        chosen = np.unique(np.concatenate([corners, chosen[kept]]), axis=0)
    order = rng.permutation(len(chosen))
    return [{s.name: int(n) for s, n in zip(plan.free, chosen[k], strict=True)} for k in order]


def bad_shapes(plan: Plan) -> Iterator[tuple[str, Shapes]]:
    """Shapes of inputs that a package has to refuse, and why."""
    usual = {size.name: size.usual for size in plan.free}
    right = {t.name: t.at(usual).shape for t in plan.inputs}

    def with_extent(name: str, axis: int, number: int) -> Shapes:
        return {**right, name: tuple(number if k == axis else n for k, n in enumerate(right[name]))}

    for size in plan.free:
        places = [
            (t.name, axis)
            for t in plan.inputs
            for axis, n in enumerate(t.extents)
            if is_sized(n) and same(n, size.unit * sized(size.size))
        ]
        numbers = {"zero": 0, "negative": -1, "above the most": size.unit * (size.most + 1), "huge": HUGE}
        numbers |= {"below the least": size.unit * (size.least - 1)} if size.least > 1 else {}
        numbers |= {"off the step": size.unit * size.least + 1} if size.unit > 1 else {}
        for what, number in numbers.items():
            shapes = dict(right)
            for name, axis in places:
                shapes[name] = tuple(number if k == axis else n for k, n in enumerate(shapes[name]))
            yield f"{size.name} {what}", shapes
        for name, axis in places[1:]:
            other = size.usual + (1 if size.usual < size.most else -1)
            yield f"{name} disagrees in {size.name}", with_extent(name, axis, size.unit * other)
    for t in plan.inputs:
        for axis, n in enumerate(t.extents or t.shape):
            if not is_sized(n):
                yield f"{t.name} is fixed along {axis}", with_extent(t.name, axis, n + 1)


def refusals_in_python(package: Path, model: Path) -> list[str]:
    """The sentences of the package's loader for inputs of another rank."""
    read = read_package(package)
    feed = next(drawn(at_dims(read), model))
    sentences = []
    with modelc.load(package) as opened:
        for name, array in feed.items():
            for wrong in (array[None], array.reshape(-1) if array.ndim > 1 else array.reshape(-1, 1, 1)):
                try:
                    opened.run({**feed, name: wrong})
                except ModelError as error:
                    sentences.append(str(error))
                else:
                    raise AssertionError(f"{name} of shape {wrong.shape} is taken")
    return sentences


def _record(plan: Plan, run: Sizes | None, shapes: Shapes, feeds: Mapping[tuple[int, ...], Feed]) -> bytes:
    if run is None:
        return _words(1, *(n for t in plan.inputs for n in shapes[t.name]))
    feed = feeds[tuple(dims_of(plan, run).values())]
    extents = [n for t in (*plan.inputs, *plan.outputs) for n in t.at(run).shape]
    return _words(0, *extents) + b"".join(_filled(np.ascontiguousarray(feed[t.name]).tobytes()) for t in plan.inputs)


def _words(*numbers: int) -> bytes:
    return np.array(numbers, "<i8").tobytes()


def _filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _program(package: Path) -> Path:
    """The program, linked with the package's library, beside it."""
    source = [*SANITIZERS.split(), "-std=c11", "-O1", "-g", f"-DAPI={PREFIX}_api", "-I", str(RUNTIME)]
    files = [str(HERE / "size_sweep.c"), str(package / f"lib{PREFIX}.a")]
    find_toolchain(NATIVE_TRIPLE).compile([*source, *files, "-lm", "-pthread", "-o", "sweep"], package.parent)
    return package.parent / "sweep"


def is_there() -> bool:
    """Whether gcc has the sanitizers."""
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "empty.c").write_text("int main(void) { return 0; }\n")
        command = ["gcc", *SANITIZERS.split(), "empty.c", "-o", "empty"]
        try:
            return not subprocess.run(command, cwd=name, capture_output=True).returncode
        except OSError:
            return False


def compared(sweep: Sweep, package: Path) -> Sequence[str]:
    """The outputs of a sweep beside ONNX Runtime: a sentence for each size at which they differ."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(sweep.model))
    names, wrong = [output.name for output in session.get_outputs()], []
    for dims, feed in sweep.inputs.items():
        for name, expected in zip(names, session.run(None, dict(feed)), strict=True):
            found = sweep.outputs[dims].get(name)
            if found is None:
                raise ModelcError(f"{package} has no output {name!r}")
            far = np.abs(found.astype(np.float64) - expected).max(initial=0)
            if found.shape != expected.shape or far > 1e-4 * (1 + np.abs(expected).max(initial=0)):
                wrong.append(f"at {dims}: {name!r} is {far:.1e} off")
    return wrong
