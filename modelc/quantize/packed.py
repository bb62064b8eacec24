"""Weights and tables of few bits: by samples, which round weights of 4 bits and say what drop is left, or without."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from modelc.compile.compilation import default_threads
from modelc.compile.pipeline import Run
from modelc.compile.request import CompileRequest, named_target
from modelc.errors import ConfigError, blaming
from modelc.frontend.quantize.floats import FloatModel, float_model
from modelc.frontend.quantize.gptq import Inputs, compensated, moves_of
from modelc.frontend.quantize.outputs import class_scores, embeddings
from modelc.frontend.quantize.packing import (
    BLOCK,
    PackedLayer,
    Packing,
    layer_of,
    packable,
    packed_model,
    packing_of,
    rows_of,
    stored_of,
    table_of,
)
from modelc.frontend.quantize.products import Product
from modelc.frontend.quantize.recipe import FLOAT32, INT8
from modelc.frontend.quantize.weights import BITS, Floats, FourBits, as_bytes
from modelc.frontend.witness.surgery import save
from modelc.quantize.cut import Cut, Way, cut, ordered
from modelc.quantize.drop import Drop, rounded
from modelc.quantize.float_run import QUANTIZE, drawn_inputs, error_on_drawn, run_at_usual_sizes
from modelc.quantize.measure import measure_of, unseen
from modelc.quantize.running import runs, spread
from modelc.quantize.samples import Arrays, read_samples
from modelc.quantize.subject import MAX_DROP, judged_for
from modelc.scratch import TemporaryFolder
from modelc.target import load_target

MOST_SOLVED = 128  # samples by which weights are rounded
MOST_DEPTH = 8192  # of a matrix that is rounded by samples: X^T X has its square
WIDER = "wider, for the drop"
NEAREST = "each weight is the nearest number: "
TOO_DEEP = f"{NEAREST}samples round matrices of at most {MOST_DEPTH} rows"
TOGETHER = 2048  # rows of X that are multiplied at once
SINGULAR = f"{NEAREST}the products of its inputs on the samples cannot be inverted"


class Form(NamedTuple):
    """A layer as it may be stored: its bytes, and the relative error of what it writes, as far as that is known."""

    layer: PackedLayer
    bytes: int
    error: float


def packed(request: CompileRequest) -> Packing:
    """What of the request's model is stored in few bits. Raises ModelcError."""
    assert request.weights is not None
    if request.precision == INT8 or request.recipe is not None:
        raise ConfigError("weights and layers in int8 were asked for: give one of --weights and --precision")
    if request.trade_off:
        raise ConfigError("--trade-off is of layers in bytes: give --precision int8, or leave it out with --weights")
    if request.choices is not None:
        raise ConfigError("--choices says what weights are stored as: give either --weights or --choices")
    request.say(QUANTIZE, f"weights {request.weights}")
    with blaming(f"model {request.path}"), TemporaryFolder("packed") as folder:
        packing = packing_of(request.path, request.weights, request.block or BLOCK)
        packer = Packer(request, packing, Path(folder))
        return packer.drawn() if request.calibrate is None else packer.calibrated(Path(request.calibrate))


