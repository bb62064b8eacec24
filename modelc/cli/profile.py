"""modelc profile"""

from __future__ import annotations

from pathlib import Path

import click

from modelc.cli.fixing import data_option, given_data
from modelc.cli.output import json_option, print_json, progress, say, show, size
from modelc.cli.places import package_argument


@click.command()
@package_argument("modelc profile PKG.modelc")
@click.option("--threads", metavar="N", type=click.IntRange(1, 1024), default=1, show_default=True)
@data_option("What it runs on, in the variant that takes it (default: drawn, in the first).")
@json_option
def profile(package: Path, threads: int, inputs: Path | None, as_json: bool) -> None:
    """Says what each kernel takes, which ONNX nodes it covers, and how near it comes to this machine's peak."""
    from modelc.verify.profile import profile as profile_package

    data = given_data(inputs)
    with progress("running, and measuring this machine's peak"):
        report = profile_package(package, threads, inputs=data)
    if as_json:
        print_json(report)
        return
    rows = []
    for row in report["kernels"]:
        numbers = (f"{row['us']:.1f}", f"{row['share']:.1%}", f"{row['flops'] * 1e-6:.3g}", size(row["bytes"]))
        speed = (row["dtype"], row["instruction"] or "vectors", f"{row['gflops']:.1f}", f"{row['peak_share']:.0%}")
        rows.append((row["kernel"], *numbers, *speed, ", ".join(row["nodes"])))
    figures = ("us", "share", "MFLOP", "bytes", "dtype", "instruction", "GFLOP/s", "of peak")
    show(("kernel", *figures, "nodes"), rows)
    peaks = ", ".join(f"{dtype} {gflops:.0f}" for dtype, gflops in report["peak_gflops"].items())
    source = "measured in this run" if report["peak_measured"] else "estimated: there is no C compiler to measure with"
    say(f"{report['total_us']:.0f} us in kernels, {threads} thread(s); peak GFLOP/s of a core, {source}: {peaks}")
