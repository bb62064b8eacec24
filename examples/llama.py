"""A decoder of Llama's kind as an ONNX model, with the inputs and outputs that optimum gives one:

    input_ids, attention_mask, position_ids, past_key_values.N.key and .value   ->   logits, present.N.key and .value

Each layer appends the keys and values of the new tokens to those of the past: Concat(past, new) = present.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
FEWEST = -1e9  # what is added to the score of a token that is not looked at


@dataclass(frozen=True)
class Sizes:
    """Of a decoder: `heads` of queries share `kv_heads` of keys and values; it knows `positions` of tokens."""

    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    positions: int
    rope_base: float = 10000.0
    epsilon: float = 1e-5

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights by name: matrices as they are multiplied from the right."""
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.vocabulary, self.width), "norm": (self.width,)}
        for k in range(self.layers):
            columns = {"q": self.width, "k": self.kv_heads * self.head, "v": self.kv_heads * self.head, "o": self.width}
            shapes |= {f"{k}.{name}": (self.width, n) for name, n in columns.items()}
            shapes |= {f"{k}.{name}": (self.width, self.inner) for name in ("gate", "up")}
            shapes |= {f"{k}.down": (self.inner, self.width)}
            shapes |= {f"{k}.{name}": (self.width,) for name in ("before_attention", "before_inner")}
        return shapes


def random_weights(sizes: Sizes, seed: int = 0) -> Callable[[str], Array]:
    """Weights of no meaning, large enough for tokens that do not repeat soon."""
    rng = np.random.default_rng(seed)
    weights = {n: (2 / np.sqrt(s[0]) * rng.standard_normal(s)).astype(np.float32) for n, s in sizes.shapes.items()}
    weights |= {n: np.ones(s, np.float32) for n, s in sizes.shapes.items() if len(s) == 1}
    return weights.__getitem__


def rotations(sizes: Sizes) -> tuple[Array, Array]:
    """Cosines and sines of every position, for both halves of a head."""
    frequencies = sizes.rope_base ** (-np.arange(0, sizes.head, 2) / sizes.head)
    angles = np.outer(np.arange(sizes.positions), np.concatenate([frequencies, frequencies]))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def decoder(path: Path, sizes: Sizes, weight: Callable[[str], Array]) -> Path:
    """Writes the model, with weights that it is given by name."""
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {}

    def add(op: str, *inputs: str, to: str = "", **attrs: Any) -> str:
        name = to or f"{op.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [name], f"n{len(nodes)}", **attrs))
        return name

    def const(name: str, array: Any) -> str:
        constants[name] = np.asarray(array)
        return name

    def normed(x: str, name: str) -> str:
        mean = add("ReduceMean", add("Mul", x, x), axes=[-1], keepdims=1)
        root = add("Sqrt", add("Add", mean, const("epsilon", np.float32(sizes.epsilon))))
        return add("Mul", add("Div", x, root), const(name, weight(name)))

    def times(x: str, name: str) -> str:
        return add("MatMul", x, const(name, weight(name)))

    def split(x: str, heads: int) -> str:
        return add("Transpose", add("Reshape", x, const(f"as_{heads}", [0, 0, heads, sizes.head])), perm=[0, 2, 1, 3])

    def turned(x: str) -> str:
        """Rotated by its position."""
        first, second = (const(f"half_{k}", [k * sizes.head // 2]) for k in range(2))
        end, axis = const("end", [sizes.head]), const("last", [-1])
        swapped = add(
            "Concat", add("Neg", add("Slice", x, second, end, axis)), add("Slice", x, first, second, axis), axis=-1
        )
        return add("Add", add("Mul", x, cos), add("Mul", swapped, sin))

    def for_each_head(x: str) -> str:
        """Keys or values of a head for all heads of queries that share it."""
        if sizes.heads == sizes.kv_heads:
            return x
        many = const("many", [1, 1, sizes.heads // sizes.kv_heads, 1, 1])
        shape = add("Concat", batch, const("all_heads", [sizes.heads]), total, const("head", [sizes.head]), axis=0)
        repeated = add("Expand", add("Unsqueeze", x, const("two", [2])), many)
        return add("Reshape", repeated, shape)

    batch = add("Slice", add("Shape", "input_ids"), const("zero", [0]), const("one", [1]))
    total = add("Slice", add("Shape", "attention_mask"), const("one", [1]), const("two", [2]))
    cosines, sines = rotations(sizes)
    cos = add("Unsqueeze", add("Gather", const("cosines", cosines), "position_ids"), "one")
    sin = add("Unsqueeze", add("Gather", const("sines", sines), "position_ids"), "one")
    length = add("Squeeze", total, "zero")
    places = add("Range", const("from", np.int64(0)), length, const("step", np.int64(1)))
    later = add("Greater", places, add("Unsqueeze", "position_ids", const("at_end", [1, 3])))
    masked = add("Equal", add("Unsqueeze", "attention_mask", const("inside", [1, 2])), const("masked", np.int64(0)))
    unseen = add("Where", add("Or", later, masked), const("fewest", np.float32(FEWEST)), const("none", np.float32(0)))

    caches: list[tuple[str, str]] = []
    x = add("Gather", const("embedding", weight("embedding")), "input_ids")
    for k in range(sizes.layers):
        n = normed(x, f"{k}.before_attention")
        q = turned(split(times(n, f"{k}.q"), sizes.heads))
        new = {
            "key": turned(split(times(n, f"{k}.k"), sizes.kv_heads)),
            "value": split(times(n, f"{k}.v"), sizes.kv_heads),
        }
        for kind, one in new.items():
            caches.append((f"past_key_values.{k}.{kind}", f"present.{k}.{kind}"))
            add("Concat", caches[-1][0], one, to=caches[-1][1], axis=2)
        keys, values = (for_each_head(f"present.{k}.{kind}") for kind in new)
        scores = add("MatMul", q, add("Transpose", keys, perm=[0, 1, 3, 2]))
        scaled = add("Mul", scores, const("scale", np.float32(1 / np.sqrt(sizes.head))))
        mixed = add("MatMul", add("Softmax", add("Add", scaled, unseen), axis=-1), values)
        flat = add("Reshape", add("Transpose", mixed, perm=[0, 2, 1, 3]), const("flat", [0, 0, sizes.width]))
        x = add("Add", x, times(flat, f"{k}.o"))
        n = normed(x, f"{k}.before_inner")
        gate = times(n, f"{k}.gate")
        x = add("Add", x, times(add("Mul", add("Mul", gate, add("Sigmoid", gate)), times(n, f"{k}.up")), f"{k}.down"))
    add("MatMul", normed(x, "norm"), add("Transpose", "embedding", perm=[1, 0]), to="logits")

    value, b, s, p = helper.make_tensor_value_info, "batch_size", "sequence_length", "past_sequence_length"
    t = f"{p} + {s}"
    inputs = [
        value(n, TensorProto.INT64, [b, d]) for n, d in (("input_ids", s), ("attention_mask", t), ("position_ids", s))
    ]
    inputs += [value(past, TensorProto.FLOAT, [b, sizes.kv_heads, p, sizes.head]) for past, _ in caches]
    outputs = [value("logits", TensorProto.FLOAT, [b, s, sizes.vocabulary])]
    outputs += [value(present, TensorProto.FLOAT, [b, sizes.kv_heads, t, sizes.head]) for _, present in caches]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
