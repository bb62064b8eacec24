"""How each layer is computed: in bytes, by symmetric weights or asymmetric ones, their activations rounded by ranges of
samples or by row as they are computed, in float16 or in float32; and which tables have rows of bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from modelc.frontend.quantize.dynamic import products_of
from modelc.frontend.quantize.layers import Layer, weights_of
from modelc.frontend.quantize.products import LEAST
from modelc.frontend.quantize.recipe import (
    ASYMMETRIC,
    DYNAMIC,
    FLOAT16,
    FLOAT32,
    INT8,
    SYMMETRIC,
    TABLE,
    Floats,
    LayerChoice,
    Recipe,
)
from modelc.frontend.quantize.switched import Switched
from modelc.frontend.quantize.write import correctable, write_quantized, write_rounded
from modelc.quantize.cut import Cut, Way, cut, ordered
from modelc.quantize.drop import Drop, rounded
from modelc.quantize.measure import unseen
from modelc.quantize.network import Network
from modelc.quantize.price import PER_SIZE, priced, priced_more, priced_rows
from modelc.quantize.running import runs
from modelc.quantize.smoothing import smoothed
from modelc.quantize.subject import Subject
from modelc.quantize.tables import RoundedTable
from modelc.quantize.trials import Alone

GIVEN_BACK = "given back for its error"
NO_FASTER = {FLOAT16: "no faster in bytes by estimate", FLOAT32: "no faster by estimate"}  # by what a layer is instead
WAYS = (FLOAT32, INT8, DYNAMIC, FLOAT16, TABLE)
WEIGHTS = {INT8: SYMMETRIC, ASYMMETRIC: ASYMMETRIC, DYNAMIC: SYMMETRIC}  # of the ways that multiply bytes
RANGED = (INT8, ASYMMETRIC)  # of these, those whose activations are rounded by ranges
FINE = 0.02  # relative error of a layer by itself, most of which rounding its weights may be: ranges are not at fault
NEARER = 0.9  # of the squared error, with which rounding by row is worth that: most of the rest is the weights' own
FAR = 0.01  # of the squared error that all layers add, from which one is worth trying by row
CHEAP = 0.25  # of what ranges save, that rounding by row may take more where it is nearer


class Deciding:
    """The ways in which each layer of a `subject` can be computed (`ways`, by their name and the layer's), with their
    seconds and the errors that they add to the outputs of the network, and the choice among them."""

    def __init__(self, subject: Subject, most: int, stack: ExitStack) -> None:
        """Weights go from -most to most."""
        self.subject, self.stack, self.say = subject, stack, subject.say
        self.measure, self.before = subject.measure, subject.before
        plain = replace(subject.trials, most=most)
        smooth = smoothed(subject.model, plain, subject.statistics, subject.places)
        self.smoothed, self.trials, self.alone = smooth.divisors, smooth.trials, smooth.alone
        self.say("the price of bytes")
        self.after, half = priced(subject.run, self.all_narrow({}), subject.names), subject.half
        layers = {layer.name: layer for layer in self.trials.layers}
        self.faster = [layers[name] for name in subject.faster(self.after, subject.names)]
        shorter = [layers[name] for name in subject.faster(half, half.halves)]
        self.halves = replace(self.trials, layers=shorter).halves(half.halves)
        self.errors_by_row: dict[str, float] = {}
        by_row = self.by_row(self.far_by_ranges())
        cheap = self.cheap(by_row)
        prices = {FLOAT32: self.before, INT8: self.after, FLOAT16: half}
        ranged = [x.name for x in self.faster if x.name not in cheap]
        among = {FLOAT32: subject.names, INT8: ranged, FLOAT16: [*self.halves.deviations]}
        self.ways = {way: {name: Way(way, prices[way].layers[name], 0.0) for name in among[way]} for way in among}
        self.ways[DYNAMIC] = by_row
        self.tables = self.tables_in_bytes()
        self.network, self.corrections = self.corrected()
        self.measured = False  # the errors of the ways
        self.zeros = Alone()  # each layer by itself, with asymmetric weights

    def recipe(self) -> Recipe:
        """The layers' ways, and the summary that says what they come to."""
        recipe, drop = self.decided(WAYS)
        if recipe.halves and not self.is_shortened(recipe):
            recipe, drop = self.decided([way for way in WAYS if way != FLOAT16])
        saved = sum(layer.saved_seconds for layer in recipe.layers if layer.dtype != FLOAT32)
        summary = {
            "drop": rounded(drop.share),
            "said": drop.said,
            "max_drop": self.subject.max_drop,
            "measure": self.measure.what,
            "calibrated_on": len(self.trials.samples),
            "held_back": len(self.subject.judging),
            "unseen": list(unseen(self.measure, self.subject.max_drop)),
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
            if self.fits(drop):
                return recipe, drop
            chosen = chosen if self.measured else self.finer(among)
            if chosen.taken == len(chosen.order):
                return recipe, drop
            chosen = chosen.taking(chosen.taken + 1)

    def in_order(self, among: Collection[str]) -> Cut:
        """The steps between these ways; none before their errors are measured."""
        names = self.ways[FLOAT32]
        every = ordered({name: [self.ways[way][name] for way in among if name in self.ways[way]] for name in names})
        return every if self.measured else replace(every, order=())

    def finer(self, among: Collection[str]) -> Cut:
        """The steps between these ways and asymmetric weights, whose errors are measured where one is to be taken."""
        if not self.measured:
            self.measured = True
            self.ways |= {way: self.watched_ways(way) for way in (INT8, FLOAT16, TABLE)}
            tried = self.ways[DYNAMIC].keys()
            self.ways[DYNAMIC] = {**self.ways[DYNAMIC], **self.by_row(self.far_in_network())}
            self.ways[ASYMMETRIC] = self.asymmetric()
            if self.ways[ASYMMETRIC] or self.ways[DYNAMIC].keys() - tried:
                self.network = self.again()
            self.ways[DYNAMIC] = self.watched_ways(DYNAMIC)
        return self.in_order((*among, ASYMMETRIC))

    def holds(self, tried: Cut) -> bool:
        """Whether the outputs are as good as they must be."""
        ways = self.ways_of(tried)
        counts = Counter(ways.values())
        said = f"{sum(counts[way] for way in WEIGHTS)} of {len(self.trials.layers)} layers in bytes"
        self.say(f"{said}, {counts[FLOAT16]} in float16, on {len(self.subject.judging)} samples")
        return self.fits(self.measure.drop(self.network.outputs(ways, self.subject.judging)))

    def fits(self, drop: Drop) -> bool:
        return drop.share <= self.subject.max_drop

    def ways_of(self, chosen: Cut) -> dict[str, str]:
        """How each layer is computed, and what the rows of tables are: float32 where something else reads them so."""
        ways = chosen.ways
        return ways | {table.name: FLOAT32 for table in self.tables if self.refused(table, ways)}

    def refused(self, table: RoundedTable, ways: Mapping[str, str]) -> str:
        """Why a table stays in float32 where layers are computed in these ways; "" where it need not."""
        return self.subject.tables.refused(table, {x for x, way in ways.items() if way in WEIGHTS or way == TABLE})

    def recipe_of(self, chosen: Cut) -> Recipe:
        """The Recipe of a choice."""
        ways = self.ways_of(chosen)
        ranged = {name: way for name, way in ways.items() if way in RANGED}
        read = {layer.rounded for layer in self.trials.layers if layer.name in ranged}
        rows = [self.row(layer, chosen) for layer in self.trials.layers]
        rows += [self.looked_up(table, chosen, ways) for table in self.subject.tables.every]
        places = {node.name: k for k, node in enumerate(self.trials.floats.model.graph.node)}
        return Recipe(
            tuple(sorted(rows, key=lambda row: places[row.name])),
            {value: stored for value, stored in self.alone.ranges.items() if value in read},
            {name: self.by_itself(ranged[name]).means[name] for name in self.corrections if name in ranged},
            self.smoothed if not WEIGHTS.keys().isdisjoint(ways.values()) else {},
            self.trials.most,
        )

    def looked_up(self, table: RoundedTable, chosen: Cut, ways: Mapping[str, str]) -> LayerChoice:
        """What the rows of a table are."""
        given_back = GIVEN_BACK if table.name in chosen.moved else ""
        error = self.ways[TABLE][table.name].error if table.name in self.ways[TABLE] else 0.0
        return table.choice(given_back or self.refused(table, ways), error)

    def by_itself(self, way: str) -> Alone:
        """Each layer by itself, with such weights."""
        return self.zeros if way == ASYMMETRIC else self.alone

    def row(self, layer: Layer, chosen: Cut) -> LayerChoice:
        """What a layer multiplies. Of one in float32 the figures are those of bytes."""
        name, way = layer.name, chosen.ways[layer.name]
        first = chosen.first[name]
        told = way if way != FLOAT32 else first if first in WEIGHTS else INT8
        others = {FLOAT16: self.halves.errors, DYNAMIC: self.errors_by_row}
        errors = others[told] if told in others else self.by_itself(told).errors
        form = self.ways[told].get(name, Way(told, self.after.layers[name], 0.0))
        why = [GIVEN_BACK if name in chosen.moved else NO_FASTER[way]] if way in NO_FASTER else []
        why += [self.halves.refused[name]] if way == FLOAT32 and name in self.halves.refused else []
        return LayerChoice(
            name,
            INT8 if way in RANGED else way,
            rounded(errors[name]),
            rounded(form.error),
            rounded(self.before.layers[name] - form.seconds),
            "; ".join(why),
            WEIGHTS.get(way, ""),
        )

    # --- what the ways are --------------------------------------------------------------------------------------------

    def all_narrow(self, ways: Mapping[str, str]) -> Path:
        """The model with all layers in bytes, some of them in these ways and the others by ranges."""
        every = {x.name: ways.get(x.name, INT8) for x in self.trials.layers}
        layers = tuple(
            LayerChoice(name, INT8 if way in RANGED else way, 0, 0, 0, weights=WEIGHTS[way])
            for name, way in every.items()
        )
        path = self.subject.folder / ("others.onnx" if ways else "narrow.onnx")
        write_quantized(
            self.subject.model, Recipe(layers, self.alone.ranges, {}, self.smoothed, self.trials.most), path
        )
        return path

    def far_by_ranges(self) -> list[Layer]:
        """The layers that ranges leave far from the float model, and that are nearer where activations are rounded by
        row: all together that read the same value, which is rounded once."""
        far = {layer.x for layer in self.faster if layer.channels_last and self.alone.errors[layer.name] > FINE}
        layers = self.tried_by_row([layer for layer in self.faster if layer.x in far])
        by_value = {x: [layer for layer in layers if layer.x == x] for x in dict.fromkeys(x.x for x in layers)}
        return [
            layer
            for readers in by_value.values()
            if squares(self.errors_by_row, readers) < NEARER * squares(self.alone.errors, readers)
            for layer in readers
        ]

    def far_in_network(self) -> list[Layer]:
        """The layers that add much of the error to the network's outputs where activations are rounded by ranges."""
        errors = {name: way.error for name, way in self.ways[INT8].items()}
        far = {name for name, error in errors.items() if error**2 > FAR * sum(e**2 for e in errors.values())}
        return self.tried_by_row([layer for layer in self.faster if layer.name in far - self.errors_by_row.keys()])

    def tried_by_row(self, layers: Sequence[Layer]) -> list[Layer]:
        """Those of the layers that can have activations rounded by row; their errors by themselves are known then."""
        products = {x.name for x in products_of(self.trials.floats) if x.size >= LEAST} if layers else set[str]()
        tried = [layer for layer in layers if layer.name in products]
        self.errors_by_row |= replace(self.trials, layers=tried).by_row()
        return tried

    def by_row(self, layers: Sequence[Layer]) -> dict[str, Way]:
        """Those of the layers that are faster than in float32 where activations are rounded by row."""
        if not layers:
            return {}
        self.say("the price of rounding by row")
        others = self.all_narrow(dict.fromkeys((layer.name for layer in layers), DYNAMIC))
        more = priced_rows(self.subject.run, self.all_narrow({}), others, layers)
        ways = {name: Way(DYNAMIC, self.after.layers[name] + seconds, 0.0) for name, seconds in more.items()}
        return {name: way for name, way in ways.items() if way.seconds < self.before.layers[name]}

    def cheap(self, by_row: Mapping[str, Way]) -> set[str]:
        """Which of these ways take no more time than being nearer is worth, for all layers together that read the same
        value: these have no way by ranges."""
        values = {layer.name: layer.x for layer in self.faster if layer.name in by_row}
        more, saved = (dict.fromkeys(values.values(), 0.0) for _ in range(2))
        for name, x in values.items():
            more[x] += by_row[name].seconds - self.after.layers[name]
            saved[x] += self.subject.saved(self.after, name)
        return {name for name, x in values.items() if more[x] <= CHEAP * saved[x]}

    def tables_in_bytes(self) -> list[RoundedTable]:
        """The tables that can have rows of bytes, which are ways of theirs; float32 costs what their size is worth."""
        every = self.subject.tables.every
        narrow = dict.fromkeys((x.name for x in self.faster), INT8) | {table.name: TABLE for table in every}
        tables = [table for table in every if not self.refused(table, narrow)]
        sizes = {table.name: table.table.numbers.size for table in tables}
        size = sum(sizes.values()) + sum(weights_of(self.trials.floats, x).size for x in self.trials.layers)
        worth = {name: PER_SIZE * self.before.whole * part / size for name, part in sizes.items()}
        self.ways[TABLE] = {name: Way(TABLE, 0.0, 0.0) for name in worth}
        self.ways[FLOAT32] |= {name: Way(FLOAT32, seconds, 0.0) for name, seconds in worth.items()}
        return tables

    def watched_ways(self, way: str) -> dict[str, Way]:
        """One way of its layers, with the error that each by itself adds to the outputs."""
        ways = self.ways[way]
        errors = self.errors([{name: way} for name in ways], f"the network with one layer in {way}")
        return {name: ways[name]._replace(error=error) for name, error in zip(ways, errors, strict=True)}

    def errors(self, each: Sequence[Mapping[str, str]], what: str) -> list[float]:
        """The relative errors of the outputs where layers are computed in each of these ways."""
        watched, wanted = self.subject.watched, self.subject.watched_outputs
        return self.network.errors(each, watched, wanted, lambda said: self.say(f"{what}, run {said}"))

    def corrected(self) -> tuple[Network, Mapping[str, Floats]]:
        """The network with the means of what its layers are off added to them, or without, whichever is nearer where
        all that are faster so are in bytes; and these means, if they are added."""
        means = {x.name: self.alone.means[x.name] for x in self.faster if correctable(self.trials.floats, x)}
        self.network = self.switched(means, {})
        ways, errors = (
            {x.name: INT8 if x.name in self.ways[INT8] else DYNAMIC for x in self.faster},
            dict[bool, float](),
        )
        ways |= dict.fromkeys(self.ways[TABLE], TABLE)
        for corrected in (True, False):
            self.network.corrected = corrected
            (errors[corrected],) = self.errors([ways], "the network with every layer in bytes")
        self.network.corrected = errors[True] < errors[False]
        return self.network, means if self.network.corrected else {}

    def switched(self, corrections: Mapping[str, Floats], asymmetric: Mapping[str, Floats | None]) -> Network:
        """The network with layers in any of the ways; those in `asymmetric` with such weights too, which have
        corrections of their own."""
        t, deviations = self.trials, self.halves.deviations
        tables = [table.table for table in self.tables]
        others = (corrections, asymmetric, deviations, self.ways[DYNAMIC].keys(), tables)
        switched = Switched(t.floats, t.layers, self.alone.ranges, t.most, *others)
        network = Network(switched, self.subject.folder / "switched.onnx", self.subject.threads)
        self.stack.callback(network.close)
        return network

    def asymmetric(self) -> dict[str, Way]:
        """The layers that can have asymmetric weights, and are faster with them than in float32. What they add to the
        network's error is taken to fall as what they are off by themselves does."""
        symmetric = self.ways[INT8]
        self.say(f"asymmetric weights of {len(symmetric)} layers")
        ranged = [layer for layer in self.faster if layer.name in symmetric]
        worth, self.zeros = replace(self.trials, layers=ranged).asymmetric(self.alone)
        if not worth:
            return {}
        self.say("the price of asymmetric weights")
        names = [layer.name for layer in worth]
        others = dict.fromkeys(names, ASYMMETRIC)
        more = priced_more(self.subject.run, self.all_narrow({}), self.all_narrow(others), names)
        ways = dict[str, Way]()
        for name in names:
            error = symmetric[name].error * self.zeros.errors[name] / self.alone.errors[name]
            ways[name] = Way(ASYMMETRIC, symmetric[name].seconds + more[name], error)
        return {name: way for name, way in ways.items() if way.seconds < self.before.layers[name]}

    def again(self) -> Network:
        """The network with the ways that there are now."""
        corrected = self.network.corrected
        self.network.close()
        zeros = self.zeros.means
        means = {name: zeros[name] if name in self.corrections else None for name in self.ways[ASYMMETRIC]}
        network = self.switched(self.corrections, means)
        network.corrected = corrected
        return network

    # --- what a Recipe comes to ---------------------------------------------------------------------------------------

    def is_shortened(self, recipe: Recipe) -> bool:
        """Whether the layers of a Recipe that multiply float16 shorten the whole by that, with what there is to convert
        between them and others."""
        path = self.subject.folder / "mixed.onnx"
        write_quantized(self.subject.model, recipe, path)
        self.say("the price with float16 and without")
        mixed = replace(self.subject.in_half, recipe=recipe)
        seconds = [priced(run, path, ()).whole for run in (mixed, self.subject.run)]
        return seconds[0] < seconds[1]

    def stated(self, recipe: Recipe, what: str = "the quantized model") -> Drop:
        """The drop of the quantized model itself, with what it has in float16 rounded so."""
        path = self.subject.folder / "quantized.onnx"
        write_rounded(self.subject.model, recipe, self.halves.deviations, path)
        self.say(f"{what} on {len(self.subject.judging)} samples that are held back")
        made = runs(path, self.subject.judging, self.subject.threads, drawing=bool(recipe.halves))
        return self.measure.drop([*made])


def squares(errors: Mapping[str, float], layers: Collection[Layer]) -> float:
    """The squared errors of layers, together."""
    return sum(errors[layer.name] ** 2 for layer in layers)
