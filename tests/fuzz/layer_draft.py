"""A small model in the making: layers are appended one by one, each with inputs, weights and outputs of its own.

Inputs are drawn widely, by what each is declared to hold and not by what `verify` would draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

OPSET = 21
SCALES = (1.0, 3.0, 10.0)  # of normal numbers
TIED = 0.25  # the share of samples whose numbers are multiples of 1/4: they lie at ties of rounding, and some are equal

Array = NDArray[Any]
Rng = np.random.Generator
Sampler = Callable[[Rng], Array]


def wide(shape: Sequence[int], dtype: str = "float32") -> Sampler:
    """Normal numbers times one of SCALES, in some samples at ties."""

    def sample(rng: Rng) -> Array:
        numbers = rng.standard_normal(shape) * rng.choice(SCALES)
        return (np.round(numbers * 4) / 4 if rng.random() < TIED else numbers).astype(dtype)

    return sample


def whole(shape: Sequence[int], low: int, high: int, dtype: str = "int64") -> Sampler:
    """Whole numbers from `low` to `high`: small ones in one half of the samples."""

    def sample(rng: Rng) -> Array:
        if rng.random() < 0.5:
            return rng.integers(max(low, -20), min(high, 20), shape, endpoint=True).astype(dtype)
        drawn = "uint64" if high > np.iinfo("int64").max else "int64"
        return rng.integers(low, high, shape, drawn, endpoint=True).astype(dtype)

    return sample


@dataclass
class LayerDraft:
    """`inputs` says what each is drawn from; `scope` begins the names of what is appended. `rng` draws parameters."""

    rng: Rng
    opset: int = OPSET
    scope: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    held: dict[str, Array] = field(default_factory=dict)
    inputs: dict[str, tuple[str, tuple[int, ...], Sampler]] = field(default_factory=dict)  # dtype, shape
    outputs: list[str] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)

    def named(self, word: str) -> str:
        base = f"{self.scope}{word}"
        self.taken[base] += 1
        return f"{base}_{self.taken[base]}"

    def input(self, *shape: int, dtype: str = "float32", sampler: Sampler | None = None) -> str:
        name = self.named("x")
        self.inputs[name] = (dtype, shape, sampler or wide(shape, dtype))
        return name

    def weight(self, numbers: object, dtype: str = "float32") -> str:
        name = self.named("w")
        self.held[name] = np.asarray(numbers).astype(dtype)
        return name

    def normal(self, *shape: int, scale: float = 1.0, offset: float = 0.0) -> str:
        return self.weight(self.rng.standard_normal(shape) * scale + offset)

    def axes(self, *numbers: int) -> str:
        return self.weight(numbers, "int64")

    def op(self, op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Appends a node; returns the name of its result."""
        return self.ops(op_type, *inputs, results=1, domain=domain, **attributes)[0]

    def ops(self, op_type: str, *inputs: str, results: int, domain: str = "", **attributes: Any) -> list[str]:
        """Appends a node of several results; returns their names."""
        base = self.named(op_type.lower())
        made = [base if results == 1 else f"{base}_{k}" for k in range(results)]
        self.nodes.append(helper.make_node(op_type, inputs, made, base, domain=domain, **attributes))
        return made

    def output(self, *values: str) -> None:
        """Makes values outputs, which get names of their own: two models of other nodes have equal ones."""
        for value in values:
            name = self.named("y")
            for node in self.nodes:
                node.input[:] = [name if used == value else used for used in node.input]
                node.output[:] = [name if made == value else made for made in node.output]
            self.outputs.append(name)

    def name_apart(self, other: LayerDraft) -> None:
        """Gives weights names of their own that are others than the ones of these names in `other`, where that has
        other nodes: there a name says nothing of what a weight is."""
        shapes = [[(node.op_type, node.input, node.output) for node in each.nodes] for each in (self, other)]
        if shapes[0] == shapes[1]:
            return
        for name, array in list(self.held.items()):
            theirs = other.held.get(name)
            if theirs is not None and (theirs.dtype != array.dtype or not np.array_equal(theirs, array)):
                self.held[f"{name}_own"] = self.held.pop(name)
                for node in self.nodes:
                    node.input[:] = [f"{name}_own" if used == name else used for used in node.input]

    def model(self) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype
        graph = helper.make_graph(
            self.nodes,
            "layers",
            [helper.make_tensor_value_info(n, kind(np.dtype(d)), s) for n, (d, s, _) in self.inputs.items()],
            [onnx.ValueInfoProto(name=name) for name in self.outputs],
            [numpy_helper.from_array(array, name) for name, array in self.held.items()],
        )
        domains = dict.fromkeys(node.domain for node in self.nodes if node.domain)
        sets = [helper.make_opsetid("", self.opset)]
        sets += [helper.make_opsetid(domain, 3 if domain == "ai.onnx.ml" else 1) for domain in domains]
        model = helper.make_model(graph, opset_imports=sets, ir_version=10)
        return onnx.shape_inference.infer_shapes(model)  # which says of what dtype outputs are

    def drawn(self, rng: Rng) -> dict[str, Array]:
        """One sample of the inputs."""
        return {name: sampler(rng) for name, (_, _, sampler) in self.inputs.items()}
