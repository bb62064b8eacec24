"""The network with any choice of layers in bytes and in float16, on samples whose outputs in float32 are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from modelc.frontend.quantize.floats import FloatModel
from modelc.frontend.quantize.halves import Deviations
from modelc.frontend.quantize.layers import Layer
from modelc.frontend.quantize.recipe import Floats, Range
from modelc.frontend.quantize.switched import switches, write_switched
from modelc.quantize.measure import real_outputs, relative_error
from modelc.quantize.samples import Arrays
from modelc.quantize.trials import ENGINE
from modelc.verify.engine import Engine


class Network:
    """A model whose layers multiply bytes or not, with their corrections where it is `corrected`; those in `asymmetric`
    by asymmetric weights too, with corrections of their own; those in `halves` float16 too."""

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
        asymmetric: Mapping[str, Floats | None],
        halves: Deviations,
    ) -> None:
        self.layers, self.others, self.halves = layers, asymmetric, halves
        write_switched(floats, layers, ranges, corrections, asymmetric, halves, most, path)
        self.engine = stack.enter_context(Engine(ENGINE, path, threads, timed=False))
        self.corrected = True

    def outputs(self, ways: Mapping[str, str], samples: Sequence[Arrays]) -> list[Arrays]:
        """What it gives for each sample where layers are computed in these `ways`, by name, others in float32."""
        on = switches(self.layers, ways, self.corrected, self.others, self.halves)
        return [self.engine.run({**sample, **on}) for sample in samples]

    def error(self, ways: Mapping[str, str], samples: Sequence[Arrays], wanted: Sequence[Arrays]) -> float:
        """The relative error of its outputs then."""
        return relative_error(self.outputs(ways, samples), wanted, real_outputs(wanted))
