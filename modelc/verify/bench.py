"""Speed side by side: each engine in a process of its own, in alternating slices of one run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from difflib import get_close_matches
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from modelc.errors import InputError, ModelcError, TargetError
from modelc.frontend.load.given import ModelSource, model_file
from modelc.package import Package, at_dims, at_given, at_inputs, lacking, machine_of, read_package, said_sizes
from modelc.package.spec import Plan
from modelc.package.toolchain import native_machine
from modelc.target import Peak, Unit, best_unit, probe
from modelc.verb import Progress
from modelc.verify.check import Arrays, for_the_model, given_or_drawn, other_model, variant_of
from modelc.verify.engine import NAMES, Engine
from modelc.verify.noise import FixedLoop, noise_of
from modelc.verify.saturation import saturation

SATURATING = {"ort", "ort-daz"}  # engines whose products of bytes saturate on some CPUs
LOOP = "a fixed loop"  # among what is timed by turns
SUFFIX = ".modelc"  # of what is a package among engines
BRIEF = 10  # slices of a short look, all in the same processes
SLICES, FRESH = 40, 8  # in all, and in the same processes: a neighbour may be busy for a second
LEAST_SECONDS, MOST_SECONDS = 0.01, 86400.0
WARM_UP = 0.2  # of the seconds of an engine, before anything counts

Slices = list[list[float]]  # milliseconds of every run of an engine, by slice


class Timed(Protocol):
    """What can be timed by turns with others: an Engine, a Peak, a FixedLoop."""

    def time(self, seconds: float) -> list[float]: ...


def bench(
    package: str | Path,
    against: str | Path | Sequence[str | Path] = (),
    model: ModelSource | None = None,
    threads: int = 1,
    seconds: float = 3.0,
    progress: Progress | None = None,
    peak: bool = False,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Times a package beside other engines, in alternating slices of one run, each in a process of its own.

    Args:
        package: A package for this machine.
        against: What it is timed beside, one or several: ort, ort-daz (with denormals as zero), ort-exact (with
            exact products of bytes, which saturate on CPUs without VNNI), ort-plain (without optimisations), openvino
            (in float32), openvino-bf16, or other packages, PKG.modelc.
        model: The model that the engines run, as of modelc.compile.
        threads: Of each engine.
        seconds: About how long each is timed.
        progress: Is told what is timed, `progress(stage, text)`; an exception from it ends the call.
        peak: Whether it is also timed what this machine's units reach by themselves.
        inputs: Arrays by name, in the variant that takes them. Default: drawn, in the first variant.
        dims: Sizes of the drawn inputs by the names of free dimensions, `{"seq": 20}`. Default: the first size behind
            @ (compile --dim seq=1..512@16), or a quarter of the most.

    Returns:
        A dictionary. `sizes`: the free dimensions in these runs. `engines`: milliseconds of each (median_ms, p10_ms,
        p90_ms), and the number of runs. `ratio`: each engine's time over the package's, the median of neighbouring
        slices; above 1 the package is faster. `noise`: the spread and the drift of a fixed loop by turns with them.
        With `peak` also `peak_gflops` by dtype, and `peak_share`: the package's share of that peak.

    Raises:
        InputError: There is no such engine, the model is missing, or inputs do not fit.
        PackageError: The package is damaged.
        TargetError: The package is for another machine.

    Example:
        >>> timed = modelc.bench("net.modelc", against="ort", model="net.onnx", seconds=0.2)
        >>> sorted(timed["engines"]), timed["ratio"]["ort"] > 0
        (['modelc', 'ort'], True)
    """
    say = partial(progress or (lambda stage, text: None), "timing")
    several = (against,) if isinstance(against, str | Path) else against
    names = dict.fromkeys(map(str, several))
    packages = [name for name in names if name.endswith(SUFFIX)]
    others = [name for name in names if name not in packages]
    if unknown := sorted(set(others) - set(NAMES[1:])):
        raise InputError(_no_engine(unknown[0]))
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        raise InputError(f"seconds is {seconds}; expected from {LEAST_SECONDS:g} to {MOST_SECONDS:g}")
    if others and model is None:
        raise InputError(f"to compare with {', '.join(others)} the ONNX model is needed: give --model MODEL.onnx")
    read = at_given(native_package(package), inputs, dims)
    with ExitStack() as stack:
        path = None if model is None else stack.enter_context(model_file(model))
        feed = given_or_drawn(read, path, inputs)
        number = variant_of(read, feed)
        for other in packages:
            same_boundary(read, number, at_inputs(native_package(other), feed))
        engines: dict[str, Engine] = {}
        made: dict[str, Arrays] = {}
        for name in ("modelc", *packages, *others):
            say(f"opening {name}")
            run = package if name == "modelc" else name if name in packages else path
            assert run is not None
            engines[name] = stack.enter_context(Engine("modelc" if name in packages else name, run, threads))
            made[name] = engines[name].run(for_the_model(read, feed) if name in others else feed)
        plan = read.manifest.variants[number]
        peaks = {dtype: stack.enter_context(Peak(unit, threads)) for dtype, unit in _units(plan).items() if peak}
        times = alternating({**engines, **peaks, LOOP: FixedLoop()}, seconds, say, SLICES, FRESH)
        abouts = {name: name if name in packages else engine.about for name, engine in engines.items()}
        notes = [] if path is None else list(other_model(read, path))
        if path is not None and SATURATING & {*others}:
            notes += filter(None, [saturation(path, for_the_model(read, feed), plan, made["modelc"])])
    noise = noise_of(times.pop(LOOP))
    ours = median(times["modelc"])
    gflops = {dtype: peak_timer.gflops(median(times.pop(dtype))) for dtype, peak_timer in peaks.items()}
    shares = {"peak_gflops": gflops, "peak_share": _least_ms(plan, gflops) / ours} if peak else {}
    return {
        "threads": threads,
        "inputs": {name: list(array.shape) for name, array in feed.items()},
        "sizes": said_sizes(read),
        "notes": notes,
        "engines": {name: {"about": abouts[name], **_percentiles(slices)} for name, slices in times.items()},
        "ratio": {name: beside(times[name], times["modelc"]) for name in times if name != "modelc"},
        "noise": noise.to_json(),
        **shares,
    }


