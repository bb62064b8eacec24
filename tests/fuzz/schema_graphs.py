"""Valid random models, from a seed, drawn from what ONNX says of its operators (onnx.defs) at operator sets 7 to 22.

An operator is any that the set has; its inputs, outputs, attributes and dtypes are those of its schema. What a schema
does not say, which shapes go together, is drawn by the names of parameters and attributes until ONNX Runtime runs the
whole. So nothing here knows what modelc takes. A node of which a rounding upstream makes something else is drawn again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.defs import OpSchema
from random_draft import Array, blurred, harmless

OPSETS = range(7, 23)
DTYPES = {
    **{f"tensor({np.dtype(d)})": np.dtype(d) for d in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")},
    **{f"tensor({name})": np.dtype(name) for name in ("uint64", "float16", "bool", "double")},
    "tensor(float)": np.dtype(np.float32),
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16),
}
UNFED = "bfloat16"  # which ONNX Runtime's Python takes no arrays of: only nodes make such values
NOT_DRAWN = ("Random", "Bernoulli", "Multinomial", "Dropout", "Optional")  # random numbers, and what is no tensor
ATTEMPTS = 25  # to find inputs and attributes that go together
STEERING = frozenset(
    [
        "shape",
        "axes",
        "axis",
        "pads",
        "starts",
        "ends",
        "steps",
        "repeats",
        "split",
        "k",
        "K",
        "sizes",
        "scales",
        "roi",
        "size",
        "dft_length",
        "frame_length",
        "frame_step",
        "depth",
        "min",
        "max",
        "sequence_lens",
        "start",
        "limit",
        "delta",
        "constant_value",
        "ratio",
    ]
)
Option = OpSchema.FormalParameterOption


@cache
def schemas(version: int) -> tuple[OpSchema, ...]:
    """The operators of the set that make tensors of tensors alone, and always the same."""
    latest: dict[str, OpSchema] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= version:
            latest[schema.name] = max(latest.get(schema.name, schema), schema, key=lambda s: s.since_version)
    return tuple(s for _, s in sorted(latest.items()) if not s.deprecated and _is_drawn(s))


def _is_drawn(schema: OpSchema) -> bool:
    kinds = [a.type for a in schema.attributes.values()]
    graphs = any(kind in (OpSchema.AttrType.GRAPH, OpSchema.AttrType.GRAPHS) for kind in kinds)
    tensors = all(
        DTYPES.keys() & set(p.types) for p in (*schema.inputs, *schema.outputs) if p.option != Option.Optional
    )
    return tensors and not graphs and not schema.name.startswith(NOT_DRAWN)


@dataclass
class Drawn:
    """A model in the making: what it is fed, what it holds, what its nodes make; `values` are all of these."""

    rng: np.random.Generator
    version: int
    extents: tuple[int, ...]
    feeds: dict[str, Array] = field(default_factory=dict)
    held: dict[str, Array] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    values: dict[str, Array] = field(default_factory=dict)
    count: int = 0

    # --- small draws ----------------------------------------------------------------------------------------------

    def fresh(self, word: str) -> str:
        self.count += 1
        return f"{word}{self.count}"

    def pick(self, options: Sequence[Any]) -> Any:
        return options[int(self.rng.integers(len(options)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def between(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def shape(self, rank: int) -> tuple[int, ...]:
        return tuple(int(self.pick(self.extents)) for _ in range(rank))

    def array(self, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
        if dtype.kind == "b":
            return self.rng.integers(0, 2, shape).astype(bool)
        if dtype.kind in "iu":
            return self.rng.integers(0 if dtype.kind == "u" or self.chance(0.5) else -4, 5, shape).astype(dtype)
        numbers = self.rng.standard_normal(shape) * self.pick((0.5, 1.0, 3.0))
        return np.asarray(np.abs(numbers) if self.chance(0.2) else numbers).astype(dtype)


# --- parameters -------------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """One node while it is drawn: what its operator reads, in order, with what is new among it."""

    graph: Drawn
    schema: OpSchema
    kinds: dict[str, np.dtype[Any]]  # of type parameters
    attrs: dict[str, Any] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    arrays: list[Array | None] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)
    held: dict[str, Array] = field(default_factory=dict)
    length: int = 1  # of lists that go with each other

    @property
    def first(self) -> Array:
        return next((x for x in self.arrays if x is not None), np.zeros(()))

    def kind(self, parameter: OpSchema.FormalParameter) -> np.dtype[Any]:
        """The dtype of a parameter: one for all that share its type's name."""
        options = [DTYPES[t] for t in sorted(parameter.types) if t in DTYPES]
        if not parameter.is_homogeneous:
            return self.graph.pick(options)
        return self.kinds.setdefault(parameter.type_str, self.graph.pick(options))

    def read(self, parameter: OpSchema.FormalParameter) -> None:
        """One more input: a value that is there, or a new one."""
        kind = self.kind(parameter)
        there = [name for name, x in self.graph.values.items() if x.dtype == kind]
        if there and parameter.name not in STEERING and self.graph.chance(0.7):
            self.add(self.graph.pick(there), None)
        elif kind.name == UNFED:
            self.add(self.graph.pick(there) if there else "", None)
        else:
            array = (
                steering(self, parameter.name, kind) if parameter.name in STEERING else data(self, parameter.name, kind)
            )
            self.add("", np.asarray(array).astype(kind), parameter.name in STEERING or self.graph.chance(0.3))

    def add(self, name: str, array: Array | None, holds: bool = False) -> None:
        if array is not None:
            name = self.graph.fresh("c" if holds else "x")
            (self.held if holds else self.feeds)[name] = array
        self.inputs.append(name)
        self.arrays.append(array if array is not None else self.graph.values.get(name))


