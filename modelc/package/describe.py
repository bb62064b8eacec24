"""What a package is, without running it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modelc.package.memory import memory_of
from modelc.package.read import read_package
from modelc.package.spec import FixedInput, Plan, distinct_kernels

SHOWN = 8  # numbers of a constant


def described(path: Path) -> dict[str, Any]:
    """The package in this folder: its manifest in short, every checksum compared."""
    package = read_package(path, check=True)
    m = package.manifest
    memory = memory_of(m, package.path)
    first = m.variants[0]
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
                "inputs": [asdict(t) for t in plan.inputs],
                "outputs": [_output(plan, k) for k in range(len(plan.outputs))],
            }
            for plan in m.variants
        ],
        "origin": None if m.origin is None else asdict(m.origin),
        "constants": [_constant(constant) for constant in m.constants],
        "bounds": dict(m.bounds),
        "states": [{**asdict(state.input), "output": state.output} for state in first.states],
        "steps": len(first.steps),
        "kernels": distinct_kernels(m.variants),
        "dtypes": dict(Counter(step.dtype for step in first.steps)),
        "intrinsics": dict(Counter(step.intrinsic for step in first.steps if step.intrinsic)),
        "gflops": sum(step.flops * calls for step, calls in zip(first.steps, first.calls, strict=True)) * 1e-9,
        "arena_bytes": max(plan.arena_bytes for plan in m.variants),
        "memory": {**asdict(memory), "ram": memory.ram, "flash": memory.flash},
        "linked": asdict(m.linked),
        "files": {name: info.bytes for name, info in m.files.items()},
        "versions": dict(m.versions),
        "notes": list(m.notes),
        "verification": m.verification,
    }


def _output(plan: Plan, k: int) -> dict[str, Any]:
    """With the axes along which the shape says no more than how much there can be."""
    return {**asdict(plan.outputs[k]), "at_most": [size.axis for size in plan.sizes if size.output == k]}


def _constant(constant: FixedInput) -> dict[str, Any]:
    """With its first numbers, as text."""
    numbers = constant.array().reshape(-1)
    shown = ", ".join(map(str, numbers[:SHOWN].tolist())) + ", ..." * (numbers.size > SHOWN)
    return {**asdict(constant.tensor), "shape": list(constant.tensor.shape), "value": shown}
