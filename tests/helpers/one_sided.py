"""A network one of whose layers has weights of one sign: symmetric bytes leave half of their numbers unused there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
from onnx import numpy_helper

CHANNELS, SIZE = 32, 8
LAYERS = ("first", "second", "third")  # of which the second is one-sided
MODEL = f"""<ir_version: 8, opset_import: ["" : 17]>
one_sided (float[1, {CHANNELS}, {SIZE}, {SIZE}] x) => (float[1, {CHANNELS}, {SIZE}, {SIZE}] y)
{{
    [first] a = Conv (x, w1, b1)
    b = Tanh (a)
    [second] c = Conv <pads = [1, 1, 1, 1]> (b, w2, b2)
    d = Tanh (c)
    [third] y = Conv (d, w3)
}}"""


def one_sided(path: Path) -> Path:
    """Writes the network. Of each channel of the second layer one weight is much larger than the others."""
    rng = np.random.default_rng(11)
    weights = {name: rng.normal(0, 0.2, (CHANNELS, CHANNELS, 1, 1)) for name in ("w1", "w3")}
    weights |= {name: rng.normal(0, 0.1, CHANNELS) for name in ("b1", "b2")}
    second = rng.uniform(0, 1, (CHANNELS, CHANNELS * 9))
    second[np.arange(CHANNELS), rng.integers(0, CHANNELS * 9, CHANNELS)] = 10
    weights["w2"] = 0.05 * second.reshape(CHANNELS, CHANNELS, 3, 3) * rng.choice([-1, 1], (CHANNELS, 1, 1, 1))
    model = onnx.parser.parse_model(MODEL)
    for name, numbers in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(numbers.astype(np.float32), name))
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def samples(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, CHANNELS, SIZE, SIZE)).astype(np.float32)