def data(call: Call, name: str, kind: np.dtype[Any]) -> Array:
    """A new operand, whose shape may go with that of the first."""
    graph, first = call.graph, call.first.shape
    if not call.arrays:
        return graph.array(kind, graph.shape(graph.pick((0, 1, 2, 2, 3, 3, 4, 4, 5))))
    if name.lower() in ("indices", "index", "ind") and kind.kind in "iu":
        extent = max(1, min(first, default=1))
        shape = graph.pick((first, graph.shape(1), (*graph.shape(1), graph.between(1, max(1, len(first)))), ()))
        return graph.rng.integers(-extent if kind.kind == "i" else 0, extent, shape)
    channels = first[1] if len(first) > 1 else 1
    kernel = tuple(graph.between(1, 3) for _ in first[2:])
    shapes = [
        first,
        first,
        tuple(n if graph.chance(0.6) else 1 for n in first[graph.between(0, len(first)) :]),
        (channels,),
        (first[-1:] or (1,)),
        (),
        (graph.pick(graph.extents), channels, *kernel),
        (channels, graph.pick(graph.extents), *kernel),
        (channels, 1, *kernel),
        (*first[:-2], *(first[-1:] or (1,)), graph.pick(graph.extents)),
        graph.shape(graph.between(0, 4)),
    ]
    return graph.array(kind, graph.pick(shapes))


