"""Kernel by kernel against ONNX Runtime: the first one that departs is the one to look at.

The package for this has what every kernel writes as an output, stored as the kernel stores it; the kernels are the
very same. Values are matched with ONNX's by name, so those that fusion created are not compared. ONNX Runtime runs the
model cut there, without optimisations: every piece gets what our kernels got, so that each is judged alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import VerificationError
from modelc.frontend.surgery import Span, choices_of, cut, expose
from modelc.ir.block import compact_strides
from modelc.ir.layout import Layout
from modelc.ir.program import Program
from modelc.package import Package, read_package
from modelc.partition.precision import rounded_values
from modelc.passes.quantized import BYTES, shifted
from modelc.scratch import TemporaryFolder
from modelc.verify.check import Runner, as_numbers, zeros
from modelc.verify.compare import Tolerance, filtered_distance, rounded_distance
from modelc.verify.engine import Engine
from modelc.verify.reference import Reference
from modelc.verify.report import LayerReport
from modelc.verify.steps import judged


@dataclass(frozen=True)
class Probe:
    """One value that a kernel writes: the output of the exposed package that holds it, and where in it. `rounded`: it
    was computed through bfloat16."""

    kernel: str
    nodes: tuple[str, ...]
    value: str
    dtype: str
    shape: tuple[int, ...]
    layout: Layout
    strides: tuple[int, ...] | None
    root: str
    offset: int
    rounded: bool = False

    def logical(self, stored: NDArray[Any]) -> NDArray[Any]:
        """The tensor by its logical shape."""
        physical = self.layout.shape(self.shape)
        strides = compact_strides(physical) if self.strides is None else self.strides
        flat = stored.reshape(-1)[self.offset :]
        view = np.lib.stride_tricks.as_strided(flat, physical, [s * flat.itemsize for s in strides], writeable=False)
        return unpacked(view, self.layout, self.shape)


def unpacked(stored: NDArray[Any], layout: Layout, shape: tuple[int, ...]) -> NDArray[Any]:
    """The inverse of storing by `layout`."""
    shapes = [shape]
    for primitive in layout.primitives:
        shapes.append(primitive.shape(shapes[-1]))
    for primitive, before in zip(reversed(layout.primitives), reversed(shapes[:-1]), strict=True):
        if primitive.name == "reorder":
            stored = stored.transpose(np.argsort(primitive.args))
        elif primitive.name in ("split", "fuse"):
            stored = stored.reshape(before)
        elif primitive.name == "unfold":
            dim, tile, stride = primitive.args
            at = np.arange(before[dim])
            t = np.clip((at - tile + stride) // stride, 0, stored.shape[dim] - 1)
            stored = np.moveaxis(np.moveaxis(stored, (dim, dim + 1), (0, 1))[t, at - t * stride], 0, dim)
        else:
            dim, start = primitive.args[0], primitive.args[1] if primitive.name == "pad" else 0
            stored = stored.take(range(start, start + before[dim]), dim)
    return stored


def probes_of(program: Program, exposed: Package) -> tuple[Probe, ...]:
    """What the tasks write, in order of execution, as far as `exposed` has it among its outputs."""
    there = {tensor.name for tensor in exposed.manifest.variants[0].outputs}
    found, rounded = [], rounded_values(program)
    for bound in program.tasks:
        for value in (program.values[name] for name in bound.outputs):
            if value.root in there:
                place = (value.dtype, value.shape, value.layout, value.strides, value.root, value.offset)
                found.append(Probe(bound.task.name, bound.task.nodes, value.name, *place, value.name in rounded))
    return tuple(found)


def compare_layers(
    exposed: str | Path,
    probes: tuple[Probe, ...],
    model: str | Path,
    feed: Mapping[str, NDArray[Any]],
    rtol: float,
    atol: float,
    bf16: Tolerance,
) -> tuple[LayerReport, ...]:
    """One report for each of `probes` that the model has under the same name, in their order. `exposed` is the package
    with their roots among its outputs."""
    package = read_package(exposed)
    feed = {**{t.name: zeros(t) for t in package.manifest.variants[0].inputs}, **feed}  # states begin so
    filters = any(plan.filters for plan in package.manifest.variants)
    with TemporaryFolder("layers") as folder, ExitStack() as stack:
        bare, pieces = Path(folder) / "model.onnx", Path(folder) / "pieces.onnx"
        wanted_model = stack.enter_context(Reference(package, model))
        whole = wanted_model.feed(feed, 0)
        known = set(expose(wanted_model.path, [probe.value for probe in probes], bare))
        if not known:
            raise VerificationError("no kernel's result has the name of a value of the model: nothing to compare")
        probes = tuple(p for p in probes if p.value in known)
        stored = Runner(package, stack).run(dict(feed))
        plain = stack.enter_context(Engine("ort-plain", bare)).run(whole)
        numbers = {p.value: as_numbers(p.logical(stored[p.root]), p.dtype) for p in probes}
        ours = {name: as_in_model(array, plain[name]) for name, array in numbers.items()}
        alike = {name: np.ascontiguousarray(a) for name, a in ours.items() if _alike(a, plain[name])}
        made = cut(wanted_model.path, alike, pieces)
        given = {made.given[name]: array for name, array in alike.items()}
        reference = stack.enter_context(Engine("ort-plain", pieces)).run({**whole, **given})
        values = {**plain, **{name: reference[place] for name, place in made.read.items()}, **whole, **alike}
        chosen = {choice.chosen for choice in choices_of(wanted_model.path)}
        reports = []
        for p in probes:
            found, wanted, steps = ours[p.value], reference.get(p.value, plain[p.value]), 0
            if p.rounded:
                apart = rounded_distance(found, wanted, bf16)
            elif filters and found.dtype.kind == "f":
                apart = filtered_distance(found, wanted, rtol, atol)
            else:
                span = made.spans.get(p.value, Span(None, 0))
                apart, steps = judged(found, wanted, span, values.__getitem__, rtol, atol)
            one = LayerReport(p.kernel, p.value, p.nodes, apart, steps, found if p.value in chosen else None)
            reports.append(one)
        return tuple(reports)


def as_in_model(ours: NDArray[Any], wanted: NDArray[Any]) -> NDArray[Any]:
    """What is stored as an instruction multiplies it, as the model has it: without the channels that were added, and
    bytes as the kind that they stand for."""
    if ours.ndim == wanted.ndim and all(a >= b for a, b in zip(ours.shape, wanted.shape, strict=True)):
        ours = ours[tuple(slice(n) for n in wanted.shape)]
    kinds = {ours.dtype.name, wanted.dtype.name}
    return shifted(ours, wanted.dtype.name) if kinds == set(BYTES) else ours


def _alike(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return (a.dtype, a.shape) == (b.dtype, b.shape)
