"""Time per kernel, and how near each comes to what the machine can do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc import runtime
from modelc.errors import PackageError, TargetError
from modelc.package import machine_of, read_package
from modelc.package.toolchain import native_machine
from modelc.target import probe
from modelc.verify.check import given_or_drawn, variant_of


def profile(
    package: str | Path, threads: int = 1, repeat: int = 20, inputs: Mapping[str, NDArray[Any]] | None = None
) -> dict[str, Any]:
    """What every kernel of the package's first variant, or of that which takes `inputs`, takes in a run, all its
    calls together, in order; what control flow does not come to takes nothing. `peak_share` is against this
    machine's vector peak for the dtype that the kernel computes in (float32's where that was not measured),
    measured in this run."""
    read = read_package(package)
    if machine_of(read.manifest.target.triple) != native_machine():
        raise TargetError(f"{package} was built for {read.manifest.target.triple}: it cannot be timed on this machine")
    feed = given_or_drawn(read, None, inputs)
    plan = read.manifest.variants[variant_of(read, feed)]
    try:
        with runtime.load(package, threads=threads) as model:
            steps = model.profile(feed, repeat)
    except runtime.ModelError as error:
        raise PackageError(str(error)) from None
    machine = probe(fresh=True)
    total = sum(step.seconds for step in steps) / repeat
    rows = []
    for step, planned in zip(steps, plan.steps, strict=True):
        calls, seconds = step.calls // repeat, step.seconds / max(step.calls, 1)
        gflops = step.flops / seconds * 1e-9 if seconds else 0.0
        peak = machine.peak.get(planned.dtype, machine.peak["float32"]) * (1 if planned.serial else threads)
        rows.append(
            {
                "kernel": step.name,
                "nodes": list(planned.nodes),
                "calls": calls,
                "us": seconds * calls * 1e6,
                "share": seconds * calls / total if total else 0.0,
                "flops": step.flops * calls,
                "bytes": step.bytes * calls,
                "dtype": planned.dtype,
                "intrinsic": planned.intrinsic,
                "instruction": planned.instruction,
                "gflops": gflops,
                "peak_share": gflops / peak,
            }
        )
    return {
        "threads": threads,
        "peak_gflops": dict(machine.peak),
        "peak_measured": machine.measured,
        "total_us": total * 1e6,
        "kernels": rows,
    }
