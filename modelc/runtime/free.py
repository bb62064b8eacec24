"""Sizes that a run says, and shapes that depend on them, as the manifest tells. Standard library and numpy alone."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from modelc.runtime.files import AGAIN, MANIFEST, ModelError
from modelc.runtime.library import FOUND, LENGTH
from modelc.runtime.shown import extents_shown
from modelc.runtime.tensors import Array, TensorInfo, Variant

MOST_EXTENT_TEXT = 1000  # characters of an extent, as sizes.py reads them
_COMPUTED: Mapping[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def outputs_of_data(manifest: dict[str, Any]) -> list[tuple[int, ...]]:
    """Of every variant the outputs whose shape depends on data."""
    sized = []
    for variant in manifest["variants"]:
        sizes, count = variant.get("sizes", []), len(variant["outputs"])
        try:
            outputs = {extent["output"] for extent in sizes}
        except (KeyError, TypeError):
            outputs = {-1}
        if not all(type(k) is int and 0 <= k < count for k in outputs):
            raise ModelError(f"{MANIFEST} is damaged: it has sizes of outputs that are not there; {AGAIN}")
        sized.append(tuple(sorted(outputs)))
    return sized


class Free(NamedTuple):
    """The free sizes of a variant: what each of its dimensions may be, `places` where an input has it (LENGTH: it is
    the length of a cache; FOUND: a run finds it), and its unit; extents of `inputs` and of `outputs`, by number, which
    may be expressions of the sizes."""

    ranges: dict[str, range]
    places: dict[str, tuple[int, int, int]]
    inputs: dict[int, list[Any]]
    outputs: dict[int, list[Any]]

    def shown(self, variant: Variant) -> tuple[list[TensorInfo], list[TensorInfo]]:
        """The inputs and outputs with their extents in terms of the dimensions."""
        units = {name: unit for name, (_, _, unit) in self.places.items()}

        def tensors(most: Sequence[TensorInfo], extents: dict[int, list[Any]]) -> list[TensorInfo]:
            return [t._replace(shape=extents_shown(extents.get(k, t.shape), units)) for k, t in enumerate(most)]

        return tensors(variant.inputs, self.inputs), tensors(variant.outputs, self.outputs)

    @property
    def given(self) -> dict[str, range]:
        """What dimensions may be that a run does not find."""
        return {name: numbers for name, numbers in self.ranges.items() if self.places[name][0] != FOUND}

    @property
    def grows(self) -> bool:
        """Whether there is a cache that grows."""
        return any(k == LENGTH for k, _, _ in self.places.values())

    def shapes(self, inputs: Sequence[Array]) -> dict[int, tuple[int, ...]]:
        """The shapes of outputs in a run on these inputs, which fit: the most that it may find."""
        if self.grows:  # how long a cache is, the library knows
            return {}
        run = {
            name: self.ranges[name][-1] if k == FOUND else inputs[k].shape[axis] // unit
            for name, (k, axis, unit) in self.places.items()
        }
        return {k: tuple(_extent(n, run) for n in extents) for k, extents in self.outputs.items()}


def free_of(variant: Mapping[str, Any]) -> Free | None:
    """What is free in a variant of the manifest; None where nothing is."""
    given = variant.get("free", [])
    if not given:
        return None
    try:
        ranges = {s["name"]: range(s["least"] * s["unit"], s["most"] * s["unit"] + 1, s["unit"]) for s in given}
        places = {s["name"]: (s["input"], s["axis"], s["unit"]) for s in given}
        sides = (variant["inputs"], variant["outputs"])
        inputs, outputs = ({k: t["extents"] for k, t in enumerate(side) if "extents" in t} for side in sides)
        free = Free(ranges, places, inputs, outputs)
        largest = {name: numbers[-1] // numbers.step for name, numbers in ranges.items()}
        for side, extents in zip(sides, (inputs, outputs), strict=True):
            if any([_extent(n, largest) for n in extents[k]] != side[k]["shape"] for k in extents):
                raise ValueError("shapes are not the most")
        if any(axis >= len(inputs[k]) for k, axis, _ in places.values() if k >= 0):
            raise ValueError("an axis is not there")
    except (KeyError, TypeError, ValueError, IndexError, ZeroDivisionError, RecursionError, MemoryError) as error:
        raise ModelError(f"{MANIFEST} is damaged: its free sizes do not fit ({error}); {AGAIN}") from None
    return free


def _extent(extent: Any, run: Mapping[str, int]) -> int:
    """What an extent of the manifest is in a run. Raises ValueError."""
    if type(extent) is int:
        return extent
    if not isinstance(extent, str) or len(extent) > MOST_EXTENT_TEXT:
        raise ValueError("an extent is neither a number nor an expression")
    try:
        return _value(ast.parse(extent, mode="eval").body, run)
    except SyntaxError:
        raise ValueError(f"{extent!r} is no expression") from None


def _value(node: ast.expr, run: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in run:
        return run[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED:
        return _COMPUTED[type(node.op)](_value(node.left, run), _value(node.right, run))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, run)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        parts = [_value(part, run) for part in node.args]
        return min(parts) if node.func.id == "min" else max(parts)
    raise ValueError("an extent is no expression of sizes")
