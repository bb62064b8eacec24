"""Times modelc's code, untuned, for the operators of Ansor's evaluation beside ONNX Runtime and OpenVINO:

    python scripts/bench_ops.py [--only REGEX] [--batch N...] [--threads N] [--seconds S] [--against ort,openvino]
                                [--json FILE] [--plot FILE.png]

A case is OPERATOR-SHAPE-bBATCH, as in C2D-3-b16 (scripts/ansor_ops.py). Each is compiled for this machine, verified,
and timed by what `modelc bench` uses. A ratio is a peer's time / modelc's: above 1, modelc is faster. Where a peer
takes less than 120 us, the call is measured along with the operator: such cases are reported apart. The share of peak
is of what float32 FMAs on registers alone reach, timed by turns with the engines. The exit code is 1 if a case failed
verification; one that failed in another way is listed.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ansor_ops
import onnx
from rich.table import Table

import modelc
from modelc.cli.terminal import err, out
from modelc.errors import ModelcError, VerificationError
from modelc.tune.search.tune import Budget

SMALL_US = 120
PEERS = {"ort": "onnxruntime", "openvino": "openvino"}  # and the module of each
COLOURS = {"ort": "#4477aa", "ort-daz": "#66ccee", "openvino": "#ee6677", "openvino-bf16": "#aa3377"}

Row = dict[str, Any]
Say = Callable[[str], None]


# What this script shares with bench_networks.py


def options(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Adds the options that both scripts have."""
    parser.add_argument("--only", metavar="REGEX", type=pattern, default="", help="cases whose name has a match")
    parser.add_argument(
        "--seconds", metavar="S", type=positive, default=seconds, help=f"per engine (default {seconds:g})"
    )
    parser.add_argument("--against", metavar="PEERS", type=peers, default=[*PEERS], help=f"default {','.join(PEERS)}")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write every figure there, after every case")
    parser.add_argument("--plot", metavar="FILE.png", type=Path, help="draw the ratios (needs matplotlib)")


def pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def positive(text: str) -> float:
    if not 0 < (value := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def count(text: str) -> int:
    if not 1 <= (value := int(text)) <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to 1024")
    return value


def tuning_budget(text: str) -> str:
    """Of tuning, as `modelc tune` takes it."""
    try:
        Budget.parse(text)
    except ModelcError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def peers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is unknown; known are {', '.join(PEERS)}")
    return names


def start(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuses what would only fail when everything has been timed."""
    if missing := [name for name in arguments.against if find_spec(PEERS[name]) is None]:
        rest = ",".join(name for name in PEERS if name not in missing)
        parser.error(f"{missing[0]} is not installed: pip install 'modelc-compiler[bench]', or give --against {rest}")
    if arguments.plot and find_spec("matplotlib") is None:
        err.print("there will be no plot: matplotlib is not installed (pip install matplotlib)")
        arguments.plot = None
    for path in filter(None, (arguments.json, arguments.plot)):
        try:
            path.touch()
        except OSError as error:
            parser.error(f"{path} cannot be written: {error.strerror}")


def attempt(
    names: Iterable[str], work: Callable[[str, Say], Row], path: Path | None, about: Row
) -> tuple[list[Row], list[Row]]:
    """The rows that `work` gives, and the failures. All there is goes to `path` after every case, with `about`."""
    rows: list[Row] = []
    failures: list[Row] = []
    try:
        for name in names:
            with err.status(name) as status:
                try:
                    rows.append({"case": name, **work(name, lambda text, n=name: status.update(f"{n}: {text}"))})
                    said = "done"
                except Exception as error:
                    failures.append(failure(name, error))
                    said = f"failed: {failures[-1]['error']}"
            err.print(f"{name} {said}", markup=False, soft_wrap=True)
            if path is not None:
                path.write_text(json.dumps({**about, "cases": rows, "failures": failures}, indent=1) + "\n")
    except KeyboardInterrupt:
        err.print("interrupted; this is what was measured before:")
    return rows, failures


def failure(name: str, error: Exception) -> Row:
    """How a case failed. What is no ModelcError is a bug, and named by its kind."""
    sentence = f"{error}" if isinstance(error, ModelcError) else f"{type(error).__name__}: {error}"
    wrong = isinstance(error, VerificationError)
    return {"case": name, "verification": wrong, "error": " ".join(sentence.split())[:1000]}


def compiled(
    model: Path,
    package: Path,
    say: Say,
    shapes: Sequence[Mapping[str, tuple[int, ...]]] = (),
    precision: str | None = None,
) -> Row:
    """Compiles `model` for this machine. Raises VerificationError if the package is wrong."""

    def progress(stage: str, text: str) -> None:
        say(f"{stage} {text}")

    result = modelc.compile(
        model, target="native", output=package, shapes=shapes, precision=precision, progress=progress, database=False
    )
    assert result.report is not None
    return {"compile_seconds": sum(result.seconds.values()), "verification": result.report.sentence()}


def timed(package: Path, model: Path, against: Sequence[str], threads: int, seconds: float, say: Say) -> Row:
    """What modelc.bench finds, in microseconds; `best` is the ratio to the fastest peer."""
    found = modelc.bench(package, against, model, threads, seconds, lambda stage, text: say(text), peak=True)
    engines = found["engines"]
    return {
        "threads": threads,
        "about": {name: one["about"] for name, one in engines.items()},
        "us": {name: 1e3 * one["median_ms"] for name, one in engines.items()},
        "p10_us": {name: 1e3 * one["p10_ms"] for name, one in engines.items()},
        "p90_us": {name: 1e3 * one["p90_ms"] for name, one in engines.items()},
        "runs": {name: one["runs"] for name, one in engines.items()},
        "ratio": found["ratio"],
        "best": min(found["ratio"].values()),
        "peak_gflops": found["peak_gflops"],
        "peak_share": found["peak_share"],
    }


def geometric_mean(values: Iterable[float]) -> float | None:
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else None


def means(groups: Mapping[str, Sequence[Row]], against: Sequence[str]) -> Table:
    """The geometric means of the ratios, group by group."""
    table = Table("geometric mean of", "cases", *(f"vs {peer}" for peer in against), "vs the best", box=None)
    for label, rows in groups.items():
        found = [geometric_mean(row["ratio"][peer] for row in rows if peer in row["ratio"]) for peer in against]
        found.append(geometric_mean(row["best"] for row in rows))
        table.add_row(label, str(len(rows)), *("" if mean is None else f"{mean:.2f}" for mean in found))
    return table


def engines_of(rows: Sequence[Row]) -> str:
    return ", ".join(dict.fromkeys(about for row in rows for about in row["about"].values()))


def print_failures(failures: Sequence[Row]) -> None:
    for one in failures:
        kind = "failed verification" if one["verification"] else "failed"
        out.print(f"{one['case']} {kind}: {one['error']}", markup=False, soft_wrap=True)


def plot(path: Path, title: str, groups: Mapping[str, Sequence[Row]], against: Sequence[str]) -> None:
    """A line for every group: a dot for each ratio, a bar at their geometric mean."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter, ScalarFormatter

    figure = Figure(figsize=(9, 1.5 + 0.3 * len(groups)), layout="constrained")
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.axvline(1, color="black", linewidth=0.8)
    for k, peer in enumerate(against):
        shift = 0.3 * ((k + 0.5) / len(against) - 0.5)
        for place, rows in enumerate(groups.values()):
            ratios = [row["ratio"][peer] for row in rows if peer in row["ratio"]]
            axes.plot(ratios, [place + shift] * len(ratios), "o", color=COLOURS[peer], markersize=4, alpha=0.7)
            if len(ratios) > 1:
                mean = [geometric_mean(ratios)]
                axes.plot(mean, [place + shift], "|", color=COLOURS[peer], markersize=12, markeredgewidth=2)
        axes.plot([], [], "o", color=COLOURS[peer], label=f"{peer}'s time / modelc's")
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("above 1, modelc is faster")
    axes.set_title(title)
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=len(against), frameon=False)
    figure.savefig(path, dpi=120)


# The operators


def measure(case: ansor_ops.Case, against: Sequence[str], threads: int, seconds: float, say: Say) -> Row:
    """Builds, compiles, verifies and times one case. Its share of the peak counts the operator's own arithmetic."""
    with tempfile.TemporaryDirectory(prefix="modelc-bench-") as folder:
        model, package = Path(folder) / f"{case.name}.onnx", Path(folder) / f"{case.name}.modelc"
        proto, flops = case.build()
        onnx.save(proto, model)
        row = {"operator": case.operator, "batch": case.batch, "shape": case.shape, "flops": flops}
        row |= compiled(model, package, say)
        row |= timed(package, model, against, threads, seconds, say)
    gflops = flops / row["us"]["modelc"] * 1e-3
    return {**row, "gflops": gflops, "peak_share": gflops / row["peak_gflops"]["float32"]}


def figures(rows: Sequence[Row], against: Sequence[str]) -> Table:
    names = ("case", "shape", "modelc us", *(f"{peer} us" for peer in against), *(f"vs {peer}" for peer in against))
    table = Table(*names, "vs the best", "GFLOP/s", "of peak", box=None)
    for row in rows:
        times = (f"{row['us'][name]:.1f}" for name in ("modelc", *against))
        ratios = (f"{ratio:.2f}" for ratio in (*(row["ratio"][peer] for peer in against), row["best"]))
        speed = (f"{row['gflops']:.1f}", f"{row['peak_share']:.0%}")
        table.add_row(row["case"], " ".join(map(str, row["shape"])), *times, *ratios, *speed)
    return table


def is_small(row: Row) -> bool:
    return min(us for name, us in row["us"].items() if name != "modelc") < SMALL_US


def report(rows: Sequence[Row], against: Sequence[str]) -> None:
    small = [row for row in rows if is_small(row)]
    rest = [row for row in rows if not is_small(row)]
    for some, title in ((rest, f"{SMALL_US} us and more"), (small, f"a peer takes under {SMALL_US} us")):
        if some:
            out.print(title, figures(some, against), "", sep="\n")
    operators = {o: [row for row in rows if row["operator"] == o] for o in dict.fromkeys(r["operator"] for r in rows)}
    groups = {**operators, f"{SMALL_US} us and more": rest, f"under {SMALL_US} us": small, "all": rows}
    out.print(means(groups, against), "", sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--batch", metavar="N", type=count, nargs="+", default=[*ansor_ops.BATCHES], help="default 1 16"
    )
    parser.add_argument("--threads", metavar="N", type=count, default=1, help="default 1")
    options(parser, seconds=1.0)
    arguments = parser.parse_args()
    cases = {case.name: case for case in ansor_ops.cases(arguments.batch) if re.search(arguments.only, case.name)}
    if not cases:
        parser.error(f"no case matches {arguments.only.pattern!r}; the operators are {', '.join(ansor_ops.SHAPES)}")
    start(parser, arguments)
    against, threads = arguments.against, arguments.threads

    def work(name: str, say: Say) -> Row:
        return measure(cases[name], against, threads, arguments.seconds, say)

    rows, failures = attempt(cases, work, arguments.json, {"threads": threads, "seconds": arguments.seconds})
    if rows:
        report(rows, against)
    print_failures(failures)
    out.print(f"{len(rows)} of {len(cases)} cases, {threads} thread(s)")
    out.print(engines_of(rows))
    if arguments.plot and rows:
        groups: dict[str, list[Row]] = {}
        for row in rows:
            groups.setdefault(f"{row['operator']} b{row['batch']}", []).append(row)
        plot(arguments.plot, f"Ansor's operators, {threads} thread(s)", groups, against)
    return 1 if any(one["verification"] for one in failures) else 0


if __name__ == "__main__":
    sys.exit(main())
