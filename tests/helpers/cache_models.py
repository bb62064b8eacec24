"""Decoders whose caches grow, small ones: Concat(past, new) = present."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from control_models import F, I
from onnx import TensorProto, helper, numpy_helper

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


def genai(path: Path, window: int = -1, layers: int = 2) -> Path:
    """As genai's builder writes a decoder: GroupQueryAttention turns queries and keys by their places, and appends to
    the caches; sums of the mask say where."""
    rng, weights, nodes = np.random.default_rng(2), {}, []
    size = 16  # of a head; each head of keys is for two of queries

    def add(op: str, *inputs: str, **attrs: object) -> str:
        nodes.append(helper.make_node(op, list(inputs), [f"{op.lower()}_{len(nodes)}"], f"n{len(nodes)}", **attrs))
        return str(nodes[-1].output[0])

    def const(name: str, value: object) -> str:
        weights[name] = np.asarray(value)
        return name

    def weight(name: str, *shape: int) -> str:
        return const(name, (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))

    one = const("one", [1])
    sums = add("Sub", add("ReduceSum", "attention_mask", one, keepdims=1), one)
    total = add("Gather", add("Shape", "attention_mask"), const("second", np.int64(1)), axis=0)
    counts = [add("Cast", x, to=TensorProto.INT32) for x in (sums, total)]
    angles = np.outer(np.arange(POSITIONS), 10.0 ** -np.arange(size // 2)).astype(np.float32)
    turns = [const("cos", np.cos(angles)), const("sin", np.sin(angles))]
    x = add("Gather", weight("tokens", VOCABULARY, WIDTH), "input_ids")
    info = helper.make_tensor_value_info
    inputs = [info("input_ids", I, ["batch_size", "sequence_length"])]
    inputs += [info("attention_mask", I, ["batch_size", "total_sequence_length"])]
    outputs = [info("logits", F, ["batch_size", "sequence_length", VOCABULARY])]
    for k in range(layers):
        q = add("MatMul", x, weight(f"{k}.q", WIDTH, 2 * HEADS * size))
        new = [add("MatMul", x, weight(f"{k}.{kind}", WIDTH, HEADS * size)) for kind in ("key", "value")]
        caches = [[f"{side}.{k}.{kind}" for kind in ("key", "value")] for side in ("past_key_values", "present")]
        mixed = helper.make_node(
            "GroupQueryAttention",
            [q, *new, *caches[0], *counts, *turns],
            [f"{k}.mixed", *caches[1]],
            f"attention{k}",
            domain="com.microsoft",
            num_heads=2 * HEADS,
            kv_num_heads=HEADS,
            do_rotary=1,
            local_window_size=window,
        )
        nodes.append(mixed)
        x = add("Add", x, add("MatMul", f"{k}.mixed", weight(f"{k}.o", 2 * HEADS * size, WIDTH)))
        for side, of_side, length in ((inputs, caches[0], "past"), (outputs, caches[1], "total")):
            side += [info(c, F, ["batch_size", HEADS, f"{length}_sequence_length", size]) for c in of_side]
    nodes.append(helper.make_node("MatMul", [x, weight("head", WIDTH, VOCABULARY)], ["logits"]))
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "genai", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path
