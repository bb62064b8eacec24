"""Opens damaged packages in every way there is: python tests/fuzz packages --cases 1000 [--json FILE]

A small model is compiled; each case is a copy with one to three Edits (package_damage.py), which is read by the Python
loader (as it is, and with every checksum), by the loader and the example.c that lie in a package, by `inspect` and
`verify`, and through the emulator's driver. A package of which a file was changed, and not the manifest, has to be
refused by those that compare checksums, and by all that would execute its library where that is the file; what is
accepted has to compute the very bits of the undamaged package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from forked import Case, Limits, Wrong, run_case, run_cases
from fuzzing import Report, options
from onnx import TensorProto, helper, numpy_helper
from package_damage import Edit, apply, drawn_edit

import modelc
from modelc.compile.minimise import minimised
from modelc.errors import PackageError
from modelc.package import find_toolchain, read_package, run_emulated
from modelc.runtime import ModelError

MOST_EDITS = 3
CHECKING = ("check", "inspect", "emulator", "verify")  # the readers that compare every checksum
LIMITS = Limits()


@dataclass(frozen=True)
class Seed:
    """An undamaged package, and what it computes."""

    model: Path
    package: Path
    example: Path
    inputs: dict[str, np.ndarray]
    outputs: dict[str, np.ndarray]
    loader: Any  # the module in the package


Reader = Callable[[Seed, Path], "dict[str, np.ndarray] | None"]


def made(folder: Path) -> Seed:
    """Compiles the model of two variants, and its example.c."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((24, 16)), "b": rng.standard_normal(16)}
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in weights.items()],
    )
    model, package = folder / "small.onnx", folder / "small.modelc"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    modelc.compile(model, output=package, shapes=[{"x": (5, 24)}, {"x": (2, 24)}])
    triple = read_package(package).manifest.target.triple
    example = folder / "example"
    arguments = ["-O1", "example.c", "./libsmall.so", f"-Wl,-rpath,{package}", "-o", str(example)]
    find_toolchain(triple).compile(arguments, package)
    inputs = {"x": rng.standard_normal((5, 24)).astype(np.float32)}
    with modelc.load(package, threads=1) as opened:
        outputs = opened.run(inputs)
    run_emulated(package, inputs)  # builds the driver once, before anything is forked
    spec = importlib.util.spec_from_file_location("loader_of_package", package / "loader.py")
    assert spec is not None and spec.loader is not None
    sys.dont_write_bytecode = True
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    return Seed(model, package, example, inputs, outputs, loader)


def load(seed: Seed, package: Path, check: bool = False) -> dict[str, np.ndarray] | None:
    try:
        with modelc.load(package, threads=1, check=check) as opened:
            return opened.run(seed.inputs)
    except ModelError as error:
        raise PackageError(str(error)) from None


def own_loader(seed: Seed, package: Path) -> dict[str, np.ndarray] | None:
    try:
        with seed.loader.load(str(package), threads=1) as opened:
            return dict(opened.run(seed.inputs))
    except seed.loader.ModelError as error:
        raise PackageError(str(error)) from None


def example(seed: Seed, package: Path) -> dict[str, np.ndarray] | None:
    """The program linked with the undamaged library: what it reads itself are manifest.json and params.bin."""
    with tempfile.TemporaryDirectory(dir=package.parent) as name:
        files = [Path(name) / "in", Path(name) / "out"]
        seed.inputs["x"].tofile(files[0])
        done = subprocess.run([seed.example, package, *files], capture_output=True, text=True, errors="replace")
        if done.returncode == 1 and done.stderr.strip():
            raise PackageError(done.stderr.strip())
        if done.returncode:
            raise RuntimeError(f"example ended with {done.returncode}: {done.stderr}")
        return {"y": np.fromfile(files[1], np.float32).reshape(seed.outputs["y"].shape)}


def inspect(seed: Seed, package: Path) -> dict[str, np.ndarray] | None:
    if not package.is_dir():
        raise PackageError("inspect takes what is no folder for a model")
    modelc.inspect(package)
    return None


def verify(seed: Seed, package: Path) -> dict[str, np.ndarray] | None:
    report = modelc.verify(package, seed.model)
    if not report.passed:
        raise Wrong(f"accepted, and wrong: {report.sentence()}")
    return None


def emulated(seed: Seed, package: Path) -> dict[str, np.ndarray] | None:
    return run_emulated(package, seed.inputs, timeout=LIMITS.seconds).outputs


READERS: dict[str, Reader] = {
    "load": load,
    "check": partial(load, check=True),
    "loader.py": own_loader,
    "example": example,
    "inspect": inspect,
    "emulator": emulated,
    "verify": verify,
}


def attempt(seed: Seed, reader: str, edits: Sequence[Edit]) -> str:
    """Damages a copy, and reads it."""
    with tempfile.TemporaryDirectory(dir=seed.model.parent) as name:  # goes with the seed, however the child ends
        os.chdir(name)
        package = Path(name) / "small.modelc"
        shutil.copytree(seed.package, package)
        for edit in edits:
            apply(package, edit)
        damaged = changed(seed.package, package)
        try:
            outputs = READERS[reader](seed, package)
        finally:
            os.chdir("/")
        refused = reader in CHECKING or (reader != "example" and "libsmall.so" in damaged)
        if damaged and "manifest.json" not in damaged and refused:
            raise Wrong(f"{reader} accepts a package with other {', '.join(sorted(damaged))}")
        same = outputs is None or all(outputs[key].tobytes() == one.tobytes() for key, one in seed.outputs.items())
        if not same and "params.bin" not in damaged:
            raise Wrong(f"{reader} accepts a package that computes something else")
        return f"{reader} accepts"


def changed(before: Path, after: Path) -> set[str]:
    """The package's files that are not what they were."""

    def content(path: Path) -> bytes | None:
        return path.read_bytes() if path.is_file() and not path.is_symlink() else None

    return {file.name for file in before.iterdir() if content(after / file.name) != file.read_bytes()}


def cases(seed: Seed, count: int, number: int, readers: Sequence[str]) -> Iterator[Case]:
    """Every reader on every damaged package."""
    for k in range(count):
        rng = random.Random(f"{number} {k}")
        edits = tuple(drawn_edit(rng) for _ in range(rng.randint(1, MOST_EDITS)))
        for reader in readers:
            yield case(seed, k, reader, edits)


def case(seed: Seed, k: int, reader: str, edits: Sequence[Edit]) -> Case:
    return Case(f"package {k} through {reader}", partial(attempt, seed, reader, edits), [k, reader, list(edits)])


def fuzz(seed: Seed, count: int, number: int, jobs: int = 1, readers: Sequence[str] = tuple(READERS)) -> Report:
    """Opens `count` damaged packages; a failure that is new is made small."""
    report = Report(number)
    for one, outcome in run_cases(cases(seed, count, number, readers), LIMITS, jobs):
        if not report.add(one, outcome):
            continue
        k, reader, edits = one.about

        def fails(part: Sequence[Edit], k: int = k, reader: str = reader, wanted: str = outcome.signature) -> bool:
            return run_case(case(seed, k, reader, part), LIMITS).signature == wanted

        report.replace(outcome, case(seed, k, reader, minimised(edits, fails)))
    return report


def main() -> int:
    parser = options((__doc__ or "").partition("\n")[0], 1000)
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS), help="default: all of them")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="modelc-fuzz-")))
        return fuzz(made(folder), given.cases, given.seed, given.jobs, given.readers).finish(given.json)
