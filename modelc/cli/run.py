"""modelc run"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelc.cli.options import PATH, given_data, package_argument, sizes_option
from modelc.cli.output import json_option, print_json, say
from modelc.errors import InputError, OutputError, PackageError
from modelc.scratch import beside

if TYPE_CHECKING:
    from numpy.typing import NDArray


@click.command()
@package_argument("modelc run PKG.modelc --inputs F.npz --outputs G.npz")
@click.option("--inputs", metavar="F.npz", type=PATH, help="One array per input (default: drawn).")
@click.option("--input", "arrays", metavar="NAME=F.npy", multiple=True, help="An array for one input, in a file.")
@click.option("--outputs", metavar="G.npz|G.npy", type=PATH, help="Where to write.")
@click.option("--repeat", metavar="N", type=click.IntRange(1, 1_000_000), default=1, show_default=True)
@click.option("--threads", metavar="N", type=click.IntRange(1, 1024), help="Default: the processors that may be used.")
@sizes_option()
@click.option("--no-check", is_flag=True, help="Do not compare the files' checksums, which reads all parameters.")
@json_option
def run(
    package: Path,
    inputs: Path | None,
    arrays: tuple[str, ...],
    outputs: Path | None,
    repeat: int,
    threads: int | None,
    dims: Mapping[str, int] | None,
    no_check: bool,
    as_json: bool,
) -> None:
    """Runs a package on the arrays of an .npz file, or of .npy files, or on drawn ones, and says how long that took;
    under an emulator where it is for another machine, whose times mean nothing. Loading a package executes the library
    in it."""
    from modelc.compile.arrays import write_npz
    from modelc.package import at_inputs, read_package, said_sizes, sizes_sentence

    feed = _feed(package, inputs, arrays, dims)
    results, seconds = _timed(package, feed, repeat, threads, not no_check)
    if outputs is not None and outputs.suffix == ".npy":
        _write_npy(outputs, results)
    elif outputs is not None:
        write_npz(outputs, results)
    described = {name: {"dtype": a.dtype.name, "shape": list(a.shape)} for name, a in results.items()}
    ordered = sorted(seconds)
    times = {"runs": repeat, "median_ms": 1e3 * ordered[repeat // 2], "least_ms": 1e3 * ordered[0]}
    if as_json:
        print_json("run", {"outputs": described, "times": times})
        return
    for name, array in described.items():
        say(f"{name}: {array['dtype']}{array['shape']}")
    drawn = " on drawn inputs" * (inputs is None and not arrays)
    if drawn and (sizes := said_sizes(at_inputs(read_package(package), feed))):
        drawn += f" of {sizes_sentence(sizes)}"
    say(f"{times['median_ms']:.3f} ms{drawn}, the median of {repeat} run(s); the fastest {times['least_ms']:.3f} ms")


def _timed(
    path: Path, feed: dict[str, NDArray[Any]], repeat: int, threads: int | None, check: bool
) -> tuple[dict[str, NDArray[Any]], list[float]]:
    """The outputs of the last of so many runs, and the seconds of each."""
    from modelc import runtime
    from modelc.package import emulated, read_package, run_package

    seconds: list[float] = []
    results: dict[str, NDArray[Any]] = {}

    def timed(call: Callable[[], dict[str, NDArray[Any]]]) -> None:
        begun = time.perf_counter()
        results.update(call())
        seconds.append(time.perf_counter() - begun)

    if emulated(read_package(path)):
        if threads is not None:
            raise click.UsageError(f"{path} runs under an emulator, on one thread: leave out --threads")
        for _ in range(repeat):
            timed(lambda: run_package(path, feed, check=check))
        return results, seconds
    try:
        with runtime.load(path, check=check, threads=threads) as model, ThreadPoolExecutor(1) as runner:
            try:  # the main thread answers signals while another runs the model
                for _ in range(repeat):
                    runner.submit(timed, lambda: model.run(feed)).result()
            except BaseException:
                model.stop()
                raise
    except runtime.ModelError as error:
        raise PackageError(str(error)) from None
    return results, seconds


def _feed(
    package: Path, inputs: Path | None, arrays: tuple[str, ...], dims: Mapping[str, int] | None
) -> dict[str, NDArray[Any]]:
    """The arrays of the files; where none is named, drawn ones."""
    from modelc.compile.given import read_one_given
    from modelc.package import at_given, read_package
    from modelc.verify.check import given_or_drawn

    feed: dict[str, NDArray[Any]] = dict(given_data(inputs, package) or {})
    for text in arrays:
        name, equals, path = text.rpartition("=")
        if not equals or not name or name in feed:
            raise click.BadParameter(f"{text[:200]!r}: expected NAME=F.npy once for each input", param_hint="--input")
        feed[name] = read_one_given(Path(path), name, [package])
    read = at_given(read_package(package), feed or None, dims)
    return feed or dict(given_or_drawn(read, None, None))


def _write_npy(path: Path, results: dict[str, NDArray[Any]]) -> None:
    import numpy as np

    if len(results) != 1:
        raise InputError(f"the package has {len(results)} outputs, and a .npy file takes one: write to a .npz file")
    try:
        with beside(path, folder=False) as made:
            with made.open("wb") as file:
                np.save(file, next(iter(results.values())), allow_pickle=False)
            made.replace(path)
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror}") from None
