"""The network with its layers in any of their ways: what each choice of these adds to the outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from modelc.frontend.quantize.switched import Switched
from modelc.quantize.drop import real_outputs, relative_error
from modelc.quantize.running import Runner, Say
from modelc.quantize.samples import Arrays

Ways = Mapping[str, str]  # how layers are computed, by name; others in float32


class Network:
    """A model that computes any choice of layers in bytes and in float16, with corrections where it is `corrected`."""

    def __init__(self, switched: Switched, path: Path, threads: int) -> None:
        switched.write(path)
        self.switched, self.corrected = switched, True
        self.runner = Runner(path, threads, drawing=bool(switched.halves))

    def outputs(self, ways: Ways, samples: Sequence[Arrays]) -> list[Arrays]:
        """What it gives for each sample where layers are computed in these ways."""
        return [*self.runner.outputs(self._runs(ways, samples))]

    def errors(
        self, each: Sequence[Ways], samples: Sequence[Arrays], wanted: Sequence[Arrays], say: Say
    ) -> list[float]:
        """The relative errors of its outputs in each of several ways; `say` is told how many runs of all that takes."""
        names, errors, made = real_outputs(wanted), list[float](), list[Arrays]()
        for outputs in self.runner.outputs([run for ways in each for run in self._runs(ways, samples)], say):
            made.append(outputs)
            if len(made) == len(samples):
                errors.append(relative_error(made, wanted, names))
                made.clear()
        return errors

    def _runs(self, ways: Ways, samples: Sequence[Arrays]) -> list[tuple[Arrays, Arrays]]:
        on = self.switched.inputs(ways, self.corrected)
        return [(sample, on) for sample in samples]

    def close(self) -> None:
        self.runner.close()
