"""How each layer is computed: in bytes, by symmetric weights or asymmetric ones, in float16 or in float32."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from modelc.frontend.quantize.halves import write_rounded
from modelc.frontend.quantize.layers import Layer
from modelc.frontend.quantize.recipe import ASYMMETRIC, FLOAT16, FLOAT32, INT8, SYMMETRIC, Floats, LayerChoice, Recipe
from modelc.frontend.quantize.scores import class_scores
from modelc.frontend.quantize.write import correctable, write_quantized
from modelc.quantize.asymmetric import nearer
from modelc.quantize.calibration import Calibrating
from modelc.quantize.cut import Cut, Way, cut, ordered
from modelc.quantize.halves import halves_of
from modelc.quantize.measure import Drop, measure_of, unseen
from modelc.quantize.network import Network
from modelc.quantize.price import Priced, priced, priced_more
from modelc.quantize.trials import Alone, runs, spread

WATCHED = 4  # samples on which the error that each layer adds to the network is measured
MOST_JUDGED = 64  # samples that are held back and looked at; more where the drop that is allowed is a smaller share
MOST_COUNTED = 1024  # of these
GIVEN_BACK = "given back for its error"
NO_FASTER = {FLOAT16: "no faster in bytes by estimate", FLOAT32: "no faster by estimate"}  # by what a layer is instead
WEIGHTS = {INT8: SYMMETRIC, ASYMMETRIC: ASYMMETRIC}  # of the ways that multiply bytes


class Deciding:
    """The ways in which each layer can be computed (`ways`, by their name and the layer's), with their seconds and the
    errors that they add to the outputs of the network, and the choice among them."""

    def __init__(self, calibrating: Calibrating) -> None:
        c = self.calibrating = calibrating
        self.say, self.threads = c.say, c.threads
        self.judging = spread(c.samples.judging, judged_for(c.max_drop))
        self.watched = spread(c.samples.calibrating, WATCHED)
        self.say(f"{len(self.judging)} samples that are held back, in float32")
        outputs = list(runs(c.plain, [*self.judging, *self.watched], self.threads))
        wanted, self.watched_outputs = outputs[: len(self.judging)], outputs[len(self.judging) :]
        self.measure = measure_of(c.request.metric, wanted, self.judging, class_scores(c.floats))
        self.smoothed, self.alone = c.smoothed()
        self.floats, self.layers = c.floats, c.layers
        self.before, self.after = c.prices(self.alone, self.smoothed)
        half = c.price_of_half()
        self.faster = [layer for layer in self.layers if self.saved(self.after, layer.name) > 0]
        shorter = [x for x in self.layers if x.name in half.halves and self.saved(half, x.name) > 0]
        self.halves = halves_of(
            self.floats, shorter, half.halves, c.samples.calibrating, c.folder, self.threads, self.say
        )
        self.network, self.corrections = self.corrected()
        self.ways = {
            FLOAT32: {name: Way(FLOAT32, seconds, 0.0) for name, seconds in self.before.layers.items()},
            INT8: self.watched_ways(INT8, self.after, [layer.name for layer in self.faster]),
            FLOAT16: self.watched_ways(FLOAT16, half, self.halves.deviations),
        }
        self.zeros = Alone({}, {}, {})  # each layer by itself, with asymmetric weights

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
            "max_drop": self.calibrating.max_drop,
            "measure": self.measure.what,
            "calibrated_on": len(self.calibrating.samples.calibrating),
            "held_back": len(self.judging),
            "unseen": list(unseen(self.measure, self.calibrating.max_drop)),
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
        names = (layer.name for layer in self.layers)
        return ordered({name: [self.ways[way][name] for way in among if name in self.ways[way]] for name in names})

    def finer(self, among: Collection[str]) -> Cut:
        """The steps between these ways and asymmetric weights."""
        if ASYMMETRIC not in self.ways:
            self.ways[ASYMMETRIC] = self.asymmetric()
        return self.in_order((*among, ASYMMETRIC))

    def holds(self, tried: Cut) -> bool:
        """Whether the outputs are as good as they must be."""
        counts = Counter(tried.ways.values())
        said = f"{counts[INT8] + counts[ASYMMETRIC]} of {len(self.layers)} layers in bytes"
        self.say(f"{said}, {counts[FLOAT16]} in float16, on {len(self.judging)} samples")
        return self.fits(self.measure.drop(self.network.outputs(tried.ways, self.judging)))

    def fits(self, drop: Drop) -> bool:
        return drop.share <= self.calibrating.max_drop

    def recipe_of(self, chosen: Cut) -> Recipe:
        """The Recipe of a choice."""
        narrow = {name: way for name, way in chosen.ways.items() if way in WEIGHTS}
        read = {layer.rounded for layer in self.layers if layer.name in narrow}
        return Recipe(
            tuple(self.row(layer, chosen) for layer in self.layers),
            {value: stored for value, stored in self.alone.ranges.items() if value in read},
            {name: self.trials(narrow[name]).means[name] for name in self.corrections if name in narrow},
            self.smoothed if narrow else {},
            self.calibrating.most,
        )

    def trials(self, way: str) -> Alone:
        """Each layer by itself, with such weights."""
        return self.zeros if way == ASYMMETRIC else self.alone

    def row(self, layer: Layer, chosen: Cut) -> LayerChoice:
        """What a layer multiplies. Of one in float32 the figures are those of bytes."""
        name, way = layer.name, chosen.ways[layer.name]
        told = INT8 if way == FLOAT32 else way
        errors = self.halves.errors if told == FLOAT16 else self.trials(told).errors
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
        means = {x.name: self.alone.means[x.name] for x in self.faster if correctable(self.floats, x)}
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
        return Network(
            self.floats,
            self.layers,
            self.alone.ranges,
            corrections,
            self.calibrating.most,
            self.calibrating.folder / "switched.onnx",
            self.threads,
            self.calibrating.stack,
            asymmetric,
            self.halves.deviations,
        )

    def asymmetric(self) -> dict[str, Way]:
        """The layers that can have asymmetric weights, and are faster with them than in float32. What they add to the
        network's error is taken to fall as what they are off by themselves does."""
        c, symmetric = self.calibrating, self.ways[INT8]
        self.say(f"asymmetric weights of {len(self.faster)} layers")
        samples = c.samples.calibrating
        worth, self.zeros = nearer(self.floats, self.faster, self.alone, c.most, samples, c.folder, c.threads, c.say)
        if not worth:
            return {}
        self.say("the price of asymmetric weights")
        names = [layer.name for layer in worth]
        plain, zeros = (c.all_narrow(self.alone, self.smoothed, among) for among in ((), names))
        more = priced_more(c.run, plain, zeros, names)
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
        c = self.calibrating
        path = c.folder / "mixed.onnx"
        write_quantized(c.model, recipe, path)
        self.say("the price with float16 and without")
        wide, mixed = (priced(run, path, ()).whole for run in (c.run, replace(c.in_half, recipe=recipe)))
        return mixed < wide

    def stated(self, recipe: Recipe) -> Drop:
        """The drop of the quantized model itself, with what it has in float16 rounded so."""
        c = self.calibrating
        path = c.folder / "quantized.onnx"
        write_rounded(c.model, recipe, self.halves.deviations, path)
        self.say(f"the quantized model on {len(self.judging)} samples that are held back")
        return self.measure.drop(list(runs(path, self.judging, self.threads)))


def judged_for(max_drop: float) -> int:
    """The most samples that are looked at: so many that each is no larger a share than the drop that is allowed."""
    needed = 1 / max_drop if max_drop else 0.0
    return math.ceil(min(max(needed, MOST_JUDGED), MOST_COUNTED))


def rounded(number: float) -> float:
    """As many digits as say something."""
    return float(f"{number:.6g}")
