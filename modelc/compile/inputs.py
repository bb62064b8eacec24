"""What is fixed of a model's inputs: by flags, by the configuration where no flag says otherwise, or as earlier choices
had it; and the data that a user verifies with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.compile.choices import Choices, Shapes
from modelc.compile.config import Config, Inputs
from modelc.errors import ModelError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.steering.flags import Given, Steered, steerable, steered
from modelc.frontend.steering.specialise import Dims, declared_shapes, free_flags
from modelc.ir.graph import Graph, Value, sized
from modelc.package import FixedInput, TensorInfo
from modelc.package.padding import Padding
from modelc.verify.check import check_feed, without_constants

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Flags:
    """--shape (a set for each variant), --dim (several numbers: a variant for each), --constant; --state, --pad-dim,
    --pad-value and --bound."""

    shapes: tuple[Shapes, ...] = ()
    dims: Mapping[str, Sequence[int]] = field(default_factory=dict)
    constants: Mapping[str, Given] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    pad_dims: tuple[str, ...] = ()
    pad_values: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=dict)

    def over(self, inputs: Inputs) -> Flags:
        """These flags with the configuration's in place of those that are not given."""
        return replace(self, dims={**inputs.dims, **self.dims}, constants={**inputs.constants, **self.constants})

    def kept(self, config: Config) -> Config:
        """The configuration with more states, padded dimensions, bounds, and other numbers to fill inputs up with."""
        known = config.inputs
        added = replace(
            known,
            states={**known.states, **self.states},
            pad_dims=tuple(dict.fromkeys((*known.pad_dims, *self.pad_dims))),
            pad_values={**known.pad_values, **self.pad_values},
            bounds={**known.bounds, **self.bounds},
        )
        return replace(config, inputs=added)

    def applied(self, model: Path, data: Arrays | None = None) -> Steered:
        """What they come to for the model. Raises ModelError, InputError."""
        return steered(model, self.shapes, self.dims, self.constants, data)


def divided(flags: Flags, models: Sequence[Path]) -> list[Flags]:
    """For each of several models what the flags say of its inputs and dimensions. What none of them has is given to
    all, which refuse it."""
    if len(models) == 1 or flags == Flags():
        return [flags] * len(models)
    known = [steerable(model) for model in models]
    inputs, dims = (set().union(*(one[k] for one in known)) for k in (0, 1))
    found = []
    for own, free in known:
        shapes = tuple({n: s for n, s in one.items() if n in own or n not in inputs} for one in flags.shapes)
        found.append(
            Flags(
                tuple(one for one in shapes if one),
                {n: size for n, size in flags.dims.items() if n in free or n not in dims},
                {n: value for n, value in flags.constants.items() if n in own or n not in inputs},
                {n: output for n, output in flags.states.items() if n in own or n not in inputs},
                tuple(n for n in flags.pad_dims if n in free or n not in dims),
                {n: value for n, value in flags.pad_values.items() if n in own or n not in inputs},
                flags.bounds,
            )
        )
    return found


def as_chosen(choices: Choices | None, flags: Flags, inputs: Inputs) -> Flags:
    """The flags, with what they leave open as in earlier choices for the same model, or as the configuration says."""
    if choices is None:
        return flags.over(inputs)
    constants = {one.name: one.array() for one in choices.constants}
    shapes = flags.shapes or (() if flags.dims else choices.shapes)
    return replace(flags, shapes=shapes, constants={**constants, **flags.constants})


def _given(graph: Graph, states: Mapping[str, str]) -> list[Value]:
    return [graph.value(name) for name in graph.fed if name not in states]


def made_for(choices: Choices, steering: Steered) -> bool:
    """Whether choices of the same model were made for the same shapes and constants."""
    constants = (FixedInput.of(name, array) for name, array in steering.constants.items())
    return choices.shapes == steering.shapes and {*choices.constants} == {*constants}


def data_of(data: Arrays | None, models: Sequence[Path]) -> list[Arrays | None]:
    """For each of several models the data for its inputs; of one model all of it."""
    if data is None or len(models) == 1:
        return [data] * len(models)
    return [{n: array for n, array in data.items() if n in steerable(model)[0]} or None for model in models]


def check_states(graphs: Sequence[Graph], states: Mapping[str, str]) -> None:
    """Raises ModelError unless each of `states` is an input of every graph, and the output that it is to be after a run
    is like it and no other's."""
    for graph, (name, output) in product(graphs, states.items()):
        for one, known, what in ((name, graph.fed, "input"), (output, graph.given, "output")):
            if one not in known:
                raise ModelError(
                    f"--state {name}={output}: the model has no {what} {one!r}; its {what}s are "
                    f"{', '.join(map(repr, known))}"
                )
        if any(found is not None and found[0] == output for found in map(sized, graph.outputs)):
            raise ModelError(
                f"--state {name}={output}: the size of {output!r} depends on data, and a state has one shape"
            )
        kinds = [f"{v.dtype}{list(v.shape)}" for v in (graph.value(name), graph.value(output))]
        if kinds[0] != kinds[1]:
            raise ModelError(
                f"--state {name}={output}: expected an input and an output alike, found {kinds[0]} and {kinds[1]}; a "
                "state has one shape: give the model a buffer of fixed capacity and a position in it"
            )
        if list(states.values()).count(output) > 1 or output in graph.inputs:
            raise ModelError(f"--state {name}={output}: {output!r} is another state's output, or an input itself")


def check_elements(model: Path, graph: Graph) -> None:
    """Raises ModelError where nothing would be computed because a dimension that the model leaves open is fixed at 0.
    What the model itself says to be empty is compiled as it is said."""
    if any(prod(graph.value(name).shape) for name in graph.outputs):
        return
    declared = declared_shapes(read_outline(model).graph)
    shapes = {name: graph.value(name).shape for name in graph.fed}
    flags = free_flags({name: _open_where_empty(declared[name], shape) for name, shape in shapes.items()})
    if flags:
        empty = ", ".join(f"{name!r} {list(shape)}" for name, shape in shapes.items() if 0 in shape)
        raise ModelError(
            f"what would be compiled has no elements: input {empty} is empty, and so is every output; expected at "
            f"least one element: fix dimensions with {' '.join(flags)}, each number 1 or more"
        )


def _open_where_empty(dims: Dims | None, shape: tuple[int, ...]) -> Dims | None:
    """The shape with the model's own words for dimensions that it leaves open and that are 0."""
    if dims is None:
        return None if 0 in shape else shape
    return tuple(d if isinstance(d, str) and n == 0 else n for d, n in zip(dims, shape, strict=True))


def fitting(
    data: Arrays,
    graphs: Sequence[Graph],
    constants: Arrays,
    states: Mapping[str, str],
    padding: Padding | None,
    model: Path,
) -> Arrays:
    """The data without the constants; states are not given. Raises InputError where it fits no variant, before any
    work."""
    rest = without_constants(constants, data)
    taken = [[TensorInfo(v.name, v.dtype, v.shape) for v in _given(g, states)] for g in graphs]
    check_feed(taken, rest, f"the model {model}", padding)
    return rest
