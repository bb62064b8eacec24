"""What tuning ends with: the tuned package beside the untuned one and ONNX Runtime, timed as wholes by turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from modelc.compile.pipeline import Run
from modelc.ir.sizes import Sizes
from modelc.package import read_package, write_package
from modelc.package.read import at_sizes
from modelc.package.spec import PackageSpec
from modelc.scratch import TemporaryFolder
from modelc.verify.bench import alternating, beside, geometric_mean, median
from modelc.verify.check import drawn, for_the_model
from modelc.verify.engine import Engine, EngineError


@dataclass(frozen=True)
class Effort:
    """How long each engine is timed, in how many slices by turns, and how many of these in the same processes."""

    seconds: float
    slices: int
    fresh: int


THOROUGH = Effort(4.0, 60, 5)  # processes of one package differ by more than tuning may gain
BRIEF = Effort(0.6, 10, 5)  # where the ratio is only shown while the model is tuned


@dataclass(frozen=True)
class Times:
    """Milliseconds of one run each, by turns: the untuned package's median, and that times the ratio of each other
    engine to it; 0 of what was not timed. `loops_ms` are those of what was found for the layouts that there are without
    tuning, where the tuned package has others. `note` says why ONNX Runtime was not timed."""

    untuned_ms: float = 0.0
    tuned_ms: float = 0.0
    ort_ms: float = 0.0
    loops_ms: float = 0.0
    note: str = ""

    def sentence(self, threads: int) -> str:
        """For people; nothing where nothing was timed."""
        named = {"tuned": self.tuned_ms, "tuned in the untuned one's layouts": self.loops_ms}
        named |= {"untuned": self.untuned_ms, "ONNX Runtime": self.ort_ms}
        timed = [f"{ms:.3f} ms {name}" for name, ms in named.items() if ms]
        ours = self.tuned_ms or self.untuned_ms
        ratios = [f"{ms / ours:.3f} times as fast as {name}" for name, ms in named.items() if ms and ms != ours]
        if not timed:
            return ""
        return f"{', '.join(timed)}, by turns on {threads} thread(s){': ' * bool(ratios)}{', '.join(ratios)}"


def compared(
    run: Run, specs: Mapping[str, PackageSpec], threads: int, brief: bool = False, runs: Sequence[Sizes] = ()
) -> Times:
    """Times packages of a model (untuned, and tuned and loops where there are such) and ONNX Runtime on one input of
    the first variant; packages of any size on one of each of `runs`, of which the times are geometric means."""
    with TemporaryFolder("tuned") as folder, ExitStack() as stack:
        engines: dict[str, Engine] = {}
        for name, spec in specs.items():
            path = Path(folder) / f"{name}.modelc"
            package = write_package(spec, path)
            engines[name] = stack.enter_context(Engine("modelc", path, threads))
            if len(engines) == 1:
                read = read_package(package.path)
        fixed = [at_sizes(read, [sizes]) for sizes in runs] or [read]
        feeds = [next(drawn(one, run.model, run.config.verify.seed)) for one in fixed]
        note = ""
        try:
            engines["ort"] = stack.enter_context(Engine("ort", run.model, threads))
            engines["ort"].run(for_the_model(fixed[0], feeds[0]))
        except EngineError as error:
            engines.pop("ort", None)
            note = f"nothing was timed beside ONNX Runtime: {error}"
        say, effort = partial(run.stages.progress, "compare"), BRIEF if brief else THOROUGH
        each = []
        for one, feed in zip(fixed, feeds, strict=True):
            for name, engine in engines.items():
                engine.run(for_the_model(one, feed) if name == "ort" else feed)
            times = alternating(engines, effort.seconds / len(feeds), say, effort.slices, effort.fresh)
            untuned = median(times["untuned"])
            each.append({name: untuned * beside(ms, times["untuned"]) for name, ms in times.items()})
    return Times(**{f"{name}_ms": geometric_mean([ms[name] for ms in each]) for name in each[0]}, note=note)
