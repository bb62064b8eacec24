"""What a model or a package is, without compiling or running anything."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modelc.choices import Shapes
from modelc.errors import InputError, blaming
from modelc.frontend.load import read_model
from modelc.frontend.onnx import unsupported
from modelc.frontend.specialise import fix_constants, free_flags
from modelc.frontend.states import StateCandidate, state_candidates
from modelc.frontend.steering import Given
from modelc.frontend.surgery import summary
from modelc.frontend.uses import Uses
from modelc.inputs import Flags
from modelc.package import FixedInput, read_package
from modelc.package.spec import Plan

SHOWN = 8  # numbers of a constant


def inspect(
    path: str | os.PathLike[str],
    shapes: Sequence[Shapes] = (),
    dims: Mapping[str, int | Sequence[int]] | None = None,
    constants: Mapping[str, Given] | None = None,
) -> dict[str, Any]:
    """A package's folder: its manifest in short, every checksum compared. An ONNX file: inputs, outputs, operators,
    dtypes, the flags that fix its free dimensions, the inputs that look like steering constants or states, and each
    node that cannot be compiled with the reason, all after what `shapes`, `dims` and `constants` fix, as of compile."""
    place = Path(path)
    folder = os.path.isdir(place)
    flags = Flags(tuple(shapes), dims or {}, constants or {})
    with blaming(f"{'package' if folder else 'model'} {place}"):
        if folder and flags != Flags():
            raise InputError("the inputs of a package are fixed; --shape, --dim and --constant are for models")
        return _package(place) if folder else _model(place, flags)


def _package(path: Path) -> dict[str, Any]:
    m = read_package(path, check=True).manifest
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
        "constants": [_constant(one) for one in m.constants],
        "states": [{**asdict(one.input), "output": one.output} for one in first.states],
        "steps": len(first.steps),
        "kernels": len({step.symbol for plan in m.variants for step in plan.steps}),
        "dtypes": dict(Counter(step.dtype for step in first.steps)),
        "intrinsics": dict(Counter(step.intrinsic for step in first.steps if step.intrinsic)),
        "gflops": sum(step.flops * calls for step, calls in zip(first.steps, first.calls, strict=True)) * 1e-9,
        "arena_bytes": max(plan.arena_bytes for plan in m.variants),
        "files": {name: info.bytes for name, info in m.files.items()},
        "versions": dict(m.versions),
        "notes": list(m.notes),
        "verification": m.verification,
    }


def _output(plan: Plan, k: int) -> dict[str, Any]:
    """With the axes along which the shape says no more than how much there can be."""
    return {**asdict(plan.outputs[k]), "at_most": [size.axis for size in plan.sizes if size.output == k]}


def _constant(one: FixedInput) -> dict[str, Any]:
    """With its first numbers, as text."""
    numbers = one.array().reshape(-1)
    shown = ", ".join(map(str, numbers[:SHOWN].tolist())) + ", ..." * (numbers.size > SHOWN)
    return {**asdict(one.tensor), "shape": list(one.tensor.shape), "value": shown}


def _state(one: StateCandidate) -> dict[str, Any]:
    return {**asdict(one), "flag": None if one.grows else one.flag}


def _model(path: Path, flags: Flags) -> dict[str, Any]:
    model = read_model(path)
    known, given = flags.looked_at(model)
    fix_constants(model, known)
    lacking = [dict(zip(("node", "op", "domain", "reason"), row, strict=True)) for row in unsupported(path, model)]
    uses = Uses(model.graph, path.parent)
    return {
        "kind": "model",
        **summary(model),
        "free": free_flags(given),
        "steering": [asdict(one) for one in uses.steering()],
        "states": [_state(one) for one in state_candidates(model.graph)],
        "supported": not lacking,
        "unsupported": lacking,
    }
