"""Reading a package as data, and checking its files. Nothing here executes what is in it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modelc.errors import PackageError
from modelc.ir.sizes import Sizes
from modelc.package.manifest import NAME, FileInfo, Manifest, parsed
from modelc.package.spec import Plan, distinct_kernels
from modelc.package.tensor import TensorInfo
from modelc.runtime.files import ModelError, check_file, folder_of, open_file, open_folder, read_manifest
from modelc.runtime.shown import boundary, extents_shown, page, range_text, size, table


@dataclass(frozen=True)
class Package:
    """A package as data: where it lies, and what its manifest says. One for any size may stand for one with a variant
    for each of some `runs`."""

    path: Path
    manifest: Manifest
    runs: tuple[Sizes, ...] = ()
    units: Mapping[str, int] = field(default_factory=dict)  # of the sizes of their inputs

    @property
    def dims(self) -> tuple[Mapping[str, int], ...]:
        """The dimensions of the inputs in each of the runs, by the names of the free sizes."""
        return tuple({name: n * run[name] for name, n in self.units.items()} for run in self.runs)

    def in_library(self, variant: int) -> int:
        """Which of the library's variants a variant is."""
        return 0 if self.runs else variant

    def __repr__(self) -> str:
        m = self.manifest
        variants = "; ".join(map(_boundary, m.variants))
        kernels = f"{distinct_kernels(m.variants)} kernels in {len(m.variants[0].steps)} steps"
        return f"Package({str(self.path)!r} for {m.target.name}: {variants}; {kernels}; {self._sizes()})"

    def _sizes(self) -> str:
        m = self.manifest
        library = m.files[m.linked.form.code].bytes
        arena = max(plan.arena_bytes for plan in m.variants)
        return f"parameters {size(m.params_bytes)}, library {size(library)}, arena {size(arena)}"

    def _repr_html_(self) -> str:
        """The kernels of the first variant, with a bar for the arithmetic of each."""
        plan = self.manifest.variants[0]
        if plan.free:  # the work at the largest sizes
            plan = plan.at({size.name: size.most for size in plan.free})
        work = [step.flops * calls for step, calls in zip(plan.steps, plan.calls, strict=True)]
        rows = [
            (step.name, ", ".join(step.nodes), step.dtype, step.instruction, f"{1e-6 * flops:.3g}", size(step.bytes))
            for step, flops in zip(plan.steps, work, strict=True)
        ]
        names = ("kernel", "nodes", "dtype", "instruction", "MFLOP", "bytes")
        return page(repr(self), table(names, rows, work))


def _boundary(plan: Plan) -> str:
    """What goes in and comes out, with extents in terms of the dimensions where these are free."""
    units = {size.name: size.unit for size in plan.free}

    def shown(tensors: Sequence[TensorInfo]) -> list[TensorInfo]:
        return [replace(t, shape=extents_shown(t.shown, units), extents=()) for t in tensors]

    if not plan.free:
        return boundary(plan.inputs, plan.outputs)
    sizes = ((s.name, range(s.least * s.unit, s.most * s.unit + 1, s.unit)) for s in plan.free)
    given = ", ".join(f"{name} {range_text(numbers)}" for name, numbers in sizes)
    return f"{boundary(shown(plan.inputs), shown(plan.outputs))}; {given}"


def at_sizes(package: Package, runs: Sequence[Sizes]) -> Package:
    """A package for any size as one that has a variant for each of some `runs`; another one as it is."""
    m = package.manifest
    if not runs or not m.variants[0].free:
        return package
    variants = tuple(m.variants[0].at(run) for run in runs)
    units = {size.name: size.unit for size in m.variants[0].free if not size.is_found}
    return replace(package, manifest=replace(m, variants=variants), runs=tuple(runs), units=units)


def read_package(path: str | Path, check: bool = False) -> Package:
    """Reads a package as data. Nothing in it is executed.

    Args:
        path: A folder, or a .zip, which is unpacked in the user's cache.
        check: Whether checksums are compared, which reads all parameters; sizes are compared always.

    Returns:
        A Package: its `path` and `manifest`.

    Raises:
        PackageError: The package is damaged, which names the file.

    Example:
        >>> package = modelc.read_package("net.modelc")
        >>> [(tensor.name, tensor.dtype, tensor.shape) for tensor in package.manifest.variants[0].outputs]
        [('y', 'float32', (1, 10))]
    """
    path = unpacked(path)
    with _opened(path) as folder:
        manifest = parsed(read_manifest(folder, str(path)), f"{path}/{NAME}")
        for name, expected in manifest.files.items():
            with open_file(folder, str(path), name) as file:
                check_file(file, f"{path}/{name}", expected.bytes, expected.sha256 if check else None)
    return Package(Path(path), manifest)


def unpacked(path: str | Path) -> Path:
    """The folder of a package. Raises PackageError."""
    try:
        return Path(folder_of(str(path)))
    except ModelError as error:
        raise PackageError(str(error)) from None


def read_manifest_of(path: str | Path) -> Manifest:
    """The manifest alone, whatever the other files are. Raises PackageError."""
    path = unpacked(path)
    with _opened(path) as folder:
        return parsed(read_manifest(folder, str(path)), f"{path}/{NAME}")


def read_choices(package: Package) -> dict[str, Any]:
    """What choices.json holds, with the checksum compared."""
    return _read_json(package, "choices.json")


def read_verification(package: Package) -> dict[str, Any] | None:
    """The whole report of the verification, None if there was none."""
    return _read_json(package, "verification.json") if "verification.json" in package.manifest.files else None


def _read_json(package: Package, name: str) -> dict[str, Any]:
    expected, where = package.manifest.files[name], f"{package.path}/{name}"
    with _opened(package.path) as folder, open_file(folder, str(package.path), name) as file:
        check_file(file, where, expected.bytes, expected.sha256)
        file.seek(0)
        try:
            data = json.loads(file.read())
        except (OSError, ValueError, RecursionError):
            data = None
    if not isinstance(data, dict):
        raise PackageError(f"{where} is damaged: it is not a JSON object")
    return data


@contextmanager
def _opened(path: str | Path) -> Iterator[int]:
    """A descriptor of the package's folder; what the loader has to say against it or its files is a PackageError."""
    try:
        folder = open_folder(str(path))
        try:
            yield folder
        finally:
            os.close(folder)
    except ModelError as error:
        raise PackageError(str(error)) from None


def file_info(path: Path) -> FileInfo:
    return FileInfo(path.stat().st_size, sha256_of(path))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        computed = hashlib.sha256()
        while chunk := file.read(1 << 20):
            computed.update(chunk)
        return computed.hexdigest()
