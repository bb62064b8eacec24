"""Random numbers: what is drawn is the operator library's matter (ops/random.py), and what operators make of it is said
in other operators, so that whoever is given the same draws computes the same (surgery.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from modelc.errors import ModelError
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.fold import RANDOM
from modelc.frontend.building.functions import domain_of, operator_sets
from modelc.frontend.building.sizes import whole
from modelc.frontend.operators.form import forms
from modelc.frontend.operators.shapes import no_size
from modelc.ir.graph import RANDOM_STATE, Value

TRAINING_SINCE = 12  # Dropout has an input that says so
LIKE_SINCE = 15  # CastLike is there

Namer = Callable[[str], str]
Spelling = Callable[[onnx.NodeProto, Namer, int], list[onnx.NodeProto]]


def drawn(b: Builder, n: OnnxNode) -> None:
    """A draw: a key of its own, and numbers by it."""
    like = n.op.endswith("Like")
    shape = b.shape(n.inputs[0]) if like else n.attrs["shape"]
    dtype = n.attrs.get("dtype") or (b.value(n.inputs[0]).dtype if like else "float32")
    if RANDOM_STATE not in b.values:
        b.values[RANDOM_STATE] = Value(RANDOM_STATE, "uint64", (2,))
    seed = {"seed": n.attrs["seed"]} if "seed" in n.attrs else {"stream": b.streams}
    b.streams += "seed" not in n.attrs
    key = b.emit(n, "RandomKey", (RANDOM_STATE,), seed)
    kept = {name: n.attrs[name] for name in ("low", "high", "mean", "scale") if name in n.attrs}
    b.emit(n, n.op.removesuffix("Like"), (key,), {**kept, "dtype": dtype, "shape": shape}, n.outputs)


def drawn_alike(b: Builder, n: OnnxNode) -> None:
    """A draw for what has a size that depends on data: as many numbers as there can be, each that of its position."""
    counts = b.sizes.of(n.inputs[0])
    drawn(b, replace(n, inputs=(whole(b, n, n.inputs[0]),)))
    b.sizes.give(n.outputs[0], counts)


def refuse_inner(n: OnnxNode) -> None:
    """Raises ModelError for a draw in a branch, a loop or a function, whose numbers ONNX Runtime could not be given."""
    if n.op in RANDOM:
        raise n.fail(
            "it draws random numbers inside a branch, a loop or a function of the model, where ONNX Runtime cannot be "
            "given the same to compare with; move the node out, or make its numbers an input of the model"
        )


# --- in terms of draws ----------------------------------------------------------------------------------------------


def spelled_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with Bernoulli, Multinomial and Dropout in training mode in terms of draws from [0, 1) and other
    operators; the model itself where it has none of these."""
    graph, version = model.graph, operator_sets(model).get("", 1)
    spelled = [node for node in graph.node if node.op_type in SPELLINGS and domain_of(node) == ""]
    spelled = [node for node in spelled if node.op_type != "Dropout" or _trains(graph, node, version)]
    if not spelled:
        return model
    taken = {x for node in graph.node for x in (*node.input, *node.output)} | {i.name for i in graph.input}

    def fresh(base: str) -> str:
        name = base
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    for node in graph.node:
        if not any(node is replaced for replaced in spelled):
            result.graph.node.append(node)
            continue
        nodes = SPELLINGS[node.op_type](node, fresh, version)
        for k, step in enumerate(nodes):
            step.name = f"{node.name or node.output[0]}/{step.op_type}_{k}"
        result.graph.node.extend(nodes)
    return result


def _trains(graph: onnx.GraphProto, node: onnx.NodeProto, version: int) -> bool:
    """Whether a Dropout is known to be in training mode."""
    if version < TRAINING_SINCE or len(node.input) < 3 or not node.input[2]:
        return False
    tensors = [t for t in graph.initializer if t.name == node.input[2]]
    for producer in graph.node:
        if node.input[2] in producer.output and producer.op_type == "Constant":
            tensors += [a.t for a in producer.attribute if a.name == "value"]
    if not tensors or tensors[0].data_location == TensorProto.EXTERNAL:
        return False
    return bool(numpy_helper.to_array(tensors[0]).any())


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _uniform(node: onnx.NodeProto, like: str, output: str) -> onnx.NodeProto:
    """Numbers in [0, 1) of float32, with the seed of `node`."""
    seed: dict[str, Any] = dict(("seed", a.f) for a in node.attribute if a.name == "seed")
    return helper.make_node("RandomUniformLike", [like], [output], dtype=TensorProto.FLOAT, **seed)


