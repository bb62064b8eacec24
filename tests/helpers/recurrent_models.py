"""Models of one recurrent node, with any of its inputs, outputs and layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from control_models import INFO, F
from onnx import TensorProto, helper, numpy_helper

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def model(
    path: Path,
    op: str,
    time: int,
    direction: str = "forward",
    given: str = "BLhcP",
    wanted: str = "YHC",
    as_inputs: str = "X",
    layout: int = 0,
    size: tuple[int, int, int] = (2, 3, 5),
    **attrs: Any,
) -> dict[str, np.ndarray]:
    """Writes a model of one node, and gives data for its inputs. It takes what is in `given`, as initialisers but for
    what is in `as_inputs`. `size`: batch, features, hidden."""
    (batch, features, hidden), gates = size, GATES[op]
    directions = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(time)
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    shapes = {
        "X": (batch, time, features) if layout else (time, batch, features),
        "W": (directions, gates * hidden, features),
        "R": (directions, gates * hidden, hidden),
        "B": (directions, 2 * gates * hidden),
        "L": (batch,),
        "h": state,
        "c": state,
        "P": (directions, 3 * hidden),
    }
    taken = "XWRBLhcP" if op == "LSTM" else "XWRBLh"
    names = [x if x in "XWR" or x in given else "" for x in taken]
    data = {x: (0.7 * rng.standard_normal(shapes[x])).astype(np.float32) for x in names if x}
    if "L" in data:
        data["L"] = np.asarray([max(time - 3 * k, 1) for k in range(batch)], np.int32)
    outputs = [x if x in wanted else "" for x in ("YHC" if op == "LSTM" else "YH")]
    node = helper.make_node(op, names, outputs, "rec", hidden_size=hidden, direction=direction, **attrs)
    if layout:
        node.attribute.append(helper.make_attribute("layout", 1))
    kinds = {x: TensorProto.INT32 if x == "L" else F for x in data}
    inputs = [INFO(x, kinds[x], data[x].shape) for x in data if x in as_inputs]
    weights = [numpy_helper.from_array(array, x) for x, array in data.items() if x not in as_inputs]
    graph = helper.make_graph([node], "g", inputs, [INFO(x, F, None) for x in outputs if x], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return {x: array for x, array in data.items() if x in as_inputs}
