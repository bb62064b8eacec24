"""What a package is, without running it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modelc.package.memory import memory_of
from modelc.package.read import read_package
from modelc.package.runs import at_dims, ranges_of, usual_run
from modelc.package.spec import FixedInput, Plan, distinct_kernels
from modelc.package.tensor import TensorInfo
from modelc.runtime.shown import extent_text

SHOWN = 8  # numbers of a constant


def described(path: Path) -> dict[str, Any]:
    """The package in this folder: its manifest in short, every checksum compared."""
    package = read_package(path, check=True)
    m = package.manifest
    memory = memory_of(m, package.path)
    first = at_dims(package).manifest.variants[0]
    free = m.variants[0].free
    units = {size.name: size.unit for size in free}
    return {
        "kind": "package",
        "name": m.name,
        "build_id": m.build_id,
        "target": asdict(m.target),
        "flush_denormals": m.flush_denormals,
        "check_addresses": m.check_addresses,
        "checks": sum(len(step.checks) for step in first.steps),
        "variants": [
            {
                "inputs": [_tensor(t, units) for t in plan.inputs],
                "outputs": [_output(plan, k, units) for k in range(len(plan.outputs))],
            }
            for plan in m.variants
        ],
        "origin": None if m.origin is None else asdict(m.origin),
        "sizes": [
            {
                "name": name,
                "least": n[0],
                "most": n[-1],
                "step": n.step,
                "usual": one.unit * usual_run(m.variants[0])[name],
                "matter": [one.unit * number for number in one.matter],
                "length": one.is_length,
                "found": one.is_found,
            }
            for one, (name, n) in zip(free, ranges_of(free).items(), strict=True)
        ],
        "constants": [_constant(constant) for constant in m.constants],
        "bounds": dict(m.bounds),
        "states": [{**_tensor(s.input, units), "output": s.output, "grows": s.grows} for s in m.variants[0].states],
        "steps": len(first.steps),
        "kernels": distinct_kernels(m.variants),
        "dtypes": dict(Counter(step.dtype for step in first.steps)),
        "intrinsics": dict(Counter(step.intrinsic for step in first.steps if step.intrinsic)),
        "gflops": sum(step.flops * calls for step, calls in zip(first.steps, first.calls, strict=True)) * 1e-9,
        "params_bytes": m.params_bytes,
        "file_bytes": m.file_bytes,
        "arena_bytes": max(plan.arena_bytes for plan in m.variants),
        "memory": {**asdict(memory), "ram": memory.ram, "flash": memory.flash},
        "linked": asdict(m.linked),
        "files": {name: info.bytes for name, info in m.files.items()},
        "versions": dict(m.versions),
        "notes": list(m.notes),
        "verification": m.verification,
    }


def _tensor(tensor: TensorInfo, units: Mapping[str, int]) -> dict[str, Any]:
    """With the extents in terms of the dimensions, where sizes are free: a number or a text of each."""
    told: dict[str, Any] = {"name": tensor.name, "dtype": tensor.dtype, "shape": tensor.shape}
    if tensor.extents:
        told["extents"] = [n if isinstance(n, int) else extent_text(n, units) for n in tensor.shown]
    return told


def _output(plan: Plan, k: int, units: Mapping[str, int]) -> dict[str, Any]:
    """With the axes along which the shape says no more than how much there can be."""
    at_most = [size.axis for size in plan.sizes if size.output == k]
    return {**_tensor(plan.outputs[k], units), "at_most": at_most}


def _constant(constant: FixedInput) -> dict[str, Any]:
    """With its first numbers, as text."""
    numbers = constant.array().reshape(-1)
    shown = ", ".join(map(str, numbers[:SHOWN].tolist())) + ", ..." * (numbers.size > SHOWN)
    return {**_tensor(constant.tensor, {}), "shape": list(constant.tensor.shape), "value": shown}
