"""A decoder that keeps its own KV cache: `python examples/generate.py`.

The model takes one token and its position. Its cache has a fixed capacity: keys and values of the token are put in
place by position, and what lies beyond is not looked at. The package keeps the cache from run to run (`states`), so
that nothing but the token goes in and the logits come out; ONNX Runtime is given the same cache by hand. The weights
are random: what is generated means nothing, and has to be the same tokens.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import modelc

VOCABULARY, WIDTH, HEADS, LAYERS, CAPACITY = 96, 32, 2, 2, 24
CACHE = [1, HEADS, CAPACITY, WIDTH // HEADS]
STATES = {f"past_{kind}_{layer}": f"present_{kind}_{layer}" for layer in range(LAYERS) for kind in ("k", "v")}


def decoder(path: Path) -> Path:
    """Writes the model: tokens of a vocabulary, attention over the cache, a feed-forward part, logits."""
    rng, nodes, weights = np.random.default_rng(0), [], {}

    def add(op: str, *inputs: str, **attrs: object) -> str:
        name = f"{op.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        weights[name] = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        return name

    def split(x: str) -> str:
        return add("Reshape", x, "one_token")

    embedding, places = weight(VOCABULARY, WIDTH), weight(CAPACITY, WIDTH)
    weights[embedding] *= 8
    weights[places] *= 8
    x = add("Add", add("Gather", embedding, "token"), add("Gather", places, "position"))
    here = add("Equal", "places", "position")
    unseen = add("Where", add("Greater", "places", "position"), "minus", "zero")
    seen = add("Reshape", unseen, "row")
    for layer in range(LAYERS):
        q, k, v = (split(add("MatMul", x, weight(WIDTH, WIDTH))) for _ in range(3))
        column = add("Reshape", here, "column")
        for kind, new in (("k", k), ("v", v)):
            nodes.append(helper.make_node("Where", [column, new, f"past_{kind}_{layer}"], [f"present_{kind}_{layer}"]))
        scores = add("MatMul", q, add("Transpose", f"present_k_{layer}", perm=(0, 1, 3, 2)))
        shares = add("Softmax", add("Add", add("Mul", scores, "scale"), seen), axis=-1)
        mixed = add("Reshape", add("MatMul", shares, f"present_v_{layer}"), "flat")
        x = add("Add", x, add("MatMul", mixed, weight(WIDTH, WIDTH)))
        inner = add("Relu", add("MatMul", x, weight(WIDTH, 4 * WIDTH)))
        x = add("Add", x, add("MatMul", inner, weight(4 * WIDTH, WIDTH)))
    nodes.append(helper.make_node("MatMul", [x, weight(WIDTH, VOCABULARY)], ["logits"]))
    weights |= {
        "places": np.arange(CAPACITY),
        "one_token": np.array([1, HEADS, 1, WIDTH // HEADS]),
        "flat": np.array([1, WIDTH]),
        "row": np.array([1, 1, 1, CAPACITY]),
        "column": np.array([1, 1, CAPACITY, 1]),
        "scale": np.float32(1 / np.sqrt(WIDTH // HEADS)),
        "minus": np.float32(-1e9),
        "zero": np.float32(0),
    }
    value = helper.make_tensor_value_info
    inputs = [value(name, TensorProto.INT64, [1]) for name in ("token", "position")]
    inputs += [value(name, TensorProto.FLOAT, CACHE) for name in STATES]
    outputs = [value("logits", TensorProto.FLOAT, [1, VOCABULARY])]
    outputs += [value(name, TensorProto.FLOAT, CACHE) for name in STATES.values()]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "decoder", inputs, outputs, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def generated(model: modelc.Model, token: int, count: int) -> list[int]:
    """So many tokens after the first, each the likeliest; the model keeps what came before."""
    model.reset()
    tokens = [token]
    for position in range(count):
        found = model.run({"token": np.array(tokens[-1:]), "position": np.array([position])})
        tokens.append(int(found["logits"].argmax()))
    return tokens


def generated_by_hand(session: ort.InferenceSession, token: int, count: int) -> list[int]:
    """The same by ONNX Runtime, which is handed the cache each time."""
    tokens, cache = [token], {name: np.zeros(CACHE, np.float32) for name in STATES}
    for position in range(count):
        fed = {"token": np.array(tokens[-1:]), "position": np.array([position]), **cache}
        logits, *present = session.run(["logits", *STATES.values()], fed)
        cache = dict(zip(STATES, present, strict=True))
        tokens.append(int(logits.argmax()))
    return tokens


def main() -> int:
    with TemporaryDirectory() as folder:
        path = decoder(Path(folder) / "decoder.onnx")
        modelc.compile(path, output=Path(folder) / "decoder.modelc", states=STATES)
        session = ort.InferenceSession(str(path))
        with modelc.load(Path(folder) / "decoder.modelc") as model:
            for token in (1, 42):
                ours, theirs = generated(model, token, CAPACITY), generated_by_hand(session, token, CAPACITY)
                print(*ours, "as ONNX Runtime" if ours == theirs else f"but ONNX Runtime: {theirs}")
                if ours != theirs:
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