def steering(call: Call, name: str, kind: np.dtype[Any]) -> Any:
    """What decides shapes, by the parameter's name."""
    graph, shape = call.graph, call.first.shape
    rank = len(shape)
    if name in ("axes", "axis"):
        chosen = graph.rng.permutation(max(rank, 1))[: graph.between(0 if name == "axes" else 1, max(rank, 1))]
        axes = [int(a) - (rank if graph.chance(0.5) else 0) for a in chosen]
        if name == "axis":
            return axes[0] if graph.chance(0.5) else axes[:1]
        return axes[: call.length] if "starts" in [p.name for p in call.schema.inputs] else axes
    if name == "shape":
        grouped = [prod(shape[:1]), prod(shape[1:])] if rank else [1]
        wider = [n if n != 1 else graph.pick(graph.extents) for n in shape]
        return graph.pick(
            ([-1], grouped, [*grouped, 1], list(shape[::-1]), wider, [2, *wider], list(graph.shape(2)), [])
        )
    if name in ("starts", "ends", "steps"):
        call.length = graph.between(1, max(rank, 1)) if name == "starts" else call.length
        numbers = {"starts": (-9, -2, 0, 0, 1, 9), "ends": (-9, -1, 1, 2, 9, 2**40), "steps": (-2, -1, 1, 1, 2)}[name]
        return [int(graph.pick(numbers)) for _ in range(call.length)]
    if name == "split":
        extent = shape[int(call.attrs.get("axis", 0)) % rank] if rank else 1
        first = graph.between(0, extent)
        return graph.pick(([first, extent - first], [extent]))
    if name in ("repeats", "sizes"):
        return [graph.between(0 if name == "repeats" else 1, 4) for _ in range(rank)]
    if name == "pads":
        return [graph.pick((-1, 0, 0, 1, 2)) for _ in range(2 * rank)]
    if name == "scales":
        return [graph.pick((1.0, 1.0, 0.5, 2.0, 1.5)) for _ in range(rank)]
    if name == "roi":
        return [0.0] * rank + [1.0] * rank
    if name in ("k", "K"):
        return [graph.between(0, 3)]
    number = graph.array(kind, ())
    return number if graph.chance(0.7) else number.reshape(1)


# --- attributes -------------------------------------------------------------------------------------------------------


def attributes(call: Call) -> dict[str, Any]:
    """Optional ones are left out, at their defaults, or something else."""
    drawn: dict[str, Any] = {}
    for name, attribute in sorted(call.schema.attributes.items()):
        default = attribute.default_value
        has_default = default.type != onnx.AttributeProto.UNDEFINED
        if not attribute.required and call.graph.chance(0.5):
            continue
        if has_default and call.graph.chance(0.4):
            drawn[name] = helper.get_attribute_value(default)
        else:
            value = attribute_value(call, name, attribute, helper.get_attribute_value(default) if has_default else None)
            drawn |= {} if value is None else {name: value}
    return drawn


def attribute_value(call: Call, name: str, attribute: Any, default: Any) -> Any:
    graph, kind = call.graph, attribute.type
    rank = len(call.first.shape) or graph.between(1, 4)
    space = max(rank - 2, 1)
    if kind == OpSchema.AttrType.INT:
        if name in ("to", "dtype", "output_dtype", "softmax_precision", "stash_type"):
            return helper.np_dtype_to_tensor_dtype(graph.pick(list(DTYPES.values())))
        return (
            graph.between(-rank, rank)
            if "axis" in name or name == "batch_dims"
            else graph.pick((0, 1) if default in (0, 1) else (0, 1, 1, 2, 3))
        )
    if kind == OpSchema.AttrType.INTS:
        if name == "perm":
            return [int(k) for k in graph.rng.permutation(rank)]
        if name == "axes":
            return [
                int(k) - (rank if graph.chance(0.4) else 0)
                for k in graph.rng.permutation(rank)[: graph.between(1, rank)]
            ]
        if name in ("pads", "output_padding"):
            return [
                graph.pick((0, 0, 1)) for _ in range(2 * graph.pick((space, space, rank)) if name == "pads" else space)
            ]
        return [graph.between(1, 3 if "shape" in name else 2) for _ in range(graph.pick((space, space, rank)))]
    if kind == OpSchema.AttrType.FLOAT:
        return float(np.float32(graph.pick((0.0, 0.25, 0.5, 1.0, 1.5, 2.0))))
    if kind == OpSchema.AttrType.FLOATS:
        return [float(np.float32(graph.pick((0.25, 0.5, 1.0)))) for _ in range(graph.between(1, 3))]
    if kind == OpSchema.AttrType.STRING and name != "value_string":
        said = [w for w in re.findall(r"['\"`]([A-Za-z_]+)['\"`]", attribute.description) if len(w) > 1]
        return graph.pick([*said, *([default.decode()] if default else []), "constant"])
    if kind == OpSchema.AttrType.TENSOR:
        options = [d for d in DTYPES.values() if d.name != UNFED]
        return numpy_helper.from_array(graph.array(graph.pick(options), graph.pick(((1,), (1,), (2, 2), ()))))
    return None


# --- nodes ------------------------------------------------------------------------------------------------------------