def _no_engine(name: str) -> str:
    """That there is no engine of this name, and which one was meant."""
    if name.endswith(".onnx"):
        hint = f" The model that engines run is given by --model {name}."
    else:
        close = get_close_matches(re.sub("onnx[ _-]?runtime|onnx", "ort", name.lower()), NAMES[1:], 1)
        hint = f" Did you mean {close[0]}?" if close else ""
    return f"cannot compare with {name!r}; known are {', '.join(NAMES[1:])}, and packages: PKG{SUFFIX}.{hint}"


def native_package(path: str | Path) -> Package:
    """The package at `path`. Raises TargetError where this machine cannot run it."""
    read = read_package(path)
    if machine_of(read.manifest.target.triple) != native_machine():
        raise TargetError(f"{path} was built for {read.manifest.target.triple}: it cannot be timed on this machine")
    return read


def same_boundary(package: Package, number: int, other: Package) -> None:
    """Raises InputError where no variant of the other package takes what this one's variant takes."""
    if package.manifest.variants[number].inputs not in [plan.inputs for plan in other.manifest.variants]:
        raise InputError(f"{_taken(package, number)}, and {_taken(other, 0)}: they cannot be compared")


def _taken(package: Package, number: int) -> str:
    inputs = (f"{t.name} {t.dtype}{list(t.shape)}" for t in package.manifest.variants[number].inputs)
    return f"{package.path} takes {', '.join(inputs)}"


def _units(plan: Plan) -> dict[str, Unit]:
    """The fastest unit of this machine for each dtype that the kernels compute in."""
    machine = probe()
    return {dtype: best_unit(machine, dtype) for dtype in sorted({step.dtype for step in plan.steps if step.flops})}


def _least_ms(plan: Plan, gflops: Mapping[str, float]) -> float:
    """Milliseconds of the kernels' arithmetic at the peak of the dtype that each computes in."""
    steps = zip(plan.steps, plan.calls, strict=True)
    return sum(1e-6 * calls * step.flops / gflops[step.dtype] for step, calls in steps if step.flops)


def alternating(
    engines: Mapping[str, Timed], seconds: float, say: Callable[[str], None], slices: int = SLICES, fresh: int = FRESH
) -> dict[str, Slices]:
    """Times each engine for about `seconds`, on the inputs of its last run; see turns(). Whoever comes first in one
    slice comes last in the next."""
    times: dict[str, Slices] = {name: [] for name in engines}
    order = list(engines.items())
    for _ in turns(list(engines.values()), seconds / slices, slices, say, fresh):
        for name, engine in order:
            times[name].append(engine.time(seconds / slices))
        order.reverse()
    return times


def median(times: Slices) -> float:
    """Milliseconds of a run."""
    return float(np.median(np.concatenate(times)))


def beside(times: Slices, other: Slices) -> float:
    """How many times as long as with the `other` engine a run takes: the median of the ratios of slices that were
    taken one after the other, which a machine that becomes slower or faster changes little."""
    return float(np.median([np.median(mine) / np.median(theirs) for mine, theirs in zip(times, other, strict=True)]))


def geometric_mean(numbers: Sequence[float]) -> float:
    """Of times, 0 where one of them is."""
    return prod(numbers) ** (1 / len(numbers))


def turns(
    engines: Sequence[Timed], seconds: float, slices: int, say: Callable[[str], None], fresh: int = FRESH
) -> Iterator[int]:
    """Slices of about `seconds` of each engine, so that what else the machine does falls on all alike; every `fresh` of
    them in new processes, which are warmed up first."""
    for number in range(slices):
        if number % fresh == 0:
            say(f"slice {number + 1} of {slices}, warming up")
            for engine in engines:
                if number and isinstance(engine, Engine):
                    engine.restart()
                engine.time(seconds * WARM_UP * fresh)
        say(f"slice {number + 1} of {slices}")
        yield number


def _percentiles(times: Slices) -> dict[str, Any]:
    runs = np.concatenate(times)
    p10, p90 = (float(x) for x in np.percentile(runs, (10, 90)))
    return {"median_ms": median(times), "p10_ms": p10, "p90_ms": p90, "runs": len(runs)}


def beside_ort(package: str | Path, model: str | Path, seconds: float = 0.4) -> dict[str, Any] | None:
    """A short look: milliseconds of a package and of ONNX Runtime by turns, for about `seconds` together, on one
    thread, and how many times as fast the package is, at the usual `sizes` of one for any; None where one of them
    cannot run here."""
    try:
        read = at_dims(native_package(package))
        if lacking(read.manifest.target.features):
            return None
        feed = given_or_drawn(read, model, None)
        with Engine("modelc", package) as ours, Engine("ort", model) as theirs:
            ours.run(feed)
            theirs.run(for_the_model(read, feed))
            times = alternating({"modelc": ours, "ort": theirs}, seconds / 2, lambda text: None, BRIEF, BRIEF)
    except ModelcError:
        return None
    ratio = beside(times["ort"], times["modelc"])
    timed: dict[str, Any] = {"modelc_ms": median(times["modelc"]), "ort_ms": median(times["ort"]), "ratio": ratio}
    return timed | ({"sizes": sizes} if (sizes := said_sizes(read)) else {})
