"""modelc profile"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from modelc.cli.bench import at_sizes
from modelc.cli.options import data_option, given_data, package_argument, sizes_option
from modelc.cli.output import console_width, json_option, print_json, progress, say, shortened, show, size

WIDE = 120  # columns, below which less is shown of each kernel


@click.command()
@package_argument("modelc profile PKG.modelc")
@click.option("--threads", metavar="N", type=click.IntRange(1, 1024), default=1, show_default=True)
@data_option("What it runs on, in the variant that takes it (default: drawn, in the first).")
@sizes_option()
@json_option
def profile(package: Path, threads: int, inputs: Path | None, dims: Mapping[str, int] | None, as_json: bool) -> None:
    """Says what each kernel takes, which ONNX nodes it covers, and how near it comes to this machine's peak."""
    from modelc.verify.noise import Noise
    from modelc.verify.profile import profile as profile_package

    data = given_data(inputs, package)
    with progress("running, and measuring this machine's peak"):
        report = profile_package(package, threads, inputs=data, dims=dims)
    if as_json:
        print_json("profile", report)
        return
    wide = console_width() >= WIDE
    rows = []
    for row in sorted(report["kernels"], key=lambda row: -row["us"]):
        spread = (f"{row['p10_us']:.1f}", f"{row['p90_us']:.1f}") if wide else ()
        numbers = (f"{row['us']:.1f}", *spread, f"{row['share']:.1%}")
        work = (f"{row['flops'] * 1e-6:.3g}", size(row["bytes"]))
        dtype = (row["dtype"], row["instruction"] or "vectors")
        speed = (f"{row['gflops']:.1f}", f"{row['peak_share']:.0%}")
        name = row["kernel"] if wide else shortened(row["kernel"], 24)
        nodes = ", ".join(row["nodes"])
        columns = (
            (*numbers, *work, *dtype, *speed, nodes) if wide else (*numbers, dtype[0], *speed, shortened(nodes, 16))
        )
        rows.append((name, *columns))
    figures = ("us", "p10", "p90", "share", "MFLOP", "bytes", "dtype", "instruction", "GFLOP/s", "of peak")
    narrow = ("us", "share", "dtype", "GFLOP/s", "of peak")
    show(("kernel", *(figures if wide else narrow), "nodes"), rows)
    say()
    sums = [
        (row["operators"], str(row["kernels"]), f"{row['us']:.1f}", f"{row['share']:.1%}", f"{row['flops'] * 1e-6:.3g}")
        for row in report["operators"]
    ]
    show(("operators", "kernels", "us", "share", "MFLOP"), sums)
    say()
    peaks = ", ".join(f"{dtype} {gflops:.0f}" for dtype, gflops in report["peak_gflops"].items())
    source = "measured in this run" if report["peak_measured"] else "estimated: there is no C compiler to measure with"
    total, p10, p90 = (report[f"total_{name}us"] for name in ("", "p10_", "p90_"))
    if report["sizes"]:
        say(at_sizes(report["sizes"], package, data is None and dims is None))
    say(f"{total:.0f} us in kernels ({p10:.0f} at p10, {p90:.0f} at p90), {threads} thread(s)")
    say(f"peak GFLOP/s of a core, {source}: {peaks}")
    say(Noise.of(report["noise"]).sentence())
