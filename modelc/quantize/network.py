"""The network with any choice of layers in bytes, on samples whose outputs in float32 are known."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.layers import Layer
from modelc.frontend.quantize.recipe import Floats, Range
from modelc.frontend.quantize.switched import switches, write_switched
from modelc.quantize.measure import real_outputs, relative_error
from modelc.quantize.samples import Arrays
from modelc.quantize.trials import ENGINE
from modelc.verify.engine import Engine


class Network:
    """A model whose layers multiply bytes or not, with their corrections where it is `corrected`."""

    def __init__(
        self,
        floats: FloatModel,
        layers: Sequence[Layer],
        ranges: Mapping[str, Range],
        corrections: Mapping[str, Floats],
        most: int,
        path: Path,
        threads: int,
        stack: ExitStack,
    ) -> None:
        self.layers = layers
        write_switched(floats, layers, ranges, corrections, most, path)
        self.engine = stack.enter_context(Engine(ENGINE, path, threads, timed=False))
        self.corrected = True

    def outputs(self, narrow: Collection[str], samples: Sequence[Arrays]) -> list[Arrays]:
        """What it gives for each sample where the layers called `narrow` multiply bytes."""
        on = switches(self.layers, narrow, self.corrected)
        return [self.engine.run({**sample, **on}) for sample in samples]

    def error(self, narrow: Collection[str], samples: Sequence[Arrays], wanted: Sequence[Arrays]) -> float:
        """The relative error of its outputs then."""
        return relative_error(self.outputs(narrow, samples), wanted, real_outputs(wanted))
