"""Times whole networks, compiled untuned, beside ONNX Runtime and OpenVINO:

    python scripts/bench_networks.py [--only REGEX] [--threads 1 2] [--seconds S] [--against ort,openvino]
                                     [--precision bf16] [--dir models] [--also NAME ...] [--json FILE] [--plot FILE.png]

The papers' networks are built when they are missing (scripts/make_networks.py); trained models are fetched by
scripts/fetch_models.py; --also names others that lie in the folder, as torch exported them. Each is compiled for this
machine, verified, and timed by what `modelc bench` uses. A ratio is a peer's time / modelc's: above 1, modelc is
faster. Where tests/models.yaml says that weights are subnormal, ONNX Runtime is timed with denormals as zero as well
(ort-daz). The share of peak is what the arithmetic would take at what the units for each kernel's dtype reach by
themselves, timed by turns with the engines. The share of the roofline is what Tasks would take one by one of their
arithmetic at the peak, or of their boundary or constants at the bandwidth of where these lie, whichever is longest;
fewer multiplications (Winograd, Strassen) and chains can exceed both. With --precision bf16 or auto OpenVINO is asked
for bfloat16 too (openvino-bf16); ONNX Runtime computes in float32. The exit code is 1 if a network failed verification;
one that failed in another way is listed.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import paths
from bench_ops import Row, Say, attempt, compiled, count, engines_of, means, options, plot, print_failures, start, timed
from networks import NETWORKS, write
from rich.table import Table
from trained_models import catalogue

from modelc.cli.terminal import out
from modelc.compile.config import load_config
from modelc.compile.pipeline import Run
from modelc.errors import InputError
from modelc.space.cost.roofline import roofline_seconds
from modelc.target import load_target

NAMES = (*NETWORKS, "ppocr-rec", "ppocr-det", "minilm", "yunet", "opennsfw", "resnet50-arc")
ENGINES = ("modelc", "ort", "ort-daz", "openvino", "openvino-bf16")


def model_file(name: str, folder: Path, say: Say) -> Path:
    """The model's file, built if it is one of the papers' networks and missing."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    if name not in NETWORKS:
        fetched = f": python scripts/fetch_models.py {name} --dir {folder}" if name in NAMES else ""
        raise InputError(f"{path} is missing{fetched}")
    say("building the network")
    folder.mkdir(parents=True, exist_ok=True)
    write(NETWORKS[name](), path)
    return path


def measure(
    name: str,
    entry: Mapping,
    models: Path,
    precision: str,
    against: Sequence[str],
    threads: Sequence[int],
    seconds: float,
    say: Say,
) -> Row:
    """Compiles, verifies and times one network, with every number of threads. `entry`: the catalogue's, or empty."""
    model = model_file(name, models, say)
    shapes = [{key: tuple(shape) for key, shape in entry["shape"].items()}] if entry.get("shape") else []
    subnormal = entry.get("subnormal", 0) > 0
    engines = [engine for peer in against for engine in ((peer, "ort-daz") if peer == "ort" and subnormal else (peer,))]
    with tempfile.TemporaryDirectory(prefix="modelc-bench-") as folder:
        package = Path(folder) / f"{name}.modelc"
        row = compiled(model, package, say, shapes, precision)
        runs = [timed(package, model, engines, n, seconds, say) for n in threads]
    bounds = [roofline_us(model, shapes, precision, n) for n in threads]
    runs = [
        {**run, "roofline_us": us, "roofline_share": us / run["us"]["modelc"]}
        for run, us in zip(runs, bounds, strict=True)
    ]
    return {**row, "runs": runs}


def roofline_us(model: Path, shapes: Sequence[Mapping[str, tuple[int, ...]]], precision: str, threads: int) -> float:
    """The rooflines of all Tasks in microseconds, on so many cores of this machine."""
    target, config = replace(load_target("native"), cores=threads), load_config().allowing(precision=precision)
    program = Run(model, "", target, config, tuple(shapes) or ({},)).programs().rounded[0]
    tasks = [bound.task for bound in program.tasks]
    constants = sum(task.buffer(name).bytes for task in tasks for name in task.constants)
    cold = replace(target, cold_bytes=constants)
    return 1e6 * sum(roofline_seconds([task], cold, threads) for task in tasks)