def draw_call(graph: Drawn, schema: OpSchema) -> tuple[Call, onnx.NodeProto]:
    call = Call(graph, schema, {})
    formals = [p for p in schema.inputs]
    if formals:
        call.read(formals[0])
    call.attrs = attributes(call)
    for parameter in formals[1:]:
        if parameter.option == Option.Optional and graph.chance(0.4):
            call.add("", None)
        else:
            call.read(parameter)
    if formals and formals[-1].option == Option.Variadic:
        for _ in range(graph.between(0, 2)):
            call.read(formals[-1])
    inputs = list(call.inputs)
    while inputs and not inputs[-1]:
        inputs.pop()
    outputs = []
    for parameter in schema.outputs:
        more = graph.between(1, 3) if parameter.option == Option.Variadic else 1
        outputs += [
            graph.fresh("y") if parameter.option != Option.Optional or graph.chance(0.5) else "" for _ in range(more)
        ]
    while len(outputs) > 1 and not outputs[-1]:
        outputs.pop()
    return call, helper.make_node(schema.name, inputs, outputs, name=graph.fresh("n"), **call.attrs)


def take(graph: Drawn, call: Call, node: onnx.NodeProto) -> bool:
    """Appends the node, if ONNX Runtime computes the whole with it and its results are harmless."""
    larger = Drawn(
        graph.rng, graph.version, graph.extents, graph.feeds | call.feeds, graph.held | call.held, [*graph.nodes, node]
    )
    made = [name for name in node.output if name]
    model = model_of(larger, made)
    try:
        onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)
        session = session_of(model)
        results = session.run(made, larger.feeds)
        others = session.run(made, {name: blurred(graph.rng, x) for name, x in larger.feeds.items()})
    except Exception:  # ONNX Runtime's refusals are of many types; another node is drawn
        return False
    arrays = [as_made(x, session, k) for k, x in enumerate(results)]
    alike = [as_made(x, session, k) for k, x in enumerate(others)]
    if not made or not all(harmless(plain(a), plain(b)) for a, b in zip(arrays, alike, strict=True)):
        return False
    graph.feeds, graph.held, graph.nodes = larger.feeds, larger.held, larger.nodes
    graph.values |= call.feeds | call.held | dict(zip(made, arrays, strict=True))
    return True


def as_made(array: Array, session: onnxruntime.InferenceSession, k: int) -> Array:
    """ONNX Runtime gives bfloat16 as plain bytes."""
    return array.view(ml_dtypes.bfloat16) if session.get_outputs()[k].type == "tensor(bfloat16)" else array


def plain(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.name == UNFED else array


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def model_of(graph: Drawn, outputs: Sequence[str]) -> onnx.ModelProto:
    proto = helper.make_graph(
        graph.nodes,
        "schemas",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in graph.feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(x, name) for name, x in graph.held.items()],
    )
    sets = [helper.make_opsetid("", graph.version)]
    return helper.make_model(proto, opset_imports=sets, ir_version=max(4, helper.find_min_ir_version_for(sets)))


def draw(seed: Sequence[int], most_nodes: int = 6) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """(the model, its inputs); its outputs are what its nodes make and no other reads. ONNX Runtime may end the process
    over what is tried."""
    rng = np.random.default_rng(seed)
    extents = tuple(int(n) for n in rng.choice([1, 2, 3, 4, 5, 8], 3)) + ((0,) if rng.random() < 0.15 else ())
    graph = Drawn(rng, int(rng.choice(OPSETS)), extents)
    wanted = graph.between(1, most_nodes)
    while len(graph.nodes) < wanted:
        _grow(graph)
    read = {name for node in graph.nodes for name in node.input}
    outputs = [name for node in graph.nodes for name in node.output if name and name not in read]
    model = model_of(graph, outputs)
    del model.graph.output[:]
    model.graph.output.extend(
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in graph.values.items()
        if n in outputs
    )
    return model, graph.feeds


def _grow(graph: Drawn) -> None:
    schema = graph.pick(schemas(graph.version))
    for _ in range(ATTEMPTS):
        if take(graph, *draw_call(graph, schema)):
            return
