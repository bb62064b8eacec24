"""Valid models of unusual form, as compiled packages, by the interpreter and by ONNX Runtime."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

import packaged

from modelc.frontend.onnx import import_model
from modelc.layout.program import partition
from modelc.passes import run_passes
from modelc.space.choose import accepted, chosen
from modelc.space.sketches.phases import separate

TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64, "int32": TensorProto.INT32}


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(np.float32)


def model_of(nodes, inputs, outputs, constants=()) -> onnx.ModelProto:
    """A model of these nodes: inputs are arrays by name, constants too; outputs are names."""
    given = [helper.make_tensor_value_info(n, TYPES[x.dtype.name], x.shape) for n, x in inputs.items()]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    held = [numpy_helper.from_array(x, n) for n, x in dict(constants).items()]
    graph = helper.make_graph(nodes, "g", given, results, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def recurrent(op, outputs, time=4, batch=3, inputs=5, hidden=6, lengths=None, **attrs) -> tuple:
    """A recurrent node with constant weights: the model, and what it is fed."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    directions = 2 if attrs.get("direction") == "bidirectional" else 1
    shapes = {"W": (gates * hidden, inputs), "R": (gates * hidden, hidden), "B": (2 * gates * hidden,)}
    weights = {n: floats(directions, *s, seed=k) for k, (n, s) in enumerate(shapes.items())}
    feeds = {"x": floats(time, batch, inputs, seed=4)}
    names = ["x", "W", "R", "B"]
    if lengths is not None:
        feeds["lengths"] = np.asarray(lengths, np.int32)
        names.append("lengths")
    node = helper.make_node(op, names, outputs, hidden_size=hidden, **attrs)
    return model_of([node], feeds, [o for o in outputs if o], weights), feeds


@pytest.mark.parametrize(
    ("op", "outputs", "options"),
    [
        ("LSTM", ["", "h"], {}),  # what a classifier uses
        ("LSTM", ["", "h"], {"batch": 1}),
        ("LSTM", ["", "", "c"], {"direction": "bidirectional"}),
        ("GRU", ["", "h"], {"linear_before_reset": 1}),
        ("RNN", ["y", "h"], {"direction": "reverse"}),
        ("RNN", ["", "h"], {"direction": "bidirectional"}),
        ("LSTM", ["y", "h", "c"], {"time": 1, "inputs": 64, "hidden": 32}),
        ("LSTM", ["y", "h", "c"], {"lengths": [4, 1, 2]}),
        ("LSTM", ["y", "h", "c"], {"lengths": [2, 4, 3], "direction": "bidirectional"}),
        ("GRU", ["", "h"], {"lengths": [3, 1, 4], "direction": "reverse"}),
        ("RNN", ["y", ""], {"lengths": [1, 2, 4], "direction": "reverse"}),
    ],
)
def test_recurrent(tmp_path, op, outputs, options) -> None:
    assert not packaged.check(*recurrent(op, outputs, **options), tmp_path)


def test_recurrent_of_nothing(tmp_path) -> None:
    """A batch of no sequences, at which ONNX Runtime ends the process."""
    assert "signal" in packaged.check(*recurrent("LSTM", ["y", "h"], batch=0), tmp_path)


def test_recurrences_have_no_rows_and_their_first_schedule_is_valid(tmp_path) -> None:
    model, _ = recurrent("LSTM", ["", "h"])
    onnx.save(model, tmp_path / "m.onnx")
    (bound,) = partition(run_passes(import_model(tmp_path / "m.onnx"))).tasks
    task = bound.task.canonical()
    assert chosen(task, packaged.native()).rejected == ()
    assert accepted(task, separate(task, packaged.native())).task == task
