"""ONNX's own node tests through the operator library alone: python tests/helpers/onnx_node_tests.py [-v] [PATTERN]

Prints how many pass, how many use an operator that the library does not have, and which fail.
"""

from __future__ import annotations

import fnmatch
import sys
from collections import Counter
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx_cases import node_tests

from modelc.errors import ModelError
from modelc.ir.expr import DTYPES
from modelc.ir.graph import Node, Value
from modelc.ops import OPERATORS, evaluate_node, found, operator_of, run

DTYPE_ATTRIBUTES = {"to", "dtype", "output_dtype", "precision", "stash_type"}


# Cases where ONNX Runtime, and hence modelc, differs from ONNX's reference, and how.
DIFFERENT = dict.fromkeys(
    ("test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"),
    "corners are aligned to the output's whole number of elements",
)


FOUND = {operator.name for operator in found.OPERATORS}  # as much as there can be, and how much there is


class Unsupported(Exception):
    """The library has no such operator, dtype or kind of value; the text says which."""


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """ONNX attributes as a Graph's nodes carry them."""
    result: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            raise Unsupported("a subgraph")
        if isinstance(value, onnx.TensorProto):
            value = numpy_helper.to_array(value)
        elif isinstance(value, bytes):
            value = value.decode()
        elif isinstance(value, list):
            value = tuple(value)
        elif attribute.name in DTYPE_ATTRIBUTES and isinstance(value, int):
            value = helper.tensor_dtype_to_np_dtype(value).name if value else ""
        result[attribute.name] = value
    return result


def value_of(name: str, data: Any) -> Value:
    if isinstance(data, list):
        raise Unsupported("a sequence")
    if isinstance(data, onnx.TensorProto):
        data = numpy_helper.to_array(data)
    array = np.asarray(data, np.float32 if type(data) is float else None)
    if array.dtype.name not in DTYPES:
        raise Unsupported(f"a value of {array.dtype}")
    return Value(name, array.dtype.name, array.shape, array)


def compute(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Any, ...]:
    """The node on its inputs as far as it can be with inputs that are not constant; steering ones are."""
    if node.op not in OPERATORS:
        raise Unsupported(node.op)
    if node.op in FOUND:
        raise Unsupported("a size that depends on data")  # test_sizes.py
    operator = operator_of(node)
    data = [None if v is None else v.data for v in inputs]
    free = [None if v is None else Value(v.name, v.dtype, v.shape) for v in inputs]
    while True:
        try:
            types = operator.infer(node, tuple(free))
            outputs = tuple(Value(n, *t) if n else None for n, t in zip(node.outputs, types, strict=False))
            return run(operator.define(node, tuple(free), outputs), data, outputs)
        except ModelError as error:
            steering = [
                k for k, v in enumerate(free) if v is not None and v.data is None and f"{v.name!r}" in str(error)
            ]
            if not steering:
                if "Dropout" in node.op:
                    return evaluate_node(node, inputs)
                raise
            free[steering[0]] = inputs[steering[0]]


def run_case(case: Any) -> None:
    """Raises Unsupported, ModelError or AssertionError if the case does not pass."""
    graph = case.model.graph
    domains = {o.domain for o in case.model.opset_import} - {"", "ai.onnx"}
    if domains:
        raise Unsupported(f"domain {sorted(domains)[0]}")
    for inputs, expected in case.data_sets:
        values: dict[str, Value] = {}
        for declared, data in zip(graph.input, inputs, strict=False):
            values[declared.name] = value_of(declared.name, data)
        for initializer in graph.initializer:
            values[initializer.name] = value_of(initializer.name, numpy_helper.to_array(initializer))
        for k, proto in enumerate(graph.node):
            if proto.op_type == "Constant":
                (value,) = attributes(proto).values()
                values[proto.output[0]] = value_of(proto.output[0], value)
                continue
            node = Node(
                proto.op_type, proto.name or f"n{k}", tuple(proto.input), tuple(proto.output), attributes(proto)
            )
            results = compute(node, tuple(values[x] if x else None for x in node.inputs))
            for name, result in zip(node.outputs, results, strict=False):
                if name:
                    values[name] = value_of(name, result)
        for declared, wanted in zip(graph.output, expected, strict=False):
            wanted = value_of(declared.name, wanted).data
            found = values[declared.name].data
            assert found is not None
            assert found.dtype == wanted.dtype, f"dtype {found.dtype}, expected {wanted.dtype}"
            assert found.shape == wanted.shape, f"shape {found.shape}, expected {wanted.shape}"
            if wanted.dtype.kind in "fV":
                found, wanted = found.astype(np.float64), wanted.astype(np.float64)
                half = values[declared.name].dtype in ("float16", "bfloat16")
                np.testing.assert_allclose(found, wanted, max(case.rtol, 2e-2 if half else 0), max(case.atol, 1e-5))
            else:
                np.testing.assert_array_equal(found, wanted)


def main(pattern: str = "*", verbose: bool = False) -> Counter[str]:
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for case in node_tests():
        if not fnmatch.fnmatch(case.name, f"*{pattern}*"):
            continue
        try:
            run_case(case)
            outcome, reason = "pass", ""
        except Unsupported as error:
            outcome, reason = "unsupported", str(error)
            reasons[reason] += 1
        except ModelError as error:
            outcome, reason = "refused", str(error)
        except Exception as error:
            outcome, reason = "fail", f"{type(error).__name__}: {str(error).strip()}"
            if case.name in DIFFERENT:
                outcome, reason = "different", DIFFERENT[case.name]
        counts[outcome] += 1
        if outcome in ("fail", "refused", "different") or (verbose and outcome == "unsupported"):
            print(f"{outcome:11} {case.name}: {' '.join(reason.split())[:200]}")
    print("unsupported:", ", ".join(f"{k} ({n})" for k, n in reasons.most_common()))
    print(
        ", ".join(f"{k} {counts[k]}" for k in ("pass", "unsupported", "refused", "different", "fail")),
        "of",
        sum(counts.values()),
    )
    return counts


if __name__ == "__main__":
    arguments = [a for a in sys.argv[1:] if a != "-v"]
    main(arguments[0] if arguments else "*", "-v" in sys.argv)
