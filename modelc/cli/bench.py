"""modelc bench"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelc.cli.options import PATH, Finite, data_option, given_data, no_package, package_argument, sizes_option
from modelc.cli.output import complain, json_option, print_json, say, show
from modelc.cli.progress_bar import Staged, bar
from modelc.errors import TargetError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SUFFIX = ".modelc"  # of what is a package among engines
_FAILING = re.compile(r"(slower|kernel-slower):([0-9]{1,3}(?:\.[0-9]{1,3})?)%")
MOST_SECONDS = 86400.0
USAGE = "modelc bench PKG.modelc --against ort --model MODEL.onnx"


@click.command()
@package_argument(USAGE)
@click.option(
    "--against",
    metavar="ENGINES",
    multiple=True,
    help="ort, ort-daz (denormals as zero), ort-exact (exact products of bytes), ort-plain (not optimised), openvino, "
    "openvino-bf16; or other packages, PKG.modelc. Several with commas, or the flag again.",
)
@click.option(
    "--model", metavar="MODEL.onnx", type=PATH, callback=no_package(USAGE), help="What the other engines run."
)
@click.option("--threads", metavar="N", type=click.IntRange(1, 1024), default=1, show_default=True, help="Per engine.")
@click.option(
    "--seconds", metavar="S", type=Finite(0.1, MOST_SECONDS), default=3.0, show_default=True, help="Per engine."
)
@click.option("--peak", is_flag=True, help="Also the share of what this machine's units reach, timed by turns too.")
@click.option("--counts", is_flag=True, help="Also the instructions of a run, of each package.")
@click.option(
    "--fail-if",
    metavar="slower:3%",
    multiple=True,
    help="Exit code 1 where the package is slower than one of the packages of --against, or with kernel-slower:10% a "
    "kernel of it, by more than that and than three times the noise, each time that it is measured.",
)
@data_option("What all of them run on, in the variant that takes it (default: drawn, in the first).")
@sizes_option()
@json_option
def bench(
    package: Path,
    against: Sequence[str],
    model: Path | None,
    threads: int,
    seconds: float,
    peak: bool,
    counts: bool,
    fail_if: Sequence[str],
    inputs: Path | None,
    dims: Mapping[str, int] | None,
    as_json: bool,
) -> int:
    """Times a package beside other engines, in alternating slices of one run."""
    from modelc.verify.bench import bench as bench_package
    from modelc.verify.noise import Noise
    from modelc.verify.rounds import Pair
    from modelc.verify.slower import Slower, SlowerKernels, slower, slower_kernels

    engines = [name.strip() for given in against for name in given.split(",") if name.strip()]
    floors = dict(map(_failing, fail_if))
    before = [name for name in dict.fromkeys(engines) if name.endswith(SUFFIX)]
    if floors and not before:
        raise click.UsageError(f"--fail-if compares with a package: add --against OLD{SUFFIX}")
    data = given_data(inputs, package)
    judged: list[tuple[str, str, Slower | SlowerKernels]] = []
    counted = _counted([str(package), *before], model, data, dims) if counts else {}
    if counts and not (peak or floors or set(engines) - set(before)) and (why := _untimed([str(package), *before])):
        return _show_counts(counted, why, threads, as_json)
    comparisons = {f"{what} than {other}": (other, what) for other in before for what in floors}
    with bar() as view:
        shares = {"timing": 1.0 + len(set(engines)), **dict.fromkeys(comparisons, 3.0)}  # of engines, each some seconds
        follow = Staged(view, shares, lines=False).follow
        report = bench_package(package, engines, model, threads, seconds, follow, peak, data, dims)
        for stage, (other, what) in comparisons.items():
            judging = slower if what == "slower" else slower_kernels
            pair = Pair.of(package, other, data, dims)
            verdict = judging(pair, floors[what], threads, seconds, partial(follow, stage))
            judged.append((other, what, verdict))
    if counts:
        report["instructions"] = counted
    failed = any(verdict.slower for _, _, verdict in judged)
    if judged:
        report["fail_if"] = {other: {} for other in before}
        for other, what, verdict in judged:
            report["fail_if"][other][what] = verdict.to_json()
    for note in report["notes"]:
        complain(f"modelc: {note}")
    if as_json:
        print_json("bench", report)
        return int(failed)
    rows = []
    for name, e in report["engines"].items():
        ratio = report["ratio"].get(name)
        times = (f"{e[key]:.3f}" for key in ("median_ms", "p10_ms", "p90_ms"))
        rows.append((e["about"], *times, str(e["runs"]), "" if ratio is None else f"{ratio:.2f}"))
    show(("engine", "median ms", "p10", "p90", "runs", "time / modelc's"), rows)
    if report["sizes"]:
        say(at_sizes(report["sizes"], package, data is None and dims is None))
    say(f"{threads} thread(s); {Noise.of(report['noise']).sentence()}")
    _say_counts(counted)
    if peak:
        peaks = ", ".join(f"{dtype} {gflops:.0f}" for dtype, gflops in report["peak_gflops"].items())
        say(f"{report['peak_share']:.0%} of the peak: {peaks} GFLOP/s in this run")
    for other, _, verdict in judged:
        is_whole = isinstance(verdict, Slower)
        said = f"{package} is {verdict.sentence()}" if is_whole else f"{package}: {verdict.sentence()}"
        say(f"{'FAILED' if verdict.slower else 'passed'}: {said}, beside {other}")
    return int(failed)


def at_sizes(sizes: Mapping[str, int], package: Path, by_default: bool) -> str:
    """At what sizes a package was timed, and where nobody chose them why at these."""
    from modelc.package import read_package, sizes_sentence, why_usual

    why = why_usual(read_package(package).manifest.variants[0].free) if by_default else ""
    return f"at {sizes_sentence(sizes)}" + f", {why}: --dim or --inputs say others" * bool(why)


def _counted(
    packages: Sequence[str],
    model: Path | None,
    data: Mapping[str, NDArray[Any]] | None,
    dims: Mapping[str, int] | None,
) -> dict[str, int]:
    """The instructions of a run of each package."""
    from modelc.package import at_given, read_package
    from modelc.verify.check import given_or_drawn
    from modelc.verify.counts import instructions

    feed = given_or_drawn(at_given(read_package(packages[0]), data, dims), model, data)
    return {name: instructions(name, feed) for name in packages}


def _untimed(packages: Sequence[str]) -> str:
    """Why these packages are not timed on this machine; nothing where they can be."""
    from modelc.verify.bench import native_package

    try:
        for name in packages:
            native_package(name)
    except TargetError as error:
        return str(error)
    return ""


def _show_counts(counted: Mapping[str, int], why: str, threads: int, as_json: bool) -> int:
    complain(f"modelc: {why}")
    if as_json:
        untimed: dict[str, Any] = {"threads": threads, "inputs": {}, "notes": [why], "engines": {}, "ratio": {}}
        print_json("bench", {**untimed, "instructions": counted})
    else:
        _say_counts(counted)
    return 0


def _say_counts(counted: Mapping[str, int]) -> None:
    for name, count in counted.items():
        say(f"{count:,} instructions in a run of {name}")


def _failing(text: str) -> tuple[str, float]:
    """What slower:3% and kernel-slower:10% say."""
    match = _FAILING.fullmatch(text)
    if match is None:
        expected = "expected slower:3%, kernel-slower:10%, or another share"
        raise click.BadParameter(f"{text[:80]!r}: {expected}", param_hint="--fail-if")
    return match[1], float(match[2]) / 100
