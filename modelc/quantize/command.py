"""The command: a CompileRequest and a Calibration become a Recipe, and a package."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path

from modelc.compile.choices import digest_of
from modelc.compile.command import compile_request
from modelc.compile.pipeline import Run, default_threads
from modelc.compile.request import CompileRequest, named_target
from modelc.compile.result import CompileResult
from modelc.errors import ConfigError, blaming
from modelc.frontend.quantize.equalise import applied, largest_weights, smoothable
from modelc.frontend.quantize.floats import FloatModel, float_model
from modelc.frontend.quantize.halves import write_rounded
from modelc.frontend.quantize.layers import Layer, layers_of
from modelc.frontend.quantize.recipe import (
    ASYMMETRIC,
    FLOAT16,
    FLOAT32,
    INT8,
    SYMMETRIC,
    Floats,
    LayerChoice,
    Range,
    Recipe,
)
from modelc.frontend.quantize.scores import class_scores
from modelc.frontend.quantize.write import correctable, write_quantized
from modelc.frontend.witness.surgery import save
from modelc.partition.half_sums import HALF
from modelc.partition.narrow_products import multiplies
from modelc.passes.machine import multiplied
from modelc.quantize.asymmetric import nearer
from modelc.quantize.cut import Cut, Way, cut, ordered
from modelc.quantize.halves import Halves, halves_of
from modelc.quantize.measure import Drop, Measure, measure_of
from modelc.quantize.network import Network
from modelc.quantize.price import Priced, limits_of_weights, priced, priced_more, require_bytes
from modelc.quantize.samples import Arrays, Samples, read_samples
from modelc.quantize.smoothing import divisors_of
from modelc.quantize.trials import Alone, possible_ranges, runs, spread, tried
from modelc.scratch import TemporaryFolder
from modelc.target import Target, load_target

MAX_DROP = 0.01
WATCHED = 4  # samples on which the error that each layer adds to the network is measured
MOST_JUDGED = 64  # samples that are held back and looked at
WORTH = 0.7  # of the squared error of the layers that read a value, for which its channels are scaled
STAGE = "calibrate"
GIVEN_BACK = "given back for its error"
NO_FASTER = {FLOAT16: "no faster in bytes by estimate", FLOAT32: "no faster by estimate"}  # by what a layer is instead
WEIGHTS = {INT8: SYMMETRIC, ASYMMETRIC: ASYMMETRIC}  # of the ways that multiply bytes


@dataclass(frozen=True)
class Calibration:
    """Samples at a path (an .npz file or a folder), and by how much outputs may be worse: `max_drop`, as a share.
    `metric` (FILE.py:FUNCTION) is what that is measured by; without, classes and relative errors are."""

    samples: str | Path
    metric: str | None = None
    max_drop: float = MAX_DROP

    def __post_init__(self) -> None:
        if not (isfinite(self.max_drop) and 0 <= self.max_drop <= 1):
            raise ConfigError(f"the greatest drop is {self.max_drop}; expected a share from 0 to 1, such as 1% or 0.01")


def calibrated(request: CompileRequest, calibration: Calibration) -> Recipe:
    """What of the request's model multiplies bytes on its target, and how it is rounded. Raises ModelcError."""
    target = named_target(request.target) or load_target("native")
    recipes = list[Recipe]()
    for most in limits_of_weights(target):
        with blaming(f"model {request.model}"), TemporaryFolder("calibrate") as folder, ExitStack() as stack:
            recipes.append(_Calibrating(request, calibration, target, most, Path(folder), stack).recipe())
        if not any(layer.why.startswith(GIVEN_BACK) for layer in recipes[-1].layers):
            break
    return min(recipes, key=lambda recipe: float(recipe.summary["int8_seconds"]))


def compile_calibrated(request: CompileRequest, calibration: Calibration) -> CompileResult:
    """A package of the request's model as `calibrated` says. Raises ModelcError."""
    if request.weights is not None:
        raise ConfigError("--weights says what weights are stored as: give either --weights or --calibrate")
    if request.choices is not None:
        raise ConfigError("--choices says what multiplies bytes: give either choices or --calibrate")
    if request.precision not in (INT8, "auto"):
        raise ConfigError(f"--calibrate is for --precision int8 or auto, and this is {request.precision or 'f32'}")
    units = multiplied(named_target(request.target) or load_target("native"))
    if request.precision == "auto" and not any(unit.pays for unit in units):
        result = compile_request(request)
        return replace(
            result, notes=(*result.notes, "not calibrated: the target has no instruction that multiplies bytes")
        )
    return compile_request(replace(request, recipe=calibrated(request, calibration)))


