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
    """What each kernel of a package takes in a run, and how near it comes to this machine's peak.

    Args:
        package: A package for this machine. Loading it executes the library in it.
        threads: On how many threads it runs.
        repeat: How many runs are timed, after one to warm up.
        inputs: Arrays by name, in the variant that takes them. Default: drawn, in the first variant.

    Returns:
        By the keys `total_us` the microseconds of a run in kernels; `kernels` a row for each in order of execution: its
        ONNX `nodes`, `us` of all its calls in a run together, its `share` of the run, `flops`, `bytes`, `gflops`, and
        `peak_share`, against this machine's vector peak for the dtype that it computes in (float32's where that was not
        measured); `peak_gflops` of a core by dtype. What control flow does not come to takes nothing.

    Raises:
        InputError: Inputs do not fit the package.
        PackageError: The package is damaged.
        TargetError: The package is for another machine.

    Example:
        >>> rows = modelc.profile("net.modelc")["kernels"]
        >>> round(sum(row["share"] for row in rows), 3)
        1.0
    """
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
