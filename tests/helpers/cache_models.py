"""Decoders whose caches grow, small ones: Concat(past, new) = present."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from control_models import F, I
from onnx import helper, numpy_helper

VOCABULARY, WIDTH, HEADS, POSITIONS = 29, 16, 2, 48
STATES = {"past_key_values.*": "present.*"}


def gpt(path: Path, reads_past: bool = False) -> Path:
    """Of GPT-2's kind: its positions and its mask are parts of tables, from the length of the past on. `reads_past`:
    an output is made of the past alone."""
    rng, weights, nodes = np.random.default_rng(1), {}, []

    def add(op: str, *inputs: str, to: str = "", **attrs: object) -> str:
        name = to or f"{op.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [name], f"n{len(nodes)}", **attrs))
        return name

    def const(name: str, value: object) -> str:
        weights[name] = np.asarray(value)
        return name

    def weight(name: str, *shape: int) -> str:
        return const(name, (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    def split(x: str) -> str:
        shape = const("heads", [0, 0, HEADS, WIDTH // HEADS])
        return add("Transpose", add("Reshape", x, shape), perm=[0, 2, 1, 3])

    first, second, third = (const(f"at_{k}", [k]) for k in (1, 2, 3))
    new = add("Slice", add("Shape", "input_ids"), first, second)
    past = add("Slice", add("Shape", "past_key_values.0.key"), second, third)
    total, none = add("Add", past, new), const("none", [0])
    places = add("Range", add("Squeeze", past, none), add("Squeeze", total, none), const("step", np.int64(1)))
    table = const("table", np.tril(np.ones((1, 1, POSITIONS, POSITIONS), bool)))
    seen = add("Slice", add("Slice", table, past, total, second), none, total, third)
    words, rows = weight("tokens", VOCABULARY, WIDTH), weight("places", POSITIONS, WIDTH)
    x = add("Add", add("Gather", words, "input_ids"), add("Gather", rows, places))
    q, k, v = (split(add("MatMul", x, weight(name, WIDTH, WIDTH))) for name in "qkv")
    for kind, one in (("key", k), ("value", v)):
        add("Concat", f"past_key_values.0.{kind}", one, to=f"present.0.{kind}", axis=-2)
    scores = add("MatMul", q, add("Transpose", "present.0.key", perm=[0, 1, 3, 2]))
    masked = add("Where", seen, scores, const("fewest", np.float32(-3e38)))
    mixed = add("MatMul", add("Softmax", masked, axis=-1), "present.0.value")
    flat = add("Reshape", add("Transpose", mixed, perm=[0, 2, 1, 3]), const("flat", [0, 0, WIDTH]))
    add("MatMul", add("Add", x, flat), weight("head", WIDTH, VOCABULARY), to="logits")
    cache = [HEADS, "past_sequence_length", WIDTH // HEADS]
    info = helper.make_tensor_value_info
    inputs = [info("input_ids", I, ["batch_size", "sequence_length"])]
    inputs += [info(f"past_key_values.0.{kind}", F, ["batch_size", *cache]) for kind in ("key", "value")]
    outputs = [info("logits", F, ["batch_size", "sequence_length", VOCABULARY])]
    longer = [HEADS, "past_sequence_length + 1", WIDTH // HEADS]
    outputs += [info(f"present.0.{kind}", F, ["batch_size", *longer]) for kind in ("key", "value")]
    if reads_past:
        add("ReduceMax", "past_key_values.0.key", to="most", keepdims=0)
        outputs.append(info("most", F, []))
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "gpt", inputs, outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
