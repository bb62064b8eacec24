"""What is fixed of a model's inputs: by flags, by the configuration where no flag says otherwise, or as earlier choices
had it; and the data that a user verifies with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc.compile.choices import Choices
from modelc.compile.fixed import Inputs
from modelc.compile.opened import Open
from modelc.errors import ConfigError, ModelError
from modelc.frontend.load.outline import read_outline
from modelc.frontend.steering.flags import Steered, steerable, steered
from modelc.frontend.steering.specialise import Dims, declared_shapes, free_flags
from modelc.ir.graph import Graph, Value, sized
from modelc.package import FixedInput, TensorInfo
from modelc.verify.check import check_feed, without_constants

Arrays = Mapping[str, NDArray[Any]]


def applied(fixed: Inputs, model: Path, data: Arrays | None = None) -> Steered:
    """What is fixed, as it comes to for the model. Raises ModelError, InputError; ConfigError for a dimension that is
    left open, as not every verb can."""
    for name, numbers in fixed.dims.items():
        if isinstance(numbers, Open):
            raise ConfigError(
                f"--dim {name}={numbers} leaves a dimension open, as compile can, and tune of one model: expected a "
                f"number here, such as --dim {name}={numbers[-1] if numbers else 1}"
            )
    return steered(model, fixed.shapes, fixed.dims, fixed.constants, data)


def divided(fixed: Inputs, models: Sequence[Path]) -> list[Inputs]:
    """For each of several models what is said of its inputs and dimensions. What none of them has is given to all,
    which refuse it."""
    if len(models) == 1 or fixed == Inputs():
        return [fixed] * len(models)
    known = [steerable(model) for model in models]
    every = [set().union(*(one[k] for one in known)) for k in (0, 1)]  # inputs, and free dimensions

    def part(given: Mapping[str, Any], own: set[str], every: set[str]) -> dict[str, Any]:
        return {name: value for name, value in given.items() if name in own or name not in every}

    return [
        Inputs(
            tuple(filter(None, (part(one, own, every[0]) for one in fixed.shapes))),
            part(fixed.dims, free, every[1]),
            part(fixed.constants, own, every[0]),
            part(fixed.states, own, every[0]),
            fixed.bounds,
        )
        for own, free in known
    ]


def as_chosen(choices: Choices | None, fixed: Inputs, inputs: Inputs) -> Inputs:
    """What is fixed, and what is left open as in earlier choices for the same model, or as the configuration says."""
    if choices is None:
        return fixed.over(inputs)
    constants = {one.name: one.array() for one in choices.constants}
    if choices.free and not fixed.shapes and not fixed.dims:
        return replace(fixed, dims={**inputs.dims, **choices.free}, constants={**constants, **fixed.constants})
    shapes = fixed.shapes or (() if fixed.dims else choices.shapes_of_inputs)
    return replace(fixed, shapes=shapes, constants={**constants, **fixed.constants})


def _given(graph: Graph, states: Mapping[str, str]) -> list[Value]:
    return [graph.value(name) for name in graph.fed if name not in states]


def made_for(choices: Choices, steering: Steered) -> bool:
    """Whether choices of the same model were made for the same shapes and constants."""
    constants = (FixedInput.of(name, array) for name, array in steering.constants.items())
    return choices.shapes_of_inputs == steering.shapes and {*choices.constants} == {*constants}


def data_of(data: Arrays | None, models: Sequence[Path]) -> list[Arrays | None]:
    """For each of several models the data for its inputs; of one model all of it."""
    if data is None or len(models) == 1:
        return [data] * len(models)
    return [{n: array for n, array in data.items() if n in steerable(model)[0]} or None for model in models]


def check_states(graphs: Sequence[Graph], states: Mapping[str, str], growing: Collection[str] = ()) -> None:
    """Raises ModelError unless each of `states` is an input of every graph, and the output that it is to be after a run
    is like it, or it is one of those that are `growing`, and no other's."""
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
        if kinds[0] != kinds[1] and name not in growing:
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


def fitting(data: Arrays, graphs: Sequence[Graph], constants: Arrays, states: Mapping[str, str], model: Path) -> Arrays:
    """The data without the constants; states are not given. Raises InputError where it fits no variant, before any
    work."""
    rest = without_constants(constants, data)
    taken = [[TensorInfo(v.name, v.dtype, v.shape) for v in _given(g, states)] for g in graphs]
    check_feed(taken, rest, f"the model {model}")
    return rest
