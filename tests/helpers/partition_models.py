"""Small models built by hand for the tests of partitioning: imported, partitioned, run, compared with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from program_runs import run_program

from modelc.frontend.onnx import import_model
from modelc.ir.program import Program
from modelc.layout.program import partition
from modelc.ops import MEANINGS

TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}


class Model:
    """Collects nodes; every method call `model.Conv(x, w, pads=...)` adds one and gives its output's name."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.random = np.random.default_rng(7)

    def input(self, name: str, *shape: int, dtype: str = "float32") -> str:
        self.inputs.append(helper.make_tensor_value_info(name, TYPES[dtype], shape))
        return name

    def const(self, data: object, dtype: str = "float32") -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(data, dtype), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.const(self.random.standard_normal(shape) / 4)

    def node(self, op: str, *inputs: str, to: str | list[str] = "", **attrs: object) -> str:
        outputs = to if isinstance(to, list) else [to or f"{op.lower()}{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, inputs, outputs, f"n{len(self.nodes)}", **attrs))
        return outputs[0]

    def program(self, folder: Path, *outputs: str, attention_bytes: int = 0) -> Program:
        """The partitioned model, after its outputs have been found equal to ONNX Runtime's."""
        infos = [helper.make_empty_tensor_value_info(o) for o in outputs]
        graph = helper.make_graph(self.nodes, "m", self.inputs, infos, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
        path = folder / "m.onnx"
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        program = partition(import_model(path), attention_bytes)
        feeds = {}
        for info in self.inputs:
            shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
            whole = info.type.tensor_type.elem_type == TensorProto.INT64
            feeds[info.name] = self.random.integers(0, 5, shape) if whole else self.random.standard_normal(shape, "f")
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        found = run_program(program, feeds, MEANINGS)
        for name, expected in zip(program.outputs, session.run(None, feeds), strict=True):
            np.testing.assert_allclose(found[name], expected, rtol=2e-5, atol=2e-5)
        return program


def tasks(program: Program) -> list[str]:
    """The Blocks of every Task."""
    return [" ".join(b.name for b in bound.task.blocks) for bound in program.tasks]


def conv(m: Model, x: str, o: int, c: int, k: int = 3, **attrs: object) -> str:
    return m.node("Conv", x, m.weight(o, c, k, k), m.weight(o), pads=[k // 2] * 4, **attrs)
