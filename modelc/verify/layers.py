"""Kernel by kernel against ONNX Runtime: the first one that departs is the one to look at.

The package for this has what every kernel writes as an output, stored as the kernel stores it; the kernels are the
very same. Values are matched with ONNX's by name, so those that fusion created are not compared.
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
from modelc.frontend.surgery import expose
from modelc.ir.block import compact_strides
from modelc.ir.layout import Layout
from modelc.package import read_package
from modelc.scratch import TemporaryFolder
from modelc.verify.check import as_numbers, for_the_model, runner
from modelc.verify.compare import Tolerance, distance, filtered_distance, rounded_distance
from modelc.verify.engine import Engine
from modelc.verify.report import LayerReport


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
    with TemporaryFolder("layers") as folder, ExitStack() as stack:
        bare = Path(folder) / "model.onnx"
        known = set(expose(model, [probe.value for probe in probes], bare))
        ours = runner(package, stack)(dict(feed))
        reference = stack.enter_context(Engine("ort", bare)).run(for_the_model(package, feed))
        if not known:
            raise VerificationError("no kernel's result has the name of a value of the model: nothing to compare")
        plainly = filtered_distance if any(plan.filters for plan in package.manifest.variants) else distance
        reports = []
        for probe in (p for p in probes if p.value in known):
            found, wanted = as_numbers(probe.logical(ours[probe.root]), probe.dtype), reference[probe.value]
            apart = rounded_distance(found, wanted, bf16) if probe.rounded else plainly(found, wanted, rtol, atol)
            reports.append(LayerReport(probe.kernel, probe.value, probe.nodes, apart))
        return tuple(reports)
