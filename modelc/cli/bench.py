"""modelc bench"""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table

from modelc.cli.output import err, json_option, out, print_json


@click.command()
@click.argument("package", metavar="PKG", type=click.Path(path_type=Path))
@click.option(
    "--against", metavar="ENGINES", default="", help="ort, ort-daz (denormals as zero), openvino, openvino-bf16."
)
@click.option("--model", metavar="MODEL.onnx", type=click.Path(path_type=Path), help="What the other engines run.")
@click.option("--threads", metavar="N", type=click.IntRange(1, 1024), default=1, show_default=True, help="Per engine.")
@click.option("--seconds", metavar="S", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Per engine.")
@click.option("--peak", is_flag=True, help="Also the share of what this machine's units reach, timed by turns too.")
@json_option
def bench(
    package: Path, against: str, model: Path | None, threads: int, seconds: float, peak: bool, as_json: bool
) -> None:
    """Times a package beside other engines, in alternating slices of one run."""
    from modelc.verify.bench import bench as bench_package

    engines = [name.strip() for name in against.split(",") if name.strip()]
    with err.status("starting") as status:
        found = bench_package(package, engines, model, threads, seconds, status.update, peak)
    if as_json:
        print_json(found)
        return
    table = Table("engine", "median ms", "p10", "p90", "runs", "time / modelc's", box=None)
    for name, e in found["engines"].items():
        ratio = found["ratio"].get(name)
        times = (f"{e[key]:.3f}" for key in ("median_ms", "p10_ms", "p90_ms"))
        table.add_row(e["about"], *times, str(e["runs"]), "" if ratio is None else f"{ratio:.2f}")
    out.print(table)
    out.print(f"{threads} thread(s)")
    if peak:
        peaks = ", ".join(f"{dtype} {gflops:.0f}" for dtype, gflops in found["peak_gflops"].items())
        out.print(f"{found['peak_share']:.0%} of the peak: {peaks} GFLOP/s in this run")
