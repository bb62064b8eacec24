"""What a page says of a package, as plain data."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from modelc.errors import ModelcError
from modelc.package import (
    Package,
    Step,
    at_dims,
    ranges_of,
    read_choices,
    read_package,
    read_verification,
    sizes_sentence,
)
from modelc.package.spec import ArenaTensor, Plan, distinct_kernels
from modelc.report.drawing import drawing_of
from modelc.report.tuning import read_tuning
from modelc.runtime.shown import range_text, shape_text, size
from modelc.target import probe
from modelc.verify.bench import beside_ort
from modelc.verify.noise import Noise
from modelc.verify.profile import profile


def package_facts(path: Path, threads: int = 1, model: Path | None = None) -> dict[str, Any]:
    """A package: its summary, its kernels (with times where this machine can run it), its arena, verification and
    tuning; with the ONNX `model` also ONNX Runtime's time on this machine. Raises PackageError."""
    package = read_package(path, check=True)
    manifest = package.manifest
    plan = at_dims(package).manifest.variants[0]
    timed, why = _profiled(path, threads)
    beside = beside_ort(path, model) if model is not None and timed is not None else None
    verification = read_verification(package) or {}
    kernels, lives = _kernels(plan, timed, verification), _arena(plan)
    return {
        "name": manifest.name,
        "path": str(path),
        "summary": dict(_summary(package, timed, beside)),
        "kernels": kernels,
        "drawing": drawing_of(plan, kernels, lives) if any(step.written for step in plan.steps) else None,
        "total_us": timed["total_us"] if timed else None,
        "untimed_because": why,
        "roof": _roof(timed) if timed else None,
        "arena": lives,
        "verification": manifest.verification,
        "tuning": read_tuning(path),
    }


def _profiled(path: Path, threads: int) -> tuple[dict[str, Any] | None, str]:
    try:
        return profile(path, threads), ""
    except ModelcError as error:
        return None, str(error)


def _summary(
    package: Package, timed: Mapping[str, Any] | None, beside: Mapping[str, float] | None
) -> Iterator[tuple[str, str]]:
    """Name and value of each line."""
    manifest, plan = package.manifest, package.manifest.variants[0]
    if timed is not None:
        yield "machine", f"{cpu_name()}, {os.cpu_count()} processors, {platform.system()} {platform.release()}"
    yield "date", time.strftime("%Y-%m-%d %H:%M %z")
    yield "target", f"{manifest.target.name} ({manifest.target.triple})"
    precision = read_choices(package).get("config", {}).get("precision", "")
    yield "precision", str(precision)
    units = {free.name: free.unit for free in plan.free}
    for kind, tensors in (("input", plan.inputs), ("output", plan.outputs)):
        shown = [f"{tensor.name} {tensor.dtype}{shape_text(tensor.shown, units)}" for tensor in tensors]
        yield f"{kind}{'s' * (len(shown) > 1)}", ", ".join(shown[:6]) + ", ..." * (len(shown) > 6)
    if len(manifest.variants) > 1:
        yield "variants", f"{len(manifest.variants)}; this page shows the first"
    for name, numbers in ranges_of(plan.free).items():
        yield "size", f"{name} {range_text(numbers)}"
    if timed is not None:
        at = f", at {sizes_sentence(timed['sizes'])}" if timed["sizes"] else ""
        yield "time", f"{timed['total_us'] / 1e3:.3f} ms in kernels, {timed['threads']} thread(s){at}"
        low, high = (timed[f"total_{name}_us"] / 1e3 for name in ("p10", "p90"))
        yield "spread", f"{low:.3f} ms at p10, {high:.3f} ms at p90; {Noise.of(timed['noise']).sentence()}"
    if beside is not None:
        yield (
            "ONNX Runtime",
            (
                f"{beside['ort_ms']:.3f} ms, and the package by turns with it {beside['modelc_ms']:.3f} ms: "
                f"{beside['ratio']:.2f} times as fast, one thread"
            ),
        )
    yield "kernels", f"{distinct_kernels(manifest.variants)} distinct, {len(plan.steps)} steps"
    usual = at_dims(package).manifest.variants[0]
    yield "work", f"{sum(n * s.flops for n, s in zip(usual.calls, usual.steps, strict=True)) * 1e-9:.3g} GFLOP"
    yield "parameters", size(manifest.params_bytes)
    yield "library", size(manifest.files[manifest.linked.form.code].bytes)
    yield "arena", size(max(p.arena_bytes for p in manifest.variants))
    report = manifest.verification
    yield "verification", str(report.get("sentence", "")) if report else "none"
    for note in manifest.notes:
        yield "note", note
    yield "made by", ", ".join(f"{tool} {version}" for tool, version in manifest.versions.items())


