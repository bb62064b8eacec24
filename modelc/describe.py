"""What a model or a package is, without compiling or running anything."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modelc.errors import blaming
from modelc.frontend.onnx import unsupported
from modelc.frontend.surgery import summary
from modelc.package import read_package


def inspect(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A package's folder: its manifest in short, every checksum compared. An ONNX file: inputs, outputs, operators, and
    each node that cannot be compiled with the reason."""
    place = Path(path)
    folder = os.path.isdir(place)
    with blaming(f"{'package' if folder else 'model'} {place}"):
        return _package(place) if folder else _model(place)


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
            {"inputs": [asdict(t) for t in plan.inputs], "outputs": [asdict(t) for t in plan.outputs]}
            for plan in m.variants
        ],
        "steps": len(first.steps),
        "kernels": len({step.symbol for plan in m.variants for step in plan.steps}),
        "dtypes": dict(Counter(step.dtype for step in first.steps)),
        "intrinsics": dict(Counter(step.intrinsic for step in first.steps if step.intrinsic)),
        "gflops": sum(step.flops for step in first.steps) * 1e-9,
        "arena_bytes": max(plan.arena_bytes for plan in m.variants),
        "files": {name: info.bytes for name, info in m.files.items()},
        "versions": dict(m.versions),
        "notes": list(m.notes),
        "verification": m.verification,
    }


def _model(path: Path) -> dict[str, Any]:
    lacking = [dict(zip(("node", "op", "domain", "reason"), row, strict=True)) for row in unsupported(path)]
    return {"kind": "model", **summary(path), "supported": not lacking, "unsupported": lacking}
