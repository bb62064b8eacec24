"""The model as ONNX Runtime is to run it: what a package draws at random is an input there, with the same numbers, and
products of bytes are exact on every CPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from modelc.frontend.onnx import import_model
from modelc.frontend.witness.given import numbers, with_numbers_given
from modelc.frontend.witness.restated import is_restated
from modelc.frontend.witness.unsigned import with_unsigned_weights
from modelc.ir.graph import Graph
from modelc.package import Package, emulated
from modelc.scratch import TemporaryFolder

Arrays = Mapping[str, NDArray[Any]]


def fixed_inputs(package: Package) -> dict[str, NDArray[Any]]:
    """The model's inputs that are constants of the package."""
    return {constant.name: constant.array() for constant in package.manifest.constants}


class Reference:
    """A model for what a package computes of the same inputs. `path` is a file that ONNX Runtime takes: the model's own
    where the package draws no numbers and has what the model has, and no product of bytes saturates. `signed` is the
    same with weights of bytes as the model has them."""

    def __init__(self, package: Package, model: str | Path) -> None:
        self._package, self._model, self.path = package, Path(model), Path(model)
        self._graphs: dict[tuple[tuple[str, tuple[int, ...]], ...], Graph] = {}
        self._given: dict[str, str] = {}
        self._folder = TemporaryFolder("reference")
        plan = package.manifest.variants[0]
        if plan.draws or is_restated(model):
            self.path = Path(self._folder.name) / "model.onnx"
            shapes = {t.name: t.shape for t in (*plan.inputs, *(s.input for s in plan.states))}
            drawn = numbers(self._graph(shapes), 0, 0) if plan.draws else {}
            self._given = with_numbers_given(self._model, fixed_inputs(package), drawn, self.path)
        self.signed = self.path
        self.path = with_unsigned_weights(self.signed, Path(self._folder.name) / "unsigned.onnx")

    def feed(self, inputs: Arrays, run: int) -> dict[str, NDArray[Any]]:
        """What the model takes where the package takes `inputs`, in the run of that number. Under emulation every run
        is the first of a handle."""
        fed = {**inputs, **fixed_inputs(self._package)}
        if self._given:
            run = 0 if emulated(self._package) else run
            graph = self._graph({name: array.shape for name, array in inputs.items()})
            fed |= {self._given[n]: x for n, x in numbers(graph, 0, run).items() if n in self._given}
        return fed

    def _graph(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        key = tuple(sorted(shapes.items()))
        if key not in self._graphs:
            self._graphs[key] = import_model(
                self._model, shapes, fixed_inputs(self._package), self._package.manifest.bounds
            )
        return self._graphs[key]

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._folder.cleanup()