def cpu_name() -> str:
    """What this machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _kernels(plan: Plan, timed: Mapping[str, Any] | None, verification: Mapping[str, Any]) -> list[dict[str, Any]]:
    judged = {row.get("kernel"): row for row in verification.get("kernels", ()) if isinstance(row, dict)}
    rows = []
    for number, (step, calls) in enumerate(zip(plan.steps, plan.calls, strict=True)):
        row = _kernel(step, calls, judged.get(step.name, {})) | {"step": number}
        if timed is not None:
            measured = timed["kernels"][number]
            row |= {name: measured[name] for name in ("us", "p10_us", "p90_us", "share", "gflops", "peak_share")}
        rows.append(row)
    return rows


def _kernel(step: Step, calls: int, judged: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "kernel": step.name,
        "nodes": list(step.nodes),
        "flops": step.flops * calls,
        "bytes": step.bytes * calls,
        "intensity": step.flops / step.bytes if step.bytes else 0.0,
        "dtype": step.dtype,
        "instruction": step.instruction or "vectors",
        "layout": step.layout,
        "worst": judged.get("worst"),
        "samples": judged.get("samples", 0),
        "passed": judged.get("passed"),
    }


def _roof(timed: Mapping[str, Any]) -> dict[str, Any]:
    """What this machine reaches: GFLOP/s by dtype, and GB/s from memory."""
    machine = probe()
    return {"gflops": dict(timed["peak_gflops"]), "gbs": machine.memory_gbs(1)}


def _arena(plan: Plan) -> list[dict[str, Any]]:
    """Each tensor of the arena, in the order in which they are written, which is the plan's: its bytes, the steps from
    the one that writes it first to the last that reads it, and all that write and read it. Nothing of an earlier
    version's package, whose steps do not say what they write."""
    pending: dict[int, list[ArenaTensor]] = {}
    for tensor in reversed(plan.memory):
        pending.setdefault(tensor.offset, []).append(tensor)
    lives: list[dict[str, Any]] = []
    at: dict[int, dict[str, Any]] = {}  # what lies where now, by its first byte
    for number, step in enumerate(plan.steps):
        places: tuple[set[int], set[int]] = (set(), set())  # that it reads, and that it writes
        for k, argument in enumerate(step.arguments):
            if argument.space == "arena":
                places[k in step.written].add(argument.offset)
        read, written = places
        for life in at.values():
            if any(life["offset"] <= place < life["top"] for place in read):
                life["end"] = number + 1
                life["readers"].append(number)
        for tensor in (pending[place].pop() for place in sorted(written) if pending.get(place)):
            top = tensor.offset + tensor.bytes
            at = {o: life for o, life in at.items() if life["top"] <= tensor.offset or top <= o}
            life = {"tensor": tensor.name, "start": number, "end": number + 1, "bytes": tensor.bytes}
            at[tensor.offset] = life | {"offset": tensor.offset, "top": top, "writers": [], "readers": []}
            lives.append(at[tensor.offset])
        for life in at.values():
            if any(life["offset"] <= place < life["top"] for place in written):
                life["end"] = number + 1
                life["writers"].append(number)
    return lives