class _Calibrating:
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
        self.target, self.most = target, most
        self.request, self.calibration, self.folder, self.stack = request, calibration, folder, stack
        self.model = Path(request.model)
        self.threads = request.threads or default_threads()
        config = request.flags.kept(replace(request, precision=None).settings())
        self.config = config.allowing(precision="f32")
        require_bytes(self.target, self.config.policy.tensorize)
        digest = digest_of(self.model)
        self.steering = request.flags.over(config.inputs).applied(self.model, request.inputs)
        self.samples: Samples = read_samples(Path(calibration.samples), self.model, self.steering.constants)
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
        self.layers = layers_of(self.floats)
        if not self.layers:
            raise ConfigError(
                f"the model {self.model} has no Conv, Gemm or MatMul in float32 whose weights are constants: nothing "
                "of it can multiply bytes"
            )

    def say(self, text: str) -> None:
        self.request.say(STAGE, text)

    def recipe(self) -> Recipe:
        plain = self.folder / "float.onnx"
        save(self.floats.model, plain)
        say, samples = self.say, self.samples.calibrating
        judging = spread(self.samples.judging, MOST_JUDGED)
        say(f"{len(judging)} samples that are held back, in float32")
        watched = spread(samples, WATCHED)
        outputs = list(runs(plain, [*judging, *watched], self.threads))
        wanted, right = outputs[: len(judging)], outputs[len(judging) :]
        measure = measure_of(self.calibration.metric, wanted, judging, class_scores(self.floats))
        smoothed, alone = self.smoothed(samples)
        layers = self.layers
        before, after = self.prices(plain, alone, smoothed)
        half = self.price_of_half(plain)
        faster = [layer for layer in layers if after.layers[layer.name] < before.layers[layer.name]]
        shorter = [layer for layer in layers if layer.name in half.halves]
        shorter = [layer for layer in shorter if half.layers[layer.name] < before.layers[layer.name]]
        halves = halves_of(self.floats, shorter, half.halves, samples, self.folder, self.threads, say)
        network, corrections = self.corrected(faster, alone, halves, watched, right)
        ways: dict[str, dict[str, Way]] = {
            FLOAT32: {name: Way(FLOAT32, seconds, 0.0) for name, seconds in before.layers.items()}
        }
        for way, price, names in (
            (INT8, after, [layer.name for layer in faster]),
            (FLOAT16, half, list(halves.deviations)),
        ):
            ways[way] = {}
            for k, name in enumerate(names):
                say(f"the network with one layer in {way}, {k + 1} of {len(names)}")
                ways[way][name] = Way(way, price.layers[name], network.error({name: way}, watched, right))
        other = Alone({}, {}, {})

        def listed(among: Collection[str]) -> dict[str, list[Way]]:
            """How each layer can be computed."""
            each = (layer.name for layer in layers)
            return {name: [ways[way][name] for way in among if name in ways[way]] for name in each}

        def holds(cut: Cut) -> bool:
            counts = Counter(cut.ways.values())
            said = f"{counts[INT8] + counts[ASYMMETRIC]} of {len(layers)} layers in bytes"
            say(f"{said}, {counts[FLOAT16]} in float16, on {len(judging)} samples")
            return measure.drop(network.outputs(cut.ways, judging)).share <= self.calibration.max_drop

        def row(layer: Layer, chosen: Cut) -> LayerChoice:
            name, way = layer.name, chosen.ways[layer.name]
            told = INT8 if way == FLOAT32 else way
            form = ways[told].get(name, Way(told, after.layers[name], 0.0))
            off = {INT8: alone.errors, ASYMMETRIC: other.errors, FLOAT16: halves.errors}[told][name]
            why = [GIVEN_BACK if name in chosen.moved else NO_FASTER[way]] if way in NO_FASTER else []
            why += [halves.refused[name]] if way == FLOAT32 and name in halves.refused else []
            return LayerChoice(
                name,
                INT8 if way == ASYMMETRIC else way,
                rounded(off),
                rounded(form.error),
                rounded(before.layers[name] - form.seconds),
                "; ".join(why),
                WEIGHTS.get(way, ""),
            )

        def decided(among: Collection[str]) -> tuple[Recipe, Drop]:
            """Which of these ways each layer is computed in."""

            def finer() -> Cut:
                nonlocal network, other
                if ASYMMETRIC not in ways:
                    other, ways[ASYMMETRIC] = self.asymmetric(faster, alone, ways, smoothed, samples)
                    if ways[ASYMMETRIC]:
                        means = {name: other.means[name] if name in corrections else None for name in ways[ASYMMETRIC]}
                        network.engine.close()
                        network = self.network(alone, corrections, means, halves, network.corrected)
                return ordered(listed((*among, ASYMMETRIC)))

            chosen = cut(ordered(listed(among)), holds, finer)
            while True:
                narrow = {name for name, way in chosen.ways.items() if way in WEIGHTS}
                read = {layer.rounded for layer in layers if layer.name in narrow}
                recipe = Recipe(
                    tuple(row(layer, chosen) for layer in layers),
                    {value: stored for value, stored in alone.ranges.items() if value in read},
                    {
                        name: (other if chosen.ways[name] == ASYMMETRIC else alone).means[name]
                        for name in corrections
                        if name in narrow
                    },
                    smoothed if narrow else {},
                    self.most,
                )
                drop = self.stated(recipe, halves, measure, judging)
                if drop.share <= self.calibration.max_drop or chosen.taken == len(chosen.order):
                    return recipe, drop
                chosen = chosen.taking(chosen.taken + 1)

        recipe, drop = decided((FLOAT32, INT8, FLOAT16))
        if recipe.halves and not self.shortened(recipe):
            recipe, drop = decided((FLOAT32, INT8))
        summary = {
            "drop": rounded(drop.share),
            "said": drop.said,
            "max_drop": self.calibration.max_drop,
            "measure": measure.what,
            "calibrated_on": len(samples),
            "held_back": len(judging),
            "float32_seconds": rounded(before.whole),
            "int8_seconds": rounded(
                before.whole - sum(row.saved_seconds for row in recipe.layers if row.dtype != FLOAT32)
            ),
        }
        return replace(recipe, summary=summary)

    def smoothed(self, samples: Sequence[Arrays]) -> tuple[Mapping[str, Floats], Alone]:
        """What the channels of values are divided by, where the layers that read these are nearer then; and each layer
        by itself, with that."""
        places = smoothable(self.floats)
        ranges, largest = self.seen(samples, {place.value: place.rank for place in places})
        plain = self.alone(ranges, samples)
        if not places:
            return {}, plain
        self.say(f"{len(places)} values with their channels scaled")
        divisors = {
            place.value: divisors_of(largest[place.value], largest_weights(self.floats, place)) for place in places
        }
        floats, layers = self.floats, self.layers
        scaled = self.scaled(divisors, samples)
        better = {
            place.value: divisors[place.value]
            for place in places
            if sum(scaled.errors[layer.name] ** 2 for layer in place.layers)
            < WORTH * sum(plain.errors[layer.name] ** 2 for layer in place.layers)
        }
        if not better:
            self.floats, self.layers = floats, layers
            return {}, plain
        return better, scaled if len(better) == len(divisors) else self.scaled(better, samples)

    def scaled(self, divisors: Mapping[str, Floats], samples: Sequence[Arrays]) -> Alone:
        """Goes on with the model whose values have their channels divided; each layer of it by itself."""
        self.floats = float_model(self.model)
        applied(self.floats, divisors)
        self.layers = layers_of(self.floats)
        ranges, _ = self.seen(samples, {})
        return self.alone(ranges, samples)

    def seen(
        self, samples: Sequence[Arrays], ranks: Mapping[str, int]
    ) -> tuple[dict[str, tuple[Range, ...]], dict[str, Floats]]:
        return possible_ranges(self.floats, self.layers, ranks, samples, self.folder, self.threads, self.say)

    def alone(self, ranges: Mapping[str, tuple[Range, ...]], samples: Sequence[Arrays]) -> Alone:
        return tried(self.floats, self.layers, ranges, self.most, samples, self.folder, self.threads, self.say)

    def prices(self, plain: Path, alone: Alone, smoothed: Mapping[str, Floats]) -> tuple[Priced, Priced]:
        """The estimates of the float model, and of that with all layers in bytes."""
        names = [layer.name for layer in self.layers]
        self.say("the price of float32")
        before = priced(self.run, plain, names)
        self.say("the price of bytes")
        return before, priced(self.run, self.all_narrow(alone, smoothed, ()), names)

    def price_of_half(self, plain: Path) -> Priced:
        """The estimates of the float model with all in float16 that can be: nothing where the target does not compute
        so, or auto asks, which takes no float16."""
        if self.request.precision != INT8 or not self.config.policy.tensorize or not multiplies(self.target, HALF):
            return Priced(0.0, {}, {})
        self.say("the price of float16")
        return priced(self.in_half, plain, [layer.name for layer in self.layers])

    @property
    def in_half(self) -> Run:
        """A compilation of what can be in float16."""
        return replace(self.run, config=self.config.allowing(precision="f16"))

    def shortened(self, recipe: Recipe) -> bool:
        """Whether the layers of a Recipe that multiply float16 shorten the whole by that, with what there is to convert
        between them and others."""
        path = self.folder / "mixed.onnx"
        write_quantized(self.model, recipe, path)
        self.say("the price with float16 and without")
        wide, mixed = (priced(run, path, ()).whole for run in (self.run, replace(self.in_half, recipe=recipe)))
        return mixed < wide

    def all_narrow(self, alone: Alone, smoothed: Mapping[str, Floats], asymmetric: Collection[str]) -> Path:
        """The model with all layers in bytes, some of them with asymmetric weights."""
        kinds = {layer.name: ASYMMETRIC if layer.name in asymmetric else SYMMETRIC for layer in self.layers}
        layers = tuple(LayerChoice(name, INT8, 0, 0, 0, weights=kind) for name, kind in kinds.items())
        path = self.folder / ("asymmetric.onnx" if asymmetric else "narrow.onnx")
        write_quantized(self.model, Recipe(layers, alone.ranges, {}, smoothed, self.most), path)
        return path

    def asymmetric(
        self,
        layers: Sequence[Layer],
        alone: Alone,
        ways: Mapping[str, Mapping[str, Way]],
        smoothed: Mapping[str, Floats],
        samples: Sequence[Arrays],
    ) -> tuple[Alone, dict[str, Way]]:
        """Those of the layers that can have asymmetric weights, and are faster with them than in float32. What they add
        to the network's error is taken to fall as what they are off by themselves does."""
        self.say(f"asymmetric weights of {len(layers)} layers")
        worth, other = nearer(self.floats, layers, alone, self.most, samples, self.folder, self.threads, self.say)
        if not worth:
            return other, {}
        self.say("the price of asymmetric weights")
        names = [layer.name for layer in worth]
        narrow, zeros = self.all_narrow(alone, smoothed, ()), self.all_narrow(alone, smoothed, names)
        more = priced_more(self.run, narrow, zeros, names)
        every = dict[str, Way]()
        for name in names:
            _, seconds, error = ways[INT8][name]
            every[name] = Way(ASYMMETRIC, seconds + more[name], error * other.errors[name] / alone.errors[name])
        return other, {name: way for name, way in every.items() if way.seconds < ways[FLOAT32][name].seconds}

    def corrected(
        self,
        layers: Sequence[Layer],
        alone: Alone,
        halves: Halves,
        samples: Sequence[Arrays],
        wanted: Sequence[Arrays],
    ) -> tuple[Network, Mapping[str, Floats]]:
        """The network with the means of what its layers are off added to them, or without, whichever is nearer where
        all of the layers are in bytes."""
        means = {layer.name: alone.means[layer.name] for layer in layers if correctable(self.floats, layer)}
        self.say("the network with every layer in bytes")
        network = self.network(alone, means, {}, halves, True)
        ways, errors = {layer.name: INT8 for layer in layers}, dict[bool, float]()
        for corrected in (True, False):
            network.corrected = corrected
            errors[corrected] = network.error(ways, samples, wanted)
        network.corrected = errors[True] < errors[False]
        return network, means if network.corrected else {}

    def network(
        self,
        alone: Alone,
        corrections: Mapping[str, Floats],
        asymmetric: Mapping[str, Floats | None],
        halves: Halves,
        corrected: bool,
    ) -> Network:
        path = self.folder / "switched.onnx"
        network = Network(
            self.floats,
            self.layers,
            alone.ranges,
            corrections,
            self.most,
            path,
            self.threads,
            self.stack,
            asymmetric,
            halves.deviations,
        )
        network.corrected = corrected
        return network

    def stated(self, recipe: Recipe, halves: Halves, measure: Measure, judging: Sequence[Arrays]) -> Drop:
        """The drop of the quantized model itself, with what it has in float16 rounded so."""
        path = self.folder / "quantized.onnx"
        write_rounded(self.model, recipe, halves.deviations, path)
        self.say(f"the quantized model on {len(judging)} samples that are held back")
        return measure.drop(list(runs(path, judging, self.threads)))


def rounded(number: float) -> float:
    """As many digits as say something."""
    return float(f"{number:.6g}")
