"""How each layer is computed: in bytes, by symmetric weights or asymmetric ones, in float16 or in float32."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from modelc.compile.choices import digest_of
from modelc.compile.inputs import applied
from modelc.compile.opening import at_usual_sizes
from modelc.compile.pipeline import Run, default_threads
from modelc.compile.request import CompileRequest
from modelc.errors import ConfigError
from modelc.frontend.quantize.equalise import applied as equalised
from modelc.frontend.quantize.equalise import largest_weights, smoothable
from modelc.frontend.quantize.floats import float_model
from modelc.frontend.quantize.layers import Layer, class_scores, layers_of
from modelc.frontend.quantize.recipe import ASYMMETRIC, FLOAT16, FLOAT32, INT8, SYMMETRIC, Floats, LayerChoice, Recipe
from modelc.frontend.quantize.switched import Switched
from modelc.frontend.quantize.write import correctable, write_quantized, write_rounded
from modelc.frontend.witness.surgery import save
from modelc.partition.narrow_products import HALF, multiplies
from modelc.quantize.cut import Cut, Way, cut, ordered
from modelc.quantize.measure import Drop, measure_of, real_outputs, relative_error, unseen
from modelc.quantize.price import Priced, priced, priced_more, require_bytes
from modelc.quantize.samples import Arrays, read_samples
from modelc.quantize.trials import ENGINE, Alone, Trials, divisors_of, runs, spread
from modelc.target import Target
from modelc.verify.engine import Engine

STAGE = "calibrate"
MAX_DROP = 0.01  # by which outputs may be worse, as a share, where a request does not say
WORTH = 0.7  # of the squared error of the layers that read a value, for which its channels are scaled
WATCHED = 4  # samples on which the error that each layer adds to the network is measured
MOST_JUDGED = 64  # samples that are held back and looked at; more where the drop that is allowed is a smaller share
MOST_COUNTED = 1024  # of these
GIVEN_BACK = "given back for its error"
NO_FASTER = {FLOAT16: "no faster in bytes by estimate", FLOAT32: "no faster by estimate"}  # by what a layer is instead
WEIGHTS = {INT8: SYMMETRIC, ASYMMETRIC: ASYMMETRIC}  # of the ways that multiply bytes


class Network:
    """A model that computes any choice of layers in bytes and in float16, with corrections where it is `corrected`."""

    def __init__(self, switched: Switched, path: Path, threads: int, stack: ExitStack) -> None:
        switched.write(path)
        self.switched, self.corrected = switched, True
        self.engine = stack.enter_context(Engine(ENGINE, path, threads, timed=False))

    def outputs(self, ways: Mapping[str, str], samples: Sequence[Arrays]) -> list[Arrays]:
        """What it gives for each sample where layers are computed in these `ways`, by name, others in float32."""
        on = self.switched.inputs(ways, self.corrected)
        return [self.engine.run({**sample, **on}) for sample in samples]

    def error(self, ways: Mapping[str, str], samples: Sequence[Arrays], wanted: Sequence[Arrays]) -> float:
        """The relative error of its outputs then."""
        return relative_error(self.outputs(ways, samples), wanted, real_outputs(wanted))


class Deciding:
    """The ways in which each layer can be computed (`ways`, by their name and the layer's), with their seconds and the
    errors that they add to the outputs of the network, and the choice among them."""

    def __init__(
        self,
        request: CompileRequest,
        target: Target,
        most: int,
        folder: Path,
        stack: ExitStack,
    ) -> None:
        """Weights go from -most to most."""
        self.request, self.model, self.folder, self.stack = request, request.path, folder, stack
        self.threads = request.threads or default_threads()
        self.max_drop = MAX_DROP if request.max_drop is None else request.max_drop
        config = replace(request, precision=None).settings().fixing(request.fixed)
        self.config = config.allowing(precision="f32")
        require_bytes(target, self.config.policy.tensorize)
        digest = digest_of(self.model)
        given = request.fixed.over(config.inputs)
        fixed_inputs, _ = at_usual_sizes(self.model, given, config, request.inputs, target)
        steering = applied(fixed_inputs, self.model, request.inputs)
        assert request.calibrate is not None
        fixed = steering.constants
        samples = read_samples(Path(request.calibrate), self.model, fixed)
        asked_for = (self.model, digest, target, self.config, steering.shapes)
        self.run = Run(*asked_for, constants=fixed, weighing=False, store=request.store)
        floats = float_model(self.model)
        self.plain = folder / "float.onnx"  # before anything is scaled
        save(floats.model, self.plain)
        layers = layers_of(floats)
        if not layers:
            raise ConfigError(
                f"the model {self.model} has no Conv, Gemm or MatMul in float32 whose weights are constants: nothing "
                "of it can multiply bytes"
            )
        self.trials = Trials(floats, layers, most, samples.calibrating, folder, self.threads, self.say)
        self.judging = spread(samples.judging, judged_for(self.max_drop))
        self.watched = spread(samples.calibrating, WATCHED)
        self.say(f"{len(self.judging)} samples that are held back, in float32")
        outputs = list(runs(self.plain, [*self.judging, *self.watched], self.threads))
        wanted, self.watched_outputs = outputs[: len(self.judging)], outputs[len(self.judging) :]
        self.measure = measure_of(request.metric, wanted, self.judging, class_scores(floats))
        self.smoothed, self.alone = self.smoothed_alone()
        names = [layer.name for layer in self.trials.layers]
        self.say("the price of float32")
        self.before = priced(self.run, self.plain, names)
        self.say("the price of bytes")
        self.after, half = priced(self.run, self.all_narrow(()), names), self.price_of_half(names)
        self.faster = [layer for layer in self.trials.layers if self.saved(self.after, layer.name) > 0]
        shorter = [x for x in self.trials.layers if x.name in half.halves and self.saved(half, x.name) > 0]
        self.halves = replace(self.trials, layers=shorter).halves(half.halves)
        self.network, self.corrections = self.corrected()
        self.ways = {
            FLOAT32: {name: Way(FLOAT32, seconds, 0.0) for name, seconds in self.before.layers.items()},
            INT8: self.watched_ways(INT8, self.after, [layer.name for layer in self.faster]),
            FLOAT16: self.watched_ways(FLOAT16, half, self.halves.deviations),
        }
        self.zeros = Alone()  # each layer by itself, with asymmetric weights

    def say(self, text: str) -> None:
        self.request.say(STAGE, text)

    def saved(self, price: Priced, layer: str) -> float:
        """The seconds that a layer takes less than in float32."""
        return self.before.layers[layer] - price.layers[layer]

    def recipe(self) -> Recipe:
        """The layers' ways, and the summary that says what they come to."""
        recipe, drop = self.decided((FLOAT32, INT8, FLOAT16))
        if recipe.halves and not self.is_shortened(recipe):
            recipe, drop = self.decided((FLOAT32, INT8))
        saved = sum(layer.saved_seconds for layer in recipe.layers if layer.dtype != FLOAT32)
        summary = {
            "drop": rounded(drop.share),
            "said": drop.said,
            "max_drop": self.max_drop,
            "measure": self.measure.what,
            "calibrated_on": len(self.trials.samples),
            "held_back": len(self.judging),
            "unseen": list(unseen(self.measure, self.max_drop)),
            "float32_seconds": rounded(self.before.whole),
            "int8_seconds": rounded(self.before.whole - saved),
        }
        return replace(recipe, summary=summary)

    def decided(self, among: Collection[str]) -> tuple[Recipe, Drop]:
        """Which of these ways each layer is computed in, beside that with asymmetric weights."""
        chosen = cut(self.in_order(among), self.holds, lambda: self.finer(among))
        while True:
            recipe = self.recipe_of(chosen)
            drop = self.stated(recipe)
            if self.fits(drop) or chosen.taken == len(chosen.order):
                return recipe, drop
            chosen = chosen.taking(chosen.taken + 1)

    def in_order(self, among: Collection[str]) -> Cut:
        """The steps between these ways."""
        names = (layer.name for layer in self.trials.layers)
        return ordered({name: [self.ways[way][name] for way in among if name in self.ways[way]] for name in names})

    def finer(self, among: Collection[str]) -> Cut:
        """The steps between these ways and asymmetric weights."""
        if ASYMMETRIC not in self.ways:
            self.ways[ASYMMETRIC] = self.asymmetric()
        return self.in_order((*among, ASYMMETRIC))

    def holds(self, tried: Cut) -> bool:
        """Whether the outputs are as good as they must be."""
        counts = Counter(tried.ways.values())
        said = f"{counts[INT8] + counts[ASYMMETRIC]} of {len(self.trials.layers)} layers in bytes"
        self.say(f"{said}, {counts[FLOAT16]} in float16, on {len(self.judging)} samples")
        return self.fits(self.measure.drop(self.network.outputs(tried.ways, self.judging)))

    def fits(self, drop: Drop) -> bool:
        return drop.share <= self.max_drop

    def recipe_of(self, chosen: Cut) -> Recipe:
        """The Recipe of a choice."""
        narrow = {name: way for name, way in chosen.ways.items() if way in WEIGHTS}
        read = {layer.rounded for layer in self.trials.layers if layer.name in narrow}
        return Recipe(
            tuple(self.row(layer, chosen) for layer in self.trials.layers),
            {value: stored for value, stored in self.alone.ranges.items() if value in read},
            {name: self.by_itself(narrow[name]).means[name] for name in self.corrections if name in narrow},
            self.smoothed if narrow else {},
            self.trials.most,
        )

    def by_itself(self, way: str) -> Alone:
        """Each layer by itself, with such weights."""
        return self.zeros if way == ASYMMETRIC else self.alone

    def row(self, layer: Layer, chosen: Cut) -> LayerChoice:
        """What a layer multiplies. Of one in float32 the figures are those of bytes."""
        name, way = layer.name, chosen.ways[layer.name]
        told = INT8 if way == FLOAT32 else way
        errors = self.halves.errors if told == FLOAT16 else self.by_itself(told).errors
        form = self.ways[told].get(name, Way(told, self.after.layers[name], 0.0))
        why = [GIVEN_BACK if name in chosen.moved else NO_FASTER[way]] if way in NO_FASTER else []
        why += [self.halves.refused[name]] if way == FLOAT32 and name in self.halves.refused else []
        return LayerChoice(
            name,
            INT8 if way == ASYMMETRIC else way,
            rounded(errors[name]),
            rounded(form.error),
            rounded(self.before.layers[name] - form.seconds),
            "; ".join(why),
            WEIGHTS.get(way, ""),
        )

    # --- what the ways are --------------------------------------------------------------------------------------------

    def smoothed_alone(self) -> tuple[Mapping[str, Floats], Alone]:
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
        equalised(floats, divisors)
        self.trials = replace(self.trials, floats=floats, layers=layers_of(floats))
        return self.trials.alone(self.trials.ranges({})[0])

    @property
    def in_half(self) -> Run:
        """A compilation of what can be in float16."""
        return replace(self.run, config=self.config.allowing(precision="f16"))

    def price_of_half(self, names: Collection[str]) -> Priced:
        """The estimates of the float model with all in float16 that can be: nothing where the target does not compute
        so, or auto asks, which takes no float16."""
        if self.request.precision != INT8 or not self.config.policy.tensorize or not multiplies(self.run.target, HALF):
            return Priced()
        self.say("the price of float16")
        return priced(self.in_half, self.plain, names)

    def all_narrow(self, asymmetric: Collection[str]) -> Path:
        """The model with all layers in bytes, some of them with asymmetric weights."""
        kinds = {x.name: ASYMMETRIC if x.name in asymmetric else SYMMETRIC for x in self.trials.layers}
        layers = tuple(LayerChoice(name, INT8, 0, 0, 0, weights=kind) for name, kind in kinds.items())
        path = self.folder / ("asymmetric.onnx" if asymmetric else "narrow.onnx")
        write_quantized(self.model, Recipe(layers, self.alone.ranges, {}, self.smoothed, self.trials.most), path)
        return path

    def watched_ways(self, way: str, price: Priced, names: Collection[str]) -> dict[str, Way]:
        """One way of these layers, with the error that each by itself adds to the outputs."""
        measured = dict[str, Way]()
        for k, name in enumerate(names):
            self.say(f"the network with one layer in {way}, {k + 1} of {len(names)}")
            error = self.network.error({name: way}, self.watched, self.watched_outputs)
            measured[name] = Way(way, price.layers[name], error)
        return measured

    def corrected(self) -> tuple[Network, Mapping[str, Floats]]:
        """The network with the means of what its layers are off added to them, or without, whichever is nearer where
        all that are faster so are in bytes; and these means, if they are added."""
        means = {x.name: self.alone.means[x.name] for x in self.faster if correctable(self.trials.floats, x)}
        self.say("the network with every layer in bytes")
        network = self.switched(means, {})
        ways, errors = {layer.name: INT8 for layer in self.faster}, dict[bool, float]()
        for corrected in (True, False):
            network.corrected = corrected
            errors[corrected] = network.error(ways, self.watched, self.watched_outputs)
        network.corrected = errors[True] < errors[False]
        return network, means if network.corrected else {}

    def switched(self, corrections: Mapping[str, Floats], asymmetric: Mapping[str, Floats | None]) -> Network:
        """The network with layers in any of the ways; those in `asymmetric` with such weights too, which have
        corrections of their own."""
        t, deviations = self.trials, self.halves.deviations
        switched = Switched(t.floats, t.layers, self.alone.ranges, t.most, corrections, asymmetric, deviations)
        return Network(switched, self.folder / "switched.onnx", self.threads, self.stack)

    def asymmetric(self) -> dict[str, Way]:
        """The layers that can have asymmetric weights, and are faster with them than in float32. What they add to the
        network's error is taken to fall as what they are off by themselves does."""
        symmetric = self.ways[INT8]
        self.say(f"asymmetric weights of {len(self.faster)} layers")
        worth, self.zeros = replace(self.trials, layers=self.faster).asymmetric(self.alone)
        if not worth:
            return {}
        self.say("the price of asymmetric weights")
        names = [layer.name for layer in worth]
        more = priced_more(self.run, self.all_narrow(()), self.all_narrow(names), names)
        ways = dict[str, Way]()
        for name in names:
            error = symmetric[name].error * self.zeros.errors[name] / self.alone.errors[name]
            ways[name] = Way(ASYMMETRIC, symmetric[name].seconds + more[name], error)
        ways = {name: way for name, way in ways.items() if way.seconds < self.before.layers[name]}
        if ways:
            corrected = self.network.corrected
            self.network.engine.close()
            means = {name: self.zeros.means[name] if name in self.corrections else None for name in ways}
            self.network = self.switched(self.corrections, means)
            self.network.corrected = corrected
        return ways

    # --- what a Recipe comes to ---------------------------------------------------------------------------------------

    def is_shortened(self, recipe: Recipe) -> bool:
        """Whether the layers of a Recipe that multiply float16 shorten the whole by that, with what there is to convert
        between them and others."""
        path = self.folder / "mixed.onnx"
        write_quantized(self.model, recipe, path)
        self.say("the price with float16 and without")
        wide, mixed = (priced(run, path, ()).whole for run in (self.run, replace(self.in_half, recipe=recipe)))
        return mixed < wide

    def stated(self, recipe: Recipe) -> Drop:
        """The drop of the quantized model itself, with what it has in float16 rounded so."""
        path = self.folder / "quantized.onnx"
        write_rounded(self.model, recipe, self.halves.deviations, path)
        self.say(f"the quantized model on {len(self.judging)} samples that are held back")
        return self.measure.drop(list(runs(path, self.judging, self.threads)))


def judged_for(max_drop: float) -> int:
    """The most samples that are looked at: so many that each is no larger a share than the drop that is allowed."""
    needed = 1 / max_drop if max_drop else 0.0
    return math.ceil(min(max(needed, MOST_JUDGED), MOST_COUNTED))


def rounded(number: float) -> float:
    """As many digits as say something."""
    return float(f"{number:.6g}")
