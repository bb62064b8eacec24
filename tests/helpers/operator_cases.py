"""Every operator with inputs and attributes, what ONNX Runtime says of it, and what the operator library does."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from three_ways import Example, example_of

from modelc.ir.block import Block
from modelc.ir.expr import Expr, show
from modelc.ir.expr_syntax import parse
from modelc.ir.graph import Node, Value
from modelc.ops import OPERATORS, Definition, run

Array = np.ndarray[Any, Any]
OPSET = 22
rng = np.random.default_rng(0)


def f(*shape: int, dtype: str = "float32") -> Array:
    return rng.standard_normal(shape).astype(dtype)


def positive(*shape: int) -> Array:
    return np.abs(f(*shape)) + np.float32(0.1)


def whole(low: int, high: int, *shape: int, dtype: str = "int64") -> Array:
    return rng.integers(low, high, shape).astype(dtype)


def i(*values: int) -> Array:
    return np.asarray(values, np.int64)


@dataclass(frozen=True)
class Case:
    """One node: `steering` inputs are constants for the library, the others are not."""

    op: str
    inputs: tuple[Array | None, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    steering: tuple[int, ...] = ()
    outputs: int = 1
    opset: int = OPSET
    rtol: float = 1e-4
    atol: float = 1e-5

    def __post_init__(self) -> None:
        object.__setattr__(self, "inputs", tuple(None if x is None else np.asarray(x) for x in self.inputs))

    @property
    def node(self) -> Node:
        names = tuple(f"in{k}" if x is not None else "" for k, x in enumerate(self.inputs))
        attrs = {
            k: helper.tensor_dtype_to_np_dtype(v).name
            if k in ("to", "dtype")
            else numpy_helper.to_array(v)
            if isinstance(v, onnx.TensorProto)
            else v
            for k, v in self.attrs.items()
        }
        return Node(self.op, "node", names, tuple(f"out{k}" for k in range(self.outputs)), attrs)

    def values(self, constant: bool = False) -> tuple[Value | None, ...]:
        return tuple(
            None if x is None else Value(f"in{k}", x.dtype.name, x.shape, x if constant or k in self.steering else None)
            for k, x in enumerate(self.inputs)
        )


def reference(case: Case) -> list[Array]:
    """ONNX Runtime's answer, or the ONNX reference's where it has no kernel."""
    node = helper.make_node(case.op, case.node.inputs, case.node.outputs, **case.attrs)
    feeds = {f"in{k}": x for k, x in enumerate(case.inputs) if x is not None}
    free = {k: x for k, x in feeds.items() if int(k[2:]) not in case.steering}
    fixed = [numpy_helper.from_array(x, k) for k, x in feeds.items() if int(k[2:]) in case.steering]
    declared = [
        helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for k, x in free.items()
    ]
    graph = helper.make_graph([node], "g", declared, [onnx.ValueInfoProto(name=o) for o in node.output], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", case.opset)], ir_version=10)
    try:
        model = onnx.shape_inference.infer_shapes(model, strict_mode=False)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    except Exception:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return [np.asarray(x) for x in ReferenceEvaluator(model).run(None, free)]
    return list(session.run(None, free))


def defined(case: Case) -> tuple[Definition, list[Array]]:
    operator = OPERATORS[case.op]
    types = operator.infer(case.node, case.values())
    outputs = tuple(Value(n, *t) for n, t in zip(case.node.outputs, types, strict=True))
    definition = operator.define(case.node, case.values(), outputs)
    return definition, list(run(definition, case.inputs, outputs))


def expressions(definition: Definition) -> Iterator[Expr]:
    for block in definition.blocks:
        if isinstance(block, Block):
            yield from (*block.writes, *block.body, *block.where)


def check(case: Case) -> Definition:
    definition, found = defined(case)
    for e in expressions(definition):
        assert parse(show(e)) == e
    for got, wanted in zip(found, reference(case), strict=True):
        assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
        if wanted.dtype.kind == "f":
            half = wanted.dtype == np.float16
            rtol, atol = (2e-3, 2e-3) if half else (case.rtol, case.atol)
            np.testing.assert_allclose(got.astype(float), wanted.astype(float), rtol, atol)
        else:
            np.testing.assert_array_equal(got, wanted)
    return definition


X4, X3 = f(2, 4, 7, 6), f(2, 3, 5)
CASES = [
    # --- convolutions
    Case("Conv", (f(1, 3, 8, 8), f(4, 3, 3, 3)), {"pads": [1, 1, 1, 1]}),
    Case("Conv", (f(2, 3, 9, 7), f(4, 3, 3, 2), f(4)), {"pads": [0, 1, 2, 0], "strides": [2, 3]}),
    Case("Conv", (f(2, 3, 9, 9), f(4, 3, 3, 3)), {"auto_pad": "SAME_UPPER", "strides": [2, 1]}),
    Case("Conv", (f(2, 3, 9, 9), f(4, 3, 2, 2)), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    Case("Conv", (f(1, 6, 5, 5), f(4, 3, 3, 3), f(4)), {"group": 2}),
    Case("Conv", (f(1, 6, 5, 5), f(6, 1, 3, 3), f(6)), {"group": 6, "pads": [1, 1, 1, 1]}),
    Case("Conv", (f(1, 3, 5, 5), f(6, 1, 3, 3)), {"group": 3}),
    Case("Conv", (f(2, 3, 9), f(4, 3, 4), f(4)), {"pads": [2, 1]}),
    Case("Conv", (f(1, 2, 4, 5, 6), f(3, 2, 2, 3, 2), f(3)), {"strides": [1, 2, 1]}),
    Case("Conv", (f(1, 1, 5, 5), f(1, 1, 3, 3)), {}),
    *(
        Case(
            "ConvTranspose",
            (f(2, 3, 5, 4), f(3, 2, k, 3), f(2)),
            {"strides": [s, 2], "pads": [p, 0, p, 1], "dilations": [d, 1]},
        )
        for s in (1, 2, 3) for k in (2, 3, 4) for p in (0, 1) for d in (1, 2)
    ),
    Case("ConvTranspose", (f(1, 4, 5, 4), f(4, 2, 3, 3)), {"group": 2, "strides": [2, 2], "output_padding": [1, 0]}),
    Case("ConvTranspose", (f(1, 4, 5, 4), f(4, 1, 4, 4)), {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("ConvTranspose", (f(1, 2, 5), f(2, 3, 3)), {"strides": [2], "auto_pad": "SAME_UPPER"}),
    Case("ConvTranspose", (f(1, 2, 3, 3, 3), f(2, 3, 2, 2, 2)), {"strides": [2, 2, 1]}),
    Case("ConvTranspose", (f(1, 2, 5, 5), f(2, 3, 3, 3)), {"strides": [3, 2], "output_shape": [16, 11]}),
    Case("Col2Im", (f(1, 12, 12), i(5, 4), i(2, 3)), {"pads": [1, 0, 0, 1], "dilations": [2, 1]}, (1, 2)),
    Case("Col2Im", (f(1, 8, 9), i(6, 6), i(2, 2)), {"strides": [2, 2]}, (1, 2)),
    Case("DFT", (f(2, 6, 1), None, np.int64(1)), {}, (2,)),
    Case("DFT", (f(2, 6, 2), np.int64(4), np.int64(1)), {"inverse": 1}, (1, 2)),
    Case("DFT", (f(2, 6, 1), np.int64(8), np.int64(1)), {"onesided": 1}, (1, 2)),
    Case("STFT", (f(1, 32, 1), np.int64(4), positive(8)), {}, (1,)),
    Case("STFT", (f(1, 32, 2), np.int64(4), positive(8)), {"onesided": 0}, (1,)),
    # --- contractions
    Case("MatMul", (f(4, 5), f(5, 3))),
    Case("MatMul", (f(2, 1, 4, 5), f(3, 5, 6))),
    Case("MatMul", (f(5), f(2, 5, 3))),
    Case("MatMul", (f(2, 4, 5), f(5))),
    Case("MatMul", (f(5), f(5))),
    Case("MatMul", (f(2, 3, 4, 5, 6), f(3, 1, 6, 2))),
    Case("MatMul", (whole(-9, 9, 3, 4, dtype="int32"), whole(-9, 9, 4, 2, dtype="int32"))),
    Case("MatMul", (f(4, 5, dtype="float16"), f(5, 3, dtype="float16"))),
    Case("Gemm", (f(4, 5), f(5, 3), f(3))),
    Case("Gemm", (f(5, 4), f(3, 5), f(4, 1)), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Gemm", (f(4, 5), f(5, 3)), {"alpha": 0.25}),
    Case("Gemm", (f(4, 5), f(5, 3), np.float32(2)), {}, (2,)),
    Case("Einsum", (f(3, 4), f(4, 5)), {"equation": "ij,jk->ik"}),
    Case("Einsum", (f(2, 3, 4), f(2, 4, 5)), {"equation": "bij, bjk -> bki"}),
    Case("Einsum", (f(2, 3, 4), f(4, 5)), {"equation": "...j,jk"}),
    Case("Einsum", (f(3, 3),), {"equation": "ii->i"}),
    Case("Einsum", (f(3, 4),), {"equation": "ij->"}),
    # --- pooling
    *(
        Case(op, (f(1, 2, 9, 8),), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 1, 0], **extra})
        for op in ("MaxPool", "AveragePool", "LpPool")
        for extra in ({}, {"ceil_mode": 1}, {"dilations": [2, 1]})
        if op != "LpPool" or "ceil_mode" not in extra
    ),
    *(
        Case("AveragePool", (f(1, 2, 10, 10),), {"kernel_shape": [3, 3], "count_include_pad": 1, **extra})
        for extra in ({"pads": [1, 1, 1, 1]}, {"pads": [1, 1, 1, 1], "strides": [2, 2], "ceil_mode": 1}, {})
    ),
    Case("AveragePool", (f(1, 2, 9),), {"kernel_shape": [3], "auto_pad": "SAME_UPPER", "strides": [2]}),
    Case("MaxPool", (f(1, 2, 6, 6),), {"kernel_shape": [2, 2], "strides": [2, 2]}, (), 2),
    Case("MaxPool", (f(2, 2, 6, 5),), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "storage_order": 1}, (), 2),
    Case("MaxPool", (whole(-9, 9, 1, 2, 6, 6, dtype="int8"),), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    Case("MaxPool", (f(1, 2, 4, 4, 4),), {"kernel_shape": [2, 2, 2]}),
    Case("GlobalAveragePool", (X4,)),
    Case("GlobalMaxPool", (X4,)),
    Case("GlobalLpPool", (X4,), {"p": 1}, opset=21),
    # --- elementwise
    *(
        Case(op, (f(2, 3, 4), f(3, 1))) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean", "Greater",
                                                   "GreaterOrEqual", "Less", "LessOrEqual", "PRelu")
    ),
    *(Case(op, (whole(-9, 9, 2, 3, dtype=t), whole(1, 9, 2, 3, dtype=t)))
      for t in ("int32", "int64") for op in ("Add", "Sub", "Mul", "Div", "Mod", "Equal", "Max", "Less")),
    *(Case(op, (whole(0, 2, 2, 3, dtype="bool"), whole(0, 2, 3, dtype="bool")))
      for op in ("And", "Or", "Xor", "Equal")),
    *(Case(op, (whole(0, 99, 2, 3, dtype="uint8"), whole(0, 99, 3, dtype="uint8")))
      for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    Case("BitShift", (whole(0, 99, 5, dtype="uint8"), whole(0, 7, 5, dtype="uint8")), {"direction": "LEFT"}),
    Case("BitShift", (whole(0, 99, 5, dtype="uint32"), whole(0, 40, 5, dtype="uint32")), {"direction": "RIGHT"}),
    Case("Mod", (f(9) * 9, positive(9)), {"fmod": 1}),
    Case("Mod", (whole(-9, 9, 9), whole(-9, 0, 9)), {"fmod": 1}),
    *(Case("Pow", (positive(2, 3), np.float32(p)), {}, known)
      for p in (1, 2, 3, 0.5, -0.5, -1, 1.7) for known in ((), (1,))),
    Case("Pow", (f(4), np.float32(2)), {}, (1,)),
    Case("Pow", (whole(-4, 4, 5, dtype="int32"), np.asarray(3, np.int64))),
    Case("Pow", (positive(5), whole(-2, 3, 5, dtype="int32"))),
    Case("Where", (whole(0, 2, 3, 1, dtype="bool"), f(1, 4), f(3, 4))),
    Case("Clip", (f(3, 4), np.float32(-0.5), np.float32(0.5)), {}, (1, 2)),
    Case("Clip", (f(3, 4), None, np.float32(0.5))),
    Case("Clip", (whole(-9, 9, 7, dtype="int32"), np.int32(-3), np.int32(3))),
    Case("Max", (f(3, 4),)),
    Case("Mean", (f(3, 4), f(4), f(1))),
    *(Case("Cast", (f(9) * 9,), {"to": to}) for to in (onnx.TensorProto.INT32, onnx.TensorProto.BOOL,
                                                       onnx.TensorProto.FLOAT16, onnx.TensorProto.INT64)),
    Case("Cast", (whole(0, 2, 9, dtype="bool"),), {"to": onnx.TensorProto.FLOAT}),
    Case("CastLike", (f(9) * 9, whole(0, 2, 1)), {}),
    Case("LeakyRelu", (f(9),), {"alpha": 0.3}),
    Case("Elu", (f(9),), {"alpha": 0.7}),
    Case("Celu", (f(9),), {"alpha": 0.7}),
    Case("Selu", (f(9),), {"alpha": 1.5, "gamma": 1.1}),
    Case("HardSigmoid", (f(9) * 3,), {"alpha": 0.3, "beta": 0.4}),
    Case("ThresholdedRelu", (f(9),), {"alpha": 0.5}),
    Case("Gelu", (f(9) * 3,), {"approximate": "tanh"}),
    Case("Shrink", (f(9) * 3,), {"bias": 0.2, "lambd": 0.8}),
    Case("IsInf", (np.asarray([1, np.inf, -np.inf], np.float32),), {"detect_negative": 0}),
    Case("Not", (whole(0, 2, 5, dtype="bool"),)),
    Case("BitwiseNot", (whole(-9, 9, 5, dtype="int32"),)),
    Case("Neg", (whole(-9, 9, 5, dtype="int32"),)),
    Case("Abs", (whole(-9, 9, 5, dtype="int8"),)),
    Case("Relu", (whole(-9, 9, 5, dtype="int32"),)),
    # --- reductions
    *(
        Case(f"Reduce{kind}", (np.abs(X3) + np.float32(0.1), axes), {"keepdims": keep}, (1,))
        for kind in ("Sum", "Mean", "Max", "Min", "Prod", "SumSquare", "L1", "L2", "LogSum", "LogSumExp")
        for axes, keep in ((i(1), 1), (i(0, -1), 0), (None, 0))
    ),
    Case("ReduceSum", (X3, i()), {"noop_with_empty_axes": 1}, (1,)),
    Case("ReduceMean", (whole(-9, 9, 3, 4, dtype="int32"), i(1)), {}, (1,)),
    Case("ReduceMax", (whole(-9, 9, 3, 4, dtype="int8"), i(1)), {}, (1,)),
    Case("ArgMax", (whole(0, 3, 4, 5, dtype="float32"),), {"axis": 1}),
    Case("ArgMax", (whole(0, 3, 4, 5, dtype="float32"),), {"axis": 0, "select_last_index": 1, "keepdims": 0}),
    Case("ArgMin", (whole(0, 3, 4, 5, dtype="int32"),), {"axis": -1}),
    # --- softmax and normalisation
    *(Case(op, (f(2, 3, 4),), {"axis": axis}) for op in ("Softmax", "LogSoftmax", "Hardmax") for axis in (-1, 1)),
    Case("Softmax", (f(2, 9, dtype="float16"),)),
    Case("LayerNormalization", (X3, f(5), f(5)), {"axis": -1}),
    Case("LayerNormalization", (X3, f(3, 5)), {"axis": 1, "epsilon": 1e-3}),
    Case("LayerNormalization", (X3, f(5), f(5)), {"axis": -1}, (), 3),
    Case("InstanceNormalization", (X4, f(4), f(4))),
    Case("GroupNormalization", (X4, f(4), f(4)), {"num_groups": 2}),
    Case("BatchNormalization", (X4, f(4), f(4), f(4), positive(4))),
    Case("BatchNormalization", (f(3, 4), f(4), f(4), f(4), positive(4)), {"epsilon": 1e-3}),
    Case("MeanVarianceNormalization", (X4,)),
    Case("LpNormalization", (X3,), {"axis": 1, "p": 1}),
    Case("LpNormalization", (X3,)),
    Case("LRN", (X4,), {"size": 3, "alpha": 0.1}),
    Case("RMSNormalization", (X3, f(5)), {"axis": -1}, opset=23),
    # --- data movement
    Case("Transpose", (X4,), {"perm": [0, 2, 3, 1]}),
    Case("Transpose", (X3,)),
    *(Case("Reshape", (X4, i(*shape)), {}, (1,)) for shape in ((2, 4, 42), (8, -1), (2, 2, 2, 7, 6),
                                                              (0, 0, -1), (3, 4, 28), (336,))),
    Case("Flatten", (X4,), {"axis": 2}),
    Case("Squeeze", (f(1, 3, 1, 2), i(0, -2)), {}, (1,)),
    Case("Squeeze", (f(1, 3, 1, 2),)),
    Case("Unsqueeze", (X3, i(0, -1)), {}, (1,)),
    Case("Expand", (f(3, 1), i(2, 1, 4)), {}, (1,)),
    Case("Tile", (f(2, 3), i(2, 3)), {}, (1,)),
    Case("Slice", (f(9, 8), i(1, -1), i(7, -100), i(0, 1), i(2, -3)), {}, (1, 2, 3, 4)),
    Case("Slice", (f(9, 8), i(2), i(1000)), {}, (1, 2)),
    Case("DepthToSpace", (f(1, 8, 2, 3),), {"blocksize": 2}),
    Case("DepthToSpace", (f(1, 8, 2, 3),), {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", (f(1, 2, 4, 6),), {"blocksize": 2}),
    Case("Concat", (f(2, 3), f(2, 1), f(2, 4)), {"axis": -1}),
    Case("Split", (f(2, 7), i(3, 4)), {"axis": 1}, (1,), 2),
    Case("Split", (f(2, 7),), {"axis": 1, "num_outputs": 3}, (), 3),
    Case("Identity", (X3,)),
    Case("Dropout", (X3,), {}, (), 2),
    Case("Pad", (f(3, 4), i(1, 2, 0, 1), np.float32(1.5)), {}, (1,)),
    Case("Pad", (f(3, 4), i(-1, 2, 1, -1)), {}, (1,)),
    Case("Pad", (f(3, 4), i(1, 2), None, i(1)), {}, (1, 3)),
    *(Case("Pad", (f(3, 4), i(1, 2, 2, 3)), {"mode": mode}, (1,)) for mode in ("reflect", "edge", "wrap")),
    *(Case("Trilu", (f(2, 4, 5), np.int64(k)), {"upper": u}, (1,)) for k in (-1, 2) for u in (0, 1)),
    Case("ReverseSequence", (f(4, 3), i(1, 3, 4)), {"time_axis": 0, "batch_axis": 1}),
    # --- addressing by data
    *(Case("Gather", (X3, indices), {"axis": axis}, known)
      for axis in (0, 1) for indices in (i(1, -1), np.int64(-1), i(0, 1, 1, 0).reshape(2, 2)) for known in ((), (1,))),
    Case("Gather", (X3, i(1, -2).astype(np.int32)), {"axis": 2}),
    Case("GatherElements", (f(3, 4), whole(-3, 3, 2, 4)), {"axis": 0}),
    Case("GatherND", (f(3, 4, 5), whole(-3, 3, 2, 2))),
    Case("GatherND", (f(3, 4, 5), whole(0, 3, 3, 2, 1)), {"batch_dims": 1}),
    Case("OneHot", (whole(-3, 3, 2, 3), np.int64(4), np.asarray([2, 5], np.float32)), {"axis": 1}, (1,)),
    Case("Compress", (f(3, 4), np.asarray([True, False, True])), {"axis": 1}, (1,)),
    *(Case("CumSum", (f(3, 4), np.int64(1)), {"exclusive": e, "reverse": r}, (1,)) for e in (0, 1) for r in (0, 1)),
    Case("TopK", (f(3, 6), i(4)), {"axis": -1}, (1,), 2),
    Case("TopK", (f(5, 3), i(2)), {"axis": 0, "largest": 0}, (1,), 2),
    Case("ScatterND", (f(4, 5), i(1, -1).reshape(2, 1), f(2, 5))),
    Case("ScatterND", (f(4, 5), i(1, 1).reshape(2, 1), f(2, 5)), {"reduction": "add"}),
    Case("ScatterElements", (f(4, 5), whole(0, 4, 2, 5), f(2, 5)), {"axis": 0, "reduction": "max"}),
    # --- constants
    Case("Shape", (X4,), {"start": 1}),
    Case("Size", (X4,)),
    Case("ConstantOfShape", (i(2, 3),), {"value": helper.make_tensor("v", onnx.TensorProto.INT64, [1], [7])}, (0,)),
    Case("Range", (np.int64(3), np.int64(12), np.int64(2)), {}, (0, 1, 2)),
    Case("Range", (np.float32(1), np.float32(-3), np.float32(-0.5)), {}, (0, 1, 2)),
    Case("EyeLike", (f(3, 4),), {"k": 1}),
    # --- quantised
    Case("QuantizeLinear", (f(3, 4) * 9, np.float32(0.1), np.uint8(120))),
    Case("QuantizeLinear", (f(3, 4) * 9, positive(4), whole(-9, 9, 4, dtype="int8")), {"axis": 1}),
    Case("DequantizeLinear", (whole(0, 255, 3, 4, dtype="uint8"), positive(3), whole(0, 9, 3, dtype="uint8")),
         {"axis": 0}),
    Case("DequantizeLinear", (whole(-99, 99, 3, 4, dtype="int8"), np.float32(0.1))),
    Case("DynamicQuantizeLinear", (f(3, 4),), {}, (), 3),
    Case("ConvInteger", (whole(0, 255, 1, 3, 6, 6, dtype="uint8"), whole(-9, 9, 4, 3, 3, 3, dtype="int8"), np.uint8(7)),
         {"pads": [1, 1, 1, 1]}),
    Case("MatMulInteger",
         (whole(0, 255, 3, 4, dtype="uint8"), whole(-9, 9, 4, 5, dtype="int8"), np.uint8(7), np.int8(1))),
    # weights of 7 bits: without VNNI, ONNX Runtime adds two products in 16 bits, where they may not fit
    Case("QLinearConv", (whole(0, 255, 1, 3, 6, 6, dtype="uint8"), np.float32(0.02), np.uint8(128),
                         whole(-63, 63, 4, 3, 3, 3, dtype="int8"), positive(4) / 50, np.zeros(4, np.int8),
                         np.float32(0.5), np.uint8(100), whole(-99, 99, 4, dtype="int32")), {"pads": [1, 1, 1, 1]}),
    Case("QLinearMatMul", (whole(0, 255, 3, 4, dtype="uint8"), np.float32(0.02), np.uint8(128),
                           whole(-63, 63, 4, 5, dtype="int8"), np.float32(0.03), np.int8(0),
                           np.float32(0.1), np.uint8(100))),
]  # fmt: skip
COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
CASES += [
    Case("Resize", (f(1, 2, 5, 4), None, scales), {"mode": mode, "coordinate_transformation_mode": c, **extra}, (2,))
    for c in COORDINATES
    for scales in (np.asarray([1, 1, 2, 3], np.float32), np.asarray([1, 1, 0.6, 1.5], np.float32))
    for mode, extra in (
        *(("nearest", {"nearest_mode": n}) for n in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
        ("linear", {}),
        ("cubic", {}),
        ("cubic", {"exclude_outside": 1}),
    )
    # symmetric coordinates at 0.6 hit whole numbers, where one bit of a float decides between two floors
    if not (c == "half_pixel_symmetric" and scales[2] < 1 and extra == {"nearest_mode": "floor"})
]
CASES += [
    Case(
        op,
        (f(4, 2, 3), f(d, g * 5, 3), f(d, g * 5, 5), bias, None, *state[: 2 if op == "LSTM" else 1]),
        {"hidden_size": 5, "direction": direction, **extra},
        (),
        3 if op == "LSTM" else 2,
    )
    for op, g, extra in (("RNN", 1, {}), ("GRU", 3, {}), ("GRU", 3, {"linear_before_reset": 1}), ("LSTM", 4, {}))
    for direction, d in (("forward", 1), ("reverse", 1), ("bidirectional", 2))
    for bias, state in ((f(d, 2 * g * 5), (f(d, 2, 5), f(d, 2, 5))), (None, ()))
]
CASES += [
    Case(
        "GridSample",
        (f(2, 3, 5, 4), (rng.random((2, 3, 6, 2)) * 3 - 1.5).astype(np.float32)),
        {"mode": mode, "padding_mode": padding, "align_corners": corners},
    )
    for mode in ("linear", "nearest", "cubic")
    for padding in ("zeros", "border", "reflection")
    for corners in (0, 1)
]
CASES += [
    Case("Resize", (f(1, 2, 5, 4), None, None, i(1, 2, 9, 7)), {"mode": mode}, (3,))
    for mode in ("nearest", "linear", "cubic")
]


def example(case: Case, consts: tuple[int, ...] = (), order: str = "row-major") -> Example:
    made = example_of(
        case.op, case.inputs, case.node.attrs, consts, order == "channels-last", case.steering, case.outputs
    )
    wanted = {f"y{k}": y for k, y in enumerate(reference(case))}
    return replace(made, wanted=wanted, rtol=case.rtol, atol=case.atol)
