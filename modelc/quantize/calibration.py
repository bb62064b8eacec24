"""What a calibration works with: samples, the float model with its values scaled, and what the compiler estimates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from modelc.compile.choices import digest_of
from modelc.compile.pipeline import Run, default_threads
from modelc.compile.request import CompileRequest
from modelc.errors import ConfigError
from modelc.frontend.quantize.equalise import applied, largest_weights, smoothable
from modelc.frontend.quantize.floats import float_model
from modelc.frontend.quantize.layers import layers_of
from modelc.frontend.quantize.recipe import ASYMMETRIC, INT8, SYMMETRIC, Floats, LayerChoice, Recipe
from modelc.frontend.quantize.write import write_quantized
from modelc.frontend.witness.surgery import save
from modelc.partition.narrow_products import HALF, multiplies
from modelc.quantize.measure import EXPECTED, Metric
from modelc.quantize.price import Priced, priced, require_bytes
from modelc.quantize.samples import Samples, read_samples
from modelc.quantize.trials import Alone, Trials, divisors_of
from modelc.target import Target

MAX_DROP = 0.01
WORTH = 0.7  # of the squared error of the layers that read a value, for which its channels are scaled
STAGE = "calibrate"


@dataclass(frozen=True)
class Calibration:
    """Samples at a path (an .npz file or a folder), and by how much outputs may be worse: `max_drop`, as a share.
    `metric` (FILE.py:FUNCTION, or a function) is what that is measured by; without, classes and relative errors are."""

    samples: str | Path
    metric: str | Metric | None = None
    max_drop: float = MAX_DROP

    def __post_init__(self) -> None:
        if not (self.metric is None or isinstance(self.metric, str) or callable(self.metric)):
            raise ConfigError(f"the metric is {repr(self.metric)[:80]}; {EXPECTED}; or that function itself")
        if not (isfinite(self.max_drop) and 0 <= self.max_drop <= 1):
            raise ConfigError(f"the greatest drop is {self.max_drop}; expected a share from 0 to 1, such as 1% or 0.01")


class Calibrating:
    """One way through: weights go from -most to most."""

    def __init__(
        self,
        request: CompileRequest,
        calibration: Calibration,
        target: Target,
        most: int,
        folder: Path,
        stack: ExitStack,
    ) -> None:
        self.request, self.calibration, self.target = request, calibration, target
        self.model, self.folder, self.stack = request.path, folder, stack
        self.threads = request.threads or default_threads()
        config = request.flags.kept(replace(request, precision=None).settings())
        self.config = config.allowing(precision="f32")
        require_bytes(target, self.config.policy.tensorize)
        digest = digest_of(self.model)
        steering = request.flags.over(config.inputs).applied(self.model, request.inputs)
        constants = steering.constants
        self.samples: Samples = read_samples(Path(calibration.samples), self.model, constants)
        self.run = Run(self.model, digest, target, self.config, steering.shapes, constants=constants, weighing=False)
        floats = float_model(self.model)
        self.plain = folder / "float.onnx"  # before anything is scaled
        save(floats.model, self.plain)
        layers = layers_of(floats)
        if not layers:
            raise ConfigError(
                f"the model {self.model} has no Conv, Gemm or MatMul in float32 whose weights are constants: nothing "
                "of it can multiply bytes"
            )
        self.trials = Trials(floats, layers, most, self.samples.calibrating, folder, self.threads, self.say)

    def say(self, text: str) -> None:
        self.request.say(STAGE, text)

    def smoothed(self) -> tuple[Mapping[str, Floats], Alone]:
        """What the channels of values are divided by, where the layers that read these are nearer then; and each layer
        by itself, with that."""
        plain = self.trials
        places = smoothable(plain.floats)
        ranges, largest = plain.ranges({place.value: place.rank for place in places})
        alone = plain.alone(ranges)
        if not places:
            return {}, alone
        self.say(f"{len(places)} values with their channels scaled")
        divisors = {
            place.value: divisors_of(largest[place.value], largest_weights(plain.floats, place)) for place in places
        }
        scaled = self.scaled(divisors)
        better = {
            place.value: divisors[place.value]
            for place in places
            if sum(scaled.errors[layer.name] ** 2 for layer in place.layers)
            < WORTH * sum(alone.errors[layer.name] ** 2 for layer in place.layers)
        }
        if not better:
            self.trials = plain
            return {}, alone
        return better, scaled if len(better) == len(divisors) else self.scaled(better)

    def scaled(self, divisors: Mapping[str, Floats]) -> Alone:
        """Goes on with the model whose values have their channels divided; each layer of it by itself."""
        floats = float_model(self.model)
        applied(floats, divisors)
        self.trials = replace(self.trials, floats=floats, layers=layers_of(floats))
        return self.trials.alone(self.trials.ranges({})[0])

    @property
    def in_half(self) -> Run:
        """A compilation of what can be in float16."""
        return replace(self.run, config=self.config.allowing(precision="f16"))

    def price_of_half(self) -> Priced:
        """The estimates of the float model with all in float16 that can be: nothing where the target does not compute
        so, or auto asks, which takes no float16."""
        if self.request.precision != INT8 or not self.config.policy.tensorize or not multiplies(self.target, HALF):
            return Priced()
        self.say("the price of float16")
        return priced(self.in_half, self.plain, [layer.name for layer in self.trials.layers])

    def all_narrow(self, alone: Alone, smoothed: Mapping[str, Floats], asymmetric: Collection[str]) -> Path:
        """The model with all layers in bytes, some of them with asymmetric weights."""
        kinds = {x.name: ASYMMETRIC if x.name in asymmetric else SYMMETRIC for x in self.trials.layers}
        layers = tuple(LayerChoice(name, INT8, 0, 0, 0, weights=kind) for name, kind in kinds.items())
        path = self.folder / ("asymmetric.onnx" if asymmetric else "narrow.onnx")
        write_quantized(self.model, Recipe(layers, alone.ranges, {}, smoothed, self.trials.most), path)
        return path
