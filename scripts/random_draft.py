"""A random model in the making: its values, and the nodes that makers draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper

Rng = np.random.Generator
Array = np.ndarray
MOST_ELEMENTS = 1 << 14


@dataclass(frozen=True)
class Value:
    """`exact`: whoever computes it gets the same bits, so that a rounding or a comparison of it is safe. `sized`: how
    large it is depends on data, so that makers, who go by its shape, do not take it."""

    name: str
    array: Array
    exact: bool
    sized: bool = False

    @property
    def floating(self) -> bool:
        return self.array.dtype.kind == "f"


@dataclass
class Draft:
    """Nodes that would be appended, with their initialisers. `keeps_exact`: their outputs are exact if their inputs
    are. `sized` are those of their outputs whose size depends on data."""

    nodes: list[onnx.NodeProto]
    held: dict[str, Array] = field(default_factory=dict)
    keeps_exact: bool = False
    sized: set[str] = field(default_factory=set)


@dataclass
class RandomGraph:
    """A model in the making: `values` in the order in which they came."""

    rng: Rng
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    held: dict[str, Array] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    names: int = 0

    def fresh(self, word: str) -> str:
        self.names += 1
        return f"{word}{self.names}"

    def pick(self, options: Sequence[object]) -> object:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def value(self, wanted: Callable[[Value], bool]) -> Value | None:
        """One of the values, the later the likelier."""
        found = [v for v in self.values if not v.sized and wanted(v)]
        return found[-1 - int(self.rng.integers(len(found)) * self.rng.random())] if found else None

    def constant(self, draft: Draft, array: Array) -> str:
        name = self.fresh("w")
        draft.held[name] = array
        return name

    def normal(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape).astype(np.float32)


def info(name: str, array: Array) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), name=f"{op}_{outputs[0]}", **attrs)