def _constant(data: object, output: str) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [output], value=numpy_helper.from_array(np.asarray(data)))


def _bernoulli(node: onnx.NodeProto, fresh: Namer, version: int) -> list[onnx.NodeProto]:
    (x,), (y,) = node.input, node.output
    u, p, hit = (fresh(f"{y}:{what}") for what in ("uniform", "probability", "hit"))
    dtype = _attribute(node, "dtype", 0)
    last = helper.make_node("Cast", [hit], [y], to=dtype) if dtype else helper.make_node("CastLike", [hit, x], [y])
    return [
        _uniform(node, x, u),
        helper.make_node("Cast", [x], [p], to=TensorProto.FLOAT),
        helper.make_node("Less", [u, p], [hit]),
        last,
    ]


def _multinomial(node: onnx.NodeProto, fresh: Namer, version: int) -> list[onnx.NodeProto]:
    """The class of the greatest logarithm of its probability plus Gumbel noise, for each sample."""
    (x,), (y,) = node.input, node.output
    steps = ("rows", "samples", "one", "spread", "logits", "uniform", "log", "negative", "loglog", "noisy", "class")
    rows, samples, column, spread, logits, u, log, negative, loglog, noisy, chosen = (fresh(f"{y}:{s}") for s in steps)
    count = _attribute(node, "sample_size", 1)
    axes: dict[str, Any] = {} if version >= 13 else {"axes": [1]}  # an input, or an attribute
    return [
        _constant(np.array([1], np.int64), rows),
        _constant(np.array([1, count, 1], np.int64), samples),
        helper.make_node("Unsqueeze", [x] if axes else [x, rows], [column], **axes),
        helper.make_node("Expand", [column, samples], [spread]),
        helper.make_node("Cast", [spread], [logits], to=TensorProto.FLOAT),
        _uniform(node, logits, u),
        helper.make_node("Log", [u], [log]),
        helper.make_node("Neg", [log], [negative]),
        helper.make_node("Log", [negative], [loglog]),
        helper.make_node("Sub", [logits, loglog], [noisy]),
        helper.make_node("ArgMax", [noisy], [chosen], axis=2, keepdims=0),
        helper.make_node("Cast", [chosen], [y], to=_attribute(node, "dtype", TensorProto.INT32)),
    ]


def _dropout(node: onnx.NodeProto, fresh: Namer, version: int) -> list[onnx.NodeProto]:
    if version < LIKE_SINCE:
        name = node.name or node.output[0]
        raise ModelError(
            f"node {name!r} (Dropout): dropout in training mode is taken from operator set {LIKE_SINCE} on, found "
            f"{version}; convert the model, or export it for inference"
        )
    x, y = node.input[0], node.output[0]
    steps = ("uniform", "ratio", "one", "rest", "gain", "zero", "factor", "like")
    u, ratio, unit, kept_share, gain, zero, factor, like = (fresh(f"{y}:{s}") for s in steps)
    mask = node.output[1] if len(node.output) > 1 and node.output[1] else fresh(f"{y}:mask")
    given = node.input[1]
    return [
        _uniform(node, x, u),
        helper.make_node("Cast", [given], [ratio], to=TensorProto.FLOAT)
        if given
        else _constant(np.float32(0.5), ratio),
        _constant(np.float32(1), unit),
        _constant(np.float32(0), zero),
        helper.make_node("GreaterOrEqual", [u, ratio], [mask]),
        helper.make_node("Sub", [unit, ratio], [kept_share]),
        helper.make_node("Div", [unit, kept_share], [gain]),
        helper.make_node("Where", [mask, gain, zero], [factor]),
        helper.make_node("CastLike", [factor, x], [like]),
        helper.make_node("Mul", [x, like], [y]),
    ]


SPELLINGS: Mapping[str, Spelling] = {"Bernoulli": _bernoulli, "Multinomial": _multinomial, "Dropout": _dropout}
FORMS = (
    *forms("RandomNormal RandomUniform", drawn, no_size),
    *forms("RandomNormalLike RandomUniformLike", drawn, drawn_alike),
)
