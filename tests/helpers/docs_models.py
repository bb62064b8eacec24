"""The small models that the commands in README.md and docs/*.md name: MODEL.onnx and others, in the folder where a
page's commands are run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import quantized_models
from onnx import helper
from onnx.parser import parse_model
from small_model import save
from small_network import write_small_network

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
TEXTS = {
    "TEXT": """text (int64[batch, seq] ids, int64[batch, seq] mask) => (float[batch, seq] scores)
        <int64[1] axis = {1}, float one = {1}>
        {
            number = Cast <to: int = 1> (ids)
            shown = Cast <to: int = 1> (mask)
            kept = Mul (number, shown)
            total = ReduceSum <keepdims: int = 1> (kept, axis)
            some = ReduceSum <keepdims: int = 1> (shown, axis)
            count = Max (some, one)
            mean = Div (total, count)
            centred = Sub (kept, mean)
            scores = Mul (centred, shown)
        }""",
    "STATE": """adder (float[1, 4] x, float[1] past) => (float[1] sum, float[1] present)
        <int64[1] axis = {1}>
        {
            added = ReduceSum <keepdims: int = 0> (x, axis)
            sum = Add (past, added)
            present = Identity (sum)
        }""",
    "RANGE": """counted (int64 longest) => (int64[n] positions)
        <int64 zero = {0}, int64 one = {1}>
        { positions = Range (zero, longest, one) }""",
    "FAILING": """failing (float[4] x) => (float[4] y)
        {
            kept = Relu (x)
            text = Cast <to: int = 8> (kept)
            y = Cast <to: int = 1> (text)
        }""",
    "BRANCH": """branching (bool doubled, float[2, 4] x) => (float[2, 4] y)
        {
            y = If (doubled) <
                then_branch = twice () => (float[2, 4] a) { a = Add (x, x) },
                else_branch = square () => (float[2, 4] b) { b = Mul (x, x) }
            >
        }""",
}

MATRIX = """schema: 1
targets: [x86-64-v3, cortex-a76]
models:
  MODEL: {path: MODEL.onnx}
  TEXT: {path: TEXT.onnx, dims: {batch: 1, seq: 1..16}}
"""


def write_models(folder: Path) -> None:
    """MODEL.onnx, the others, F.npz, which has an input of MODEL.onnx, and modelc.yaml, which is of two of them."""
    write_small_network(folder / "MODEL.onnx")
    for name, text in TEXTS.items():
        onnx.save(parse_model(HEAD + text), folder / f"{name}.onnx")
    quantized_models.conv_net(folder / "INT8.onnx")
    weights = {"w": np.random.default_rng(1).standard_normal((128, 64)).astype(np.float32)}
    save(
        folder / "DECODER.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [1, 128]},
        {"y": [1, 64]},
        weights,
    )
    image = np.random.default_rng(0).standard_normal((1, 3, 32, 32)).astype(np.float32)
    np.savez(folder / "F.npz", input=image)
    (folder / "modelc.yaml").write_text(MATRIX)