@dataclass(frozen=True)
class Packer:
    """The float model of a request beside the one that `packing` makes of it. Models are written to `folder`."""

    request: CompileRequest
    packing: Packing
    folder: Path
    stored: dict[str, FourBits] = field(default_factory=dict)  # numbers that are known, by layer

    @property
    def threads(self) -> int:
        return self.request.threads or default_threads()

    def say(self, text: str) -> None:
        self.request.say(QUANTIZE, text)

    @cached_property
    def floats(self) -> FloatModel:
        return float_model(self.request.path)

    @cached_property
    def plain(self) -> Path:
        """The float model's file."""
        save(self.floats.model, self.folder / "float.onnx")
        return self.folder / "float.onnx"

    @cached_property
    def run(self) -> Run:
        """The compilation of the float model at the usual sizes of what it leaves open."""
        target = named_target(self.request.target) or load_target("native")
        return run_at_usual_sizes(self.request, target)

    def outputs(self, packing: Packing, samples: list[Arrays]) -> list[Arrays]:
        """Of the model of a Packing."""
        return list(runs(self.written(packing), samples, self.threads))

    def written(self, packing: Packing) -> Path:
        """The file of the model of a Packing."""
        save(packed_model(self.request.path, packing, self.stored), self.folder / "packed.onnx")
        return self.folder / "packed.onnx"

    # --- without samples ------------------------------------------------------------------------------------------

    def drawn(self) -> Packing:
        """The Packing as it is, with the error of its outputs on inputs that are drawn as verification draws them."""
        samples = drawn_inputs(self.run)
        self.say("outputs on drawn inputs")
        summary = error_on_drawn(self.plain, self.written(self.packing), samples, self.threads)
        return replace(self.packing, summary={**summary, "said": f"not measured ({summary['said']})"})

    # --- by samples -----------------------------------------------------------------------------------------------

    def calibrated(self, place: Path) -> Packing:
        """Weights of 4 bits are rounded by samples; those that cost the most error for their size are wider, of 8 bits
        or in float32, until the drop on samples that are held back is what is allowed."""
        max_drop = MAX_DROP if self.request.max_drop is None else self.request.max_drop
        samples = read_samples(place, self.request.path, self.run.constants)
        judging = spread(samples.judging, judged_for(max_drop))
        self.say(f"{len(judging)} samples that are held back, in float32")
        wanted = list(runs(self.plain, judging, self.threads))
        measure = measure_of(self.request.metric, wanted, judging, class_scores(self.floats), embeddings(self.floats))
        forms = self.forms(spread(samples.calibrating, MOST_SOLVED))
        drops = dict[int, Drop]()

        def holds(tried: Cut) -> bool:
            if tried.taken not in drops:
                self.say(f"{tried.taken} of {len(tried.order)} steps to wider weights, on {len(judging)} samples")
                drops[tried.taken] = measure.drop(self.outputs(self.of(forms, tried), judging))
            return drops[tried.taken].share <= max_drop

        ways = {name: [Way(way, of.bytes, of.error) for way, of in forms[name].items()] for name in forms}
        chosen = cut(ordered(ways), holds)  # bytes are what is saved, where layers in bytes save seconds
        holds(chosen)
        drop = drops[chosen.taken]
        share = f"{100 * drop.share:.3g} % of the float model's on {len(judging)} samples that were held back"
        summary = {
            "drop": rounded(drop.share),
            "said": f"{share} ({drop.said})",
            "max_drop": max_drop,
            "measure": measure.what,
            "calibrated_on": len(samples.calibrating),
            "held_back": len(judging),
            "unseen": list(unseen(measure, max_drop)),
        }
        return replace(self.of(forms, chosen), summary=summary)

    def of(self, forms: Mapping[str, Mapping[str, Form]], chosen: Cut) -> Packing:
        """The Packing of a choice."""
        layers = {layer.name: layer for layer in self.packing.layers}
        layers |= {name: forms[name][way].layer for name, way in chosen.ways.items()}
        layers |= {name: replace(layers[name], why=WIDER) for name in chosen.moved}
        return replace(self.packing, layers=tuple(layers.values()))

    def forms(self, samples: list[Arrays]) -> dict[str, dict[str, Form]]:
        """Of each layer that is to have few bits what it can be stored as."""
        products, tables = packable(self.floats)
        narrow = [x for x in products if x.name in self.packing.narrow and not isinstance(x.weights, FourBits)]
        seen = self.inputs(narrow, samples)
        names = {*(product.name for product in products), *(table.name for table in tables)}
        decided = {layer.name: layer for layer in self.packing.layers}
        forms = dict[str, dict[str, Form]]()
        for number, product in enumerate(narrow, 1):
            self.say(f"weights by samples, {number} of {len(narrow)} layers")
            inputs, layers = seen.get(product.x), {8: layer_of(product, 8, self.packing.block)}
            layers |= {decided[product.name].bits: decided[product.name]}
            forms[product.name] = {
                str(bits): _form(product.size, self.on_samples(product, layer, inputs))
                for bits, layer in layers.items()
            }
        for table in (table for table in tables if table.name in self.packing.narrow):
            layers = {8: table_of(self.floats, table, 8, self.packing.block, names)}
            if (layer := decided[table.name]).bits == BITS:
                layers[BITS], self.stored[table.name] = layer, rows_of(table, layer)
            forms[table.name] = {str(bits): _form(table.numbers.size, layer) for bits, layer in layers.items()}
        for by_way in forms.values():
            real = replace(by_way["8"].layer, bits=0)
            by_way[FLOAT32] = Form(real, 4 * by_way["8"].bytes, 0.0)
        return forms

    def inputs(self, products: Sequence[Product], samples: list[Arrays]) -> dict[str, Inputs]:
        """The rows that products read on samples, by the value's name."""
        depths = {product.x: product.shape[0] for product in products if product.shape[0] <= MOST_DEPTH}
        model, path = self.floats.copy(outputs=False), self.folder / "inputs.onnx"
        for x in depths:
            model.give(model.add("Identity", [x], f"{x}/seen"))
        save(model.model, path)
        grams, waiting = {x: np.zeros((depth, depth)) for x, depth in depths.items()}, dict[str, list[Floats]]()
        seen = runs(path, samples, self.threads, lambda said: self.say(f"inputs of layers, {said}")) if depths else ()
        for number, arrays in enumerate(seen, 1):
            for x, gram in grams.items():
                rows = waiting.setdefault(x, [])
                rows.append(arrays[f"{x}/seen"].reshape(-1, len(gram)))
                if sum(map(len, rows)) >= TOGETHER or number == len(samples):
                    every = np.concatenate(rows)
                    gram += every.T @ every
                    rows.clear()
        return {x: Inputs(gram) for x, gram in grams.items()}

    def on_samples(self, product: Product, layer: PackedLayer, inputs: Inputs | None) -> PackedLayer:
        """What the layer of a product is off by there; weights of 4 bits are rounded by the products of its inputs."""
        w = product.weights
        assert not isinstance(w, FourBits)
        if inputs is None:
            return replace(layer, why=TOO_DEEP) if layer.bits == BITS else layer
        if layer.bits != BITS:
            return replace(layer, output=rounded(inputs.error(w, as_bytes(w, 1).real())))
        self.stored[product.name] = nearest = stored_of(product, layer)
        before, stored = rounded(inputs.error(w, nearest.real())), compensated(w, nearest, inputs)
        layer = replace(layer, nearest=before, output=before, why="" if stored else SINGULAR)
        if stored is None or (error := rounded(inputs.error(w, stored.real()))) >= before:
            return layer
        self.stored[product.name] = stored
        return replace(layer, output=error, moves=moves_of(nearest, stored))


def _form(size: int, layer: PackedLayer) -> Form:
    """With its bytes, but for those of 8 bits' few scales."""
    of_scales = (size // layer.block) * (4 + layer.zeros / 2) if layer.block else 0
    return Form(layer, int(size * layer.bits / 8 + of_scales), layer.error if layer.output is None else layer.output)
