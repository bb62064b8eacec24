"""Time per kernel, and how near each comes to what the machine can do."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc import runtime
from modelc.errors import PackageError, TargetError
from modelc.package import at_given, machine_of, read_package, said_sizes
from modelc.package.toolchain import native_machine
from modelc.target import probe
from modelc.verify.check import given_or_drawn, variant_of
from modelc.verify.noise import FixedLoop, noise_of


def profile(
    package: str | Path,
    threads: int = 1,
    repeat: int = 20,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """What each kernel of a package takes in a run, and how near it comes to this machine's peak.

    Args:
        package: A package for this machine. Loading it executes the library in it.
        threads: On how many threads it runs.
        repeat: How many runs are timed, after one to warm up.
        inputs: Arrays by name, in the variant that takes them. Default: drawn, in the first variant.
        dims: Sizes of the drawn inputs by the names of free dimensions, `{"seq": 20}`. Default: the first size behind
            @ (compile --dim seq=1..512@16), or a quarter of the most.

    Returns:
        A dictionary. `sizes`: the free dimensions in these runs. `total_us`: microseconds of a run in kernels.
        `kernels`: a row for each, in order of execution, with its ONNX `nodes`, `us` of all its calls in a run (the
        median of `repeat` runs; p10_us, p90_us), `share` of the run, `flops`, `bytes`, `gflops`, and `peak_share` of
        this machine's vector peak for its dtype (float32's where none was measured). `operators`: sums of kernels,
        longest first. `noise`: the spread and the drift of a fixed loop between the runs. `peak_gflops`: of a core, by
        dtype. Kernels in branches not taken have 0.

    Raises:
        InputError: Inputs do not fit the package.
        PackageError: The package is damaged.
        TargetError: The package is for another machine.

    Example:
        >>> rows = modelc.profile("net.modelc")["kernels"]
        >>> all(row["us"] >= 0 and 0 <= row["share"] <= 1 for row in rows)
        True
    """
    read = read_package(package)
    if machine_of(read.manifest.target.triple) != native_machine():
        raise TargetError(f"{package} was built for {read.manifest.target.triple}: it cannot be timed on this machine")
    read = at_given(read, inputs, dims)
    feed = given_or_drawn(read, None, inputs)
    number = variant_of(read, feed)
    plan = read.manifest.variants[number]
    try:
        with runtime.load(package, threads=threads) as model:
            runs, looks = [], []
            model.run_anew(feed)
            for _ in range(repeat):
                model.profile_start()
                model.run_anew(feed)
                model.profile_stop()
                runs.append(model.profile_read(read.in_library(number)))
                looks.append(FixedLoop().time(0.0))
    except runtime.ModelError as error:
        raise PackageError(str(error)) from None
    machine = probe(fresh=True)
    times = 1e6 * np.array([[step.seconds for step in run] for run in runs])  # runs by steps, microseconds
    totals = np.percentile(times.sum(axis=1), (10, 50, 90))
    each = np.percentile(times, (10, 50, 90), axis=0)
    share_of = sum(each[1]) or 1.0
    rows = []
    for step, planned, (p10, us, p90) in zip(runs[0], plan.steps, each.T.tolist(), strict=True):
        calls, seconds = step.calls, us * 1e-6 / max(step.calls, 1)
        gflops = planned.flops / seconds * 1e-9 if seconds else 0.0
        peak = machine.peak.get(planned.dtype, machine.peak["float32"]) * (1 if planned.serial else threads)
        rows.append(
            {
                "kernel": step.name,
                "nodes": list(planned.nodes),
                "calls": calls,
                "us": us,
                "p10_us": p10,
                "p90_us": p90,
                "share": us / share_of,
                "flops": planned.flops * calls,
                "bytes": planned.bytes * calls,
                "dtype": planned.dtype,
                "intrinsic": planned.intrinsic,
                "instruction": planned.instruction,
                "gflops": gflops,
                "peak_share": gflops / peak,
            }
        )
    return {
        "threads": threads,
        "sizes": said_sizes(read),
        "peak_gflops": dict(machine.peak),
        "peak_measured": machine.measured,
        "total_us": float(totals[1]),
        "total_p10_us": float(totals[0]),
        "total_p90_us": float(totals[2]),
        "noise": noise_of(looks).to_json(),
        "kernels": rows,
        "operators": _by_operators(rows),
    }


def _by_operators(kernels: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sums over the kernels of the same operators, which their names begin with: conv_relu_3.1 is of conv_relu."""
    sums: dict[str, dict[str, Any]] = {}
    for kernel in kernels:
        operators = re.sub(r"_\d+(\.\d+)?$", "", kernel["kernel"])
        row = sums.setdefault(operators, {"operators": operators, "kernels": 0, "us": 0.0, "share": 0.0, "flops": 0.0})
        row["kernels"] += 1
        for name in ("us", "share", "flops"):
            row[name] += kernel[name]
    return sorted(sums.values(), key=lambda row: -row["us"])
