"""What a calibration works with: samples, the float model with its values scaled, and what the compiler estimates."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from modelc.compile.choices import digest_of
from modelc.compile.inputs import applied
from modelc.compile.pipeline import Run, default_threads
from modelc.compile.request import CompileRequest
from modelc.errors import ConfigError
from modelc.frontend.quantize.equalise import applied as equalised
from modelc.frontend.quantize.equalise import largest_weights, smoothable
from modelc.frontend.quantize.floats import FloatModel, float_model
from modelc.frontend.quantize.layers import layers_of
from modelc.frontend.quantize.recipe import ASYMMETRIC, INT8, SYMMETRIC, Floats, LayerChoice, Range, Recipe
from modelc.frontend.quantize.write import write_quantized
from modelc.frontend.witness.surgery import save
from modelc.partition.half_sums import HALF
from modelc.partition.narrow_products import multiplies
from modelc.quantize.price import Priced, priced, require_bytes
from modelc.quantize.samples import Samples, read_samples
from modelc.quantize.smoothing import divisors_of
from modelc.quantize.trials import Alone, possible_ranges, tried
from modelc.target import Target

MAX_DROP = 0.01
WORTH = 0.7  # of the squared error of the layers that read a value, for which its channels are scaled
STAGE = "calibrate"


class Calibrating:
    """One way through: weights go from -most to most."""

    def __init__(
        self,
        request: CompileRequest,
        target: Target,
        most: int,
        folder: Path,
        stack: ExitStack,
    ) -> None:
        self.target, self.most = target, most
        self.request, self.folder, self.stack = request, folder, stack
        self.max_drop = MAX_DROP if request.max_drop is None else request.max_drop
        self.model = request.path
        self.threads = request.threads or default_threads()
        config = request.fixed.kept(replace(request, precision=None).settings())
        self.config = config.allowing(precision="f32")
        require_bytes(self.target, self.config.policy.tensorize)
        digest = digest_of(self.model)
        self.steering = applied(request.fixed.over(config.inputs), self.model, request.inputs)
        assert request.calibrate is not None
        self.samples: Samples = read_samples(Path(request.calibrate), self.model, self.steering.constants)
        self.run = Run(
            self.model,
            digest,
            self.target,
            self.config,
            self.steering.shapes,
            constants=self.steering.constants,
            weighing=False,
        )
        self.floats: FloatModel = float_model(self.model)
        self.plain = folder / "float.onnx"  # before anything is scaled
        save(self.floats.model, self.plain)
        self.layers = layers_of(self.floats)
        if not self.layers:
            raise ConfigError(
                f"the model {self.model} has no Conv, Gemm or MatMul in float32 whose weights are constants: nothing "
                "of it can multiply bytes"
            )

    def say(self, text: str) -> None:
        self.request.say(STAGE, text)

    def smoothed(self) -> tuple[Mapping[str, Floats], Alone]:
        """What the channels of values are divided by, where the layers that read these are nearer then; and each layer
        by itself, with that."""
        places = smoothable(self.floats)
        ranges, largest = self.seen({place.value: place.rank for place in places})
        plain = self.alone(ranges)
        if not places:
            return {}, plain
        self.say(f"{len(places)} values with their channels scaled")
        divisors = {
            place.value: divisors_of(largest[place.value], largest_weights(self.floats, place)) for place in places
        }
        floats, layers = self.floats, self.layers
        scaled = self.scaled(divisors)
        better = {
            place.value: divisors[place.value]
            for place in places
            if sum(scaled.errors[layer.name] ** 2 for layer in place.layers)
            < WORTH * sum(plain.errors[layer.name] ** 2 for layer in place.layers)
        }
        if not better:
            self.floats, self.layers = floats, layers
            return {}, plain
        return better, scaled if len(better) == len(divisors) else self.scaled(better)

    def scaled(self, divisors: Mapping[str, Floats]) -> Alone:
        """Goes on with the model whose values have their channels divided; each layer of it by itself."""
        self.floats = float_model(self.model)
        equalised(self.floats, divisors)
        self.layers = layers_of(self.floats)
        ranges, _ = self.seen({})
        return self.alone(ranges)

    def seen(self, ranks: Mapping[str, int]) -> tuple[dict[str, tuple[Range, ...]], dict[str, Floats]]:
        """`possible_ranges` of the model's values."""
        samples, folder = self.samples.calibrating, self.folder
        return possible_ranges(self.floats, self.layers, ranks, samples, folder, self.threads, self.say)

    def alone(self, ranges: Mapping[str, tuple[Range, ...]]) -> Alone:
        """Each layer by itself, with the best of these ranges."""
        samples, folder = self.samples.calibrating, self.folder
        return tried(self.floats, self.layers, ranges, self.most, samples, folder, self.threads, self.say)

    def prices(self, alone: Alone, smoothed: Mapping[str, Floats]) -> tuple[Priced, Priced]:
        """The estimates of the float model, and of that with all layers in bytes."""
        names = [layer.name for layer in self.layers]
        self.say("the price of float32")
        before = priced(self.run, self.plain, names)
        self.say("the price of bytes")
        return before, priced(self.run, self.all_narrow(alone, smoothed, ()), names)

    def price_of_half(self) -> Priced:
        """The estimates of the float model with all in float16 that can be: nothing where the target does not compute
        so, or auto asks, which takes no float16."""
        if self.request.precision != INT8 or not self.config.policy.tensorize or not multiplies(self.target, HALF):
            return Priced(0.0, {}, {})
        self.say("the price of float16")
        return priced(self.in_half, self.plain, [layer.name for layer in self.layers])

    @property
    def in_half(self) -> Run:
        """A compilation of what can be in float16."""
        return replace(self.run, config=self.config.allowing(precision="f16"))

    def all_narrow(self, alone: Alone, smoothed: Mapping[str, Floats], asymmetric: Collection[str]) -> Path:
        """The model with all layers in bytes, some of them with asymmetric weights."""
        kinds = {layer.name: ASYMMETRIC if layer.name in asymmetric else SYMMETRIC for layer in self.layers}
        layers = tuple(LayerChoice(name, INT8, 0, 0, 0, weights=kind) for name, kind in kinds.items())
        path = self.folder / ("asymmetric.onnx" if asymmetric else "narrow.onnx")
        write_quantized(self.model, Recipe(layers, alone.ranges, {}, smoothed, self.most), path)
        return path