def with_threads(rows: Sequence[Row], threads: int) -> list[Row]:
    """The runs with so many threads, by their networks' names."""
    return [{"case": row["case"], **run} for row in rows for run in row["runs"] if run["threads"] == threads]


def figures(runs: Sequence[Row], peers: Sequence[str]) -> Table:
    names = ("network", "modelc ms", *(f"{peer} ms" for peer in peers), *(f"vs {peer}" for peer in peers))
    table = Table(*names, "vs the best", "of peak", "of roofline", box=None)
    for run in runs:
        times = (f"{1e-3 * run['us'][name]:.3f}" if name in run["us"] else "" for name in ("modelc", *peers))
        ratios = (f"{run['ratio'][peer]:.2f}" if peer in run["ratio"] else "" for peer in peers)
        shares = f"{run['peak_share']:.0%}", f"{run['roofline_share']:.0%}"
        table.add_row(run["case"], *times, *ratios, f"{run['best']:.2f}", *shares)
    return table


def speed_up(single: Sequence[Row], several: Sequence[Row], engines: Sequence[str]) -> Table:
    table = Table("network", *engines, box=None)
    for one, more in zip(single, several, strict=True):
        found = (f"{one['us'][e] / more['us'][e]:.2f}" if e in one["us"] else "" for e in engines)
        table.add_row(one["case"], *found)
    return table


def report(runs: Mapping[int, Sequence[Row]], engines: Sequence[str]) -> None:
    """The figures for every number of threads, the speed-up over one thread, the geometric means."""
    for n, some in runs.items():
        out.print(f"{n} thread(s)", figures(some, engines[1:]), "", sep="\n")
    for n in runs if 1 in runs else ():
        if n != 1:
            out.print(f"speed-up of {n} threads over one", speed_up(runs[1], runs[n], engines), "", sep="\n")
    out.print(means({f"{n} thread(s)": some for n, some in runs.items()}, engines[1:]), "", sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    help = "one run for each (default 1); with 1 and others, the speed-up over one thread is shown"
    parser.add_argument("--threads", metavar="N", type=count, nargs="+", default=[1], help=help)
    parser.add_argument("--dir", metavar="DIR", type=Path, default=paths.ROOT / "models", help="where the models are")
    parser.add_argument("--precision", choices=("f32", "bf16", "auto"), default="f32", help="of modelc and OpenVINO")
    parser.add_argument("--also", metavar="NAME", nargs="+", default=[], help="other models there: NAME.onnx")
    options(parser, seconds=3.0)
    arguments = parser.parse_args()
    names = (*NAMES, *arguments.also)
    chosen = [name for name in names if re.search(arguments.only, name)]
    if not chosen:
        parser.error(f"no network matches {arguments.only.pattern!r}; there are {', '.join(names)}")
    start(parser, arguments)
    threads, entries = list(dict.fromkeys(arguments.threads)), catalogue()
    narrow = {"openvino": "openvino-bf16"} if arguments.precision != "f32" else {}
    against = [narrow.get(peer, peer) for peer in arguments.against]

    def work(name: str, say: Say) -> Row:
        entry = entries.get(name, {})
        return measure(name, entry, arguments.dir, arguments.precision, against, threads, arguments.seconds, say)

    rows, failures = attempt(
        chosen, work, arguments.json, {"seconds": arguments.seconds, "precision": arguments.precision}
    )
    engines = [engine for engine in ENGINES if any(engine in run["us"] for row in rows for run in row["runs"])]
    runs = {n: with_threads(rows, n) for n in threads}
    if rows:
        report(runs, engines)
    print_failures(failures)
    out.print(f"{len(rows)} of {len(chosen)} networks")
    out.print(engines_of([run for some in runs.values() for run in some]))
    if arguments.plot and rows:
        groups = {f"{run['case']}, {n} thr.": [run] for n, some in runs.items() for run in some}
        plot(arguments.plot, "Networks", groups, engines[1:])
    return 1 if any(one["verification"] for one in failures) else 0


if __name__ == "__main__":
    sys.exit(main())
