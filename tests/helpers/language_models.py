"""Models whose runs have to say shapes, for programs in all languages; and what such a program prints for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

import modelc
from modelc.runtime import load

F, I = TensorProto.FLOAT, TensorProto.INT64
INFO = helper.make_tensor_value_info


def changing(path: Path) -> Path:
    """Of x [n, m] of 16 elements: each times its place, from 1 on; places [2, ?], the indices of what is above 0;
    total, the sum of all runs; noise, drawn."""
    nodes = [
        helper.make_node("Reshape", ["x", "all"], ["flat"]),
        helper.make_node("Mul", ["flat", "weights"], ["weighted"]),
        helper.make_node("Greater", ["x", "zero"], ["above"]),
        helper.make_node("NonZero", ["above"], ["places"]),
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Add", ["sum", "before"], ["total"]),
        helper.make_node("Identity", ["total"], ["after"]),
        helper.make_node("RandomUniform", [], ["noise"], shape=[3]),
    ]
    inputs = [INFO("x", F, ["n", "m"]), INFO("before", F, [])]
    outputs = [INFO("weighted", F, [16]), INFO("places", I, [2, "k"]), INFO("total", F, [])]
    outputs += [INFO("after", F, []), INFO("noise", F, [3])]
    constants = [helper.make_tensor("zero", F, [], [0.0]), helper.make_tensor("all", I, [1], [-1])]
    constants.append(helper.make_tensor("weights", F, [16], range(1, 17)))
    return _saved(path, helper.make_graph(nodes, "changing", inputs, outputs, constants))


def lengths(path: Path) -> Path:
    """Of ids [1, seq] and x [seq, 2]: ids + 1, and the sums of pairs [seq]."""
    nodes = [
        helper.make_node("Add", ["ids", "one"], ["next"]),
        helper.make_node("ReduceSum", ["x", "axis"], ["sums"], keepdims=0),
    ]
    inputs = [INFO("ids", I, [1, "seq"]), INFO("x", F, ["seq", 2])]
    outputs = [INFO("next", I, [1, "seq"]), INFO("sums", F, ["seq"])]
    constants = [helper.make_tensor("one", I, [], [1]), helper.make_tensor("axis", I, [1], [1])]
    return _saved(path, helper.make_graph(nodes, "lengths", inputs, outputs, constants))


def _saved(path: Path, graph: onnx.GraphProto) -> Path:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


SHAPES = ({"x": (2, 8)}, {"x": (4, 4)})  # of as many elements
NO_SHAPE = "it was compiled for x [2, 8]; x [4, 4]"  # how the sentence of another one ends
NO_LENGTH = "input 'x' has 6 along dimension 0: expected 5, by the model and the other inputs"


def packages(folder: Path, **options: object) -> tuple[Path, Path]:
    """Packages of both, of the prefixes `changing` and `lengths`."""
    common = {"verify": False, "database": False, **options}
    of_changing = {"shapes": SHAPES, "states": {"before": "after"}, "prefix": "changing"}
    of_lengths = {"dims": {"seq": range(1, 17)}, "prefix": "lengths"}
    made = [
        modelc.compile(model(folder / f"{name}.onnx"), output=folder / f"{name}.modelc", **common, **fixed).path
        for name, model, fixed in (("changing", changing, of_changing), ("lengths", lengths, of_lengths))
    ]
    return made[0], made[1]


X = np.arange(16, dtype=np.float32) - 9


def expected(of_changing: Path, of_lengths: Path) -> list[str]:
    """What a program prints: of two runs with the seed 7, of one after reset and the same seed; of three lengths."""

    def words(array: np.ndarray) -> str:
        return " ".join(f"{number:.6f}" if array.dtype == np.float32 else str(number) for number in array.reshape(-1))

    lines = []
    with load(of_changing, threads=2, seed=7) as model:
        for shape, begins in (((4, 4), False), ((2, 8), False), ((4, 4), True)):
            if begins:
                model.reset()
                model.seed(7)
            outputs = model.run({"x": X.reshape(shape)})
            places = outputs["places"]
            parts = [
                f"{int(shape == (4, 4))}",
                words(outputs["weighted"]),
                f"{places.shape[0]}x{places.shape[1]} {words(places)}",
            ]
            lines.append(" | ".join([*parts, words(outputs["total"]), words(outputs["noise"])]))
    assert lines[0] == lines[2]
    with load(of_lengths) as model:
        for length in (3, 11, 16):
            ids, pairs = np.arange(length)[None], np.arange(2 * length, dtype=np.float32).reshape(length, 2)
            outputs = model.run({"ids": ids, "x": pairs})
            lines.append(f"0 | {words(outputs['next'])} | {words(outputs['sums'])}")
    return lines
