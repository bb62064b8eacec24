"""Damaged models: what ONNX's schemas do not allow is one sentence, before anything of it is computed or allocated."""

from __future__ import annotations

import os
import resource
import threading
from math import prod

import numpy as np
import pytest
from imported_models import F, I, check, imported, model, node, ops, save
from onnx import TensorProto, helper, numpy_helper

import modelc
from modelc.compile.choices import digest_of
from modelc.errors import ModelError
from modelc.frontend.building.limits import LARGEST_DENSE, LARGEST_FOLDED
from modelc.frontend.onnx import import_model, unsupported
from modelc.frontend.operators.arithmetic import MOST_OPERANDS
from modelc.ir.block import Iter
from modelc.ir.expr import Load, Var
from modelc.ir.graph import Node, Value
from modelc.ops import operator_of
from modelc.ops.operator import Definition, Operator, assign
from modelc.passes.fold_constants import FoldConstants

X = [("X", F, [1, 4, 4])]
X_INFO = [helper.make_tensor_value_info("o", F, [1, 4, 4])]
IMAGE = [("X", F, [1, 3, 8, 8])]
W = {"W": np.ones((4, 3, 3, 3), np.float32)}


def refused(made, folder, sentence, reads=(import_model,)):
    path = save(made, folder)
    for read in reads:
        with pytest.raises(ModelError, match=sentence):
            read(path)


# --- nodes, without knowing shapes -----------------------------------------------------------------------------------

BY_SCHEMA = {
    "few inputs": (node("Add", "X", "Y"), "expected 2 inputs, found 1"),
    "surplus inputs": (node("Relu", "X,X", "Y"), "expected 1 input, found 2"),
    "absent input": (node("Add", "X,", "Y"), "expected an input at position 1 .B., found none"),
    "no outputs": (helper.make_node("Relu", ["X"], []), "expected 1 output, found 0"),
    "surplus outputs": (node("Relu", "X", "Y,Z"), "expected 1 output, found 2"),
    "misspelt": (node("Softmax", "X", "Y", axes=1), "expected one of its operator's attributes .axis., found 'axes'"),
    "wrong type": (node("Softmax", "X", "Y", axis=1.0), "expected attribute axis of type INT, found FLOAT"),
    "a list": (node("Transpose", "X", "Y", perm=1), "expected attribute perm of type INTS, found INT"),
    "text": (node("Transpose", "X", "Y", perm="x"), "expected attribute perm of type INTS, found STRING"),
    "missing": (node("Concat", "X,X", "Y"), "expected an attribute axis, found none"),
    "a value": (
        node("GridSample", "X,X", "Y", mode="linear"),
        "mode among bilinear, nearest, bicubic, found",
    ),
    "a number": (node("MaxPool", "X", "Y", kernel_shape=[2], storage_order=2), "storage_order among 0, 1, found 2"),
    "own domain": (node("FusedMatMul", "X", "Y", domain="com.microsoft"), "expected 2 inputs, found 1"),
    "own attribute": (node("Gelu", "X", "Y", domain="com.microsoft", alpha=1.0), "expected one of .*none.*'alpha'"),
    "own type": (node("QuickGelu", "X", "Y", domain="com.microsoft", alpha=1), "alpha of type FLOAT, found INT"),
}


@pytest.mark.parametrize("name", BY_SCHEMA)
def test_nodes_are_as_their_schemas_say(tmp_path, name):
    made, sentence = BY_SCHEMA[name]
    refused(model([made], X, domains=("", "com.microsoft")), tmp_path, sentence, (import_model, unsupported))


def test_a_cast_to_no_element_type_is_refused(tmp_path):
    refused(model([node("Cast", "X", "Y", to=0)], X), tmp_path, "ONNX does not allow this: Invalid tensor data type 0")


def test_an_attribute_given_twice(tmp_path):
    made = node("Softmax", "X", "Y", axis=1)
    made.attribute.append(made.attribute[0])
    refused(model([made], X), tmp_path, "node 'Softmax_0' .Softmax.: attribute 'axis' is given twice")


def test_an_attribute_of_two_types(tmp_path):
    made = node("Softmax", "X", "Y", axis=1)
    made.attribute[0].ints.append(1)
    refused(model([made], X), tmp_path, "attribute 'axis' of type INT has data in 'ints' too")


def test_nodes_have_names_of_their_own(tmp_path):
    nodes = [node("Relu", "X", "a", name="n"), node("Relu", "a", "Y", name="n")]
    refused(model(nodes, X), tmp_path, "node 'n' .Relu.: another node has this name")


def test_nodes_that_nothing_needs_read_what_is_there(tmp_path):
    nodes = [node("Relu", "X", "Y"), node("Relu", "nowhere", "dead", name="n")]
    refused(model(nodes, X), tmp_path, "value 'nowhere' is read by node 'n', but nothing produces it")


def test_an_activation_has_its_parameters(tmp_path):
    made = node("FusedConv", "X,W", "Y", domain="com.microsoft", activation="LeakyRelu")
    refused(model([made], IMAGE, constants=W, domains=("", "com.microsoft")), tmp_path, "alpha of LeakyRelu, found no")


def test_branches_and_functions_are_checked_too(tmp_path):
    out = [helper.make_tensor_value_info("o", F, [1, 4, 4])]
    branch = helper.make_graph([node("Relu", "X,X", "o", name="inner")], "b", [], out)
    made = node("If", "c", "Y", name="choice", then_branch=branch, else_branch=branch)
    refused(model([made], X, constants={"c": np.array(True)}), tmp_path, "'choice' .*_branch: node 'inner'.*1 input")
    sets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "f", ["a"], ["b"], [node("Relu", "a", "b", name="in", x=1)], sets)
    calls = [node("f", "X", "Y", domain="own")]
    refused(model(calls, X, functions=[function], domains=("", "own")), tmp_path, "function f, node 'in'.*found 'x'")
    calls = [node("f", "X,X", "Y", domain="own")]
    function.node[0].ClearField("attribute")
    refused(model(calls, X, functions=[function], domains=("", "own")), tmp_path, "expected 0 to 1 inputs, found 2")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda g: g.input.append(g.input[0]), "two inputs named 'X'"),
        (lambda g: g.output.append(g.output[0]), "two outputs named 'Y'"),
        (lambda g: g.initializer.extend([numpy_helper.from_array(np.ones(1), "w")] * 2), "two initialisers named 'w'"),
        (lambda g: g.input.add(), "input without a name"),
        (lambda g: g.node.append(g.node[0]), "produced twice"),
        (lambda g: g.initializer.add(name="w", data_type=1, dims=[-1]), "impossible shape"),
        (lambda g: g.initializer.add(name="w", data_type=1, dims=[1] * 70), "70 dimensions; expected at most 32"),
        (lambda g: g.initializer.add(name="w", data_type=1, dims=[1 << 40, 1 << 40]), "expected at most .* elements"),
    ],
)
def test_graphs_name_everything_once(tmp_path, damage, sentence):
    made = model([node("Relu", "X", "Y")], X)
    damage(made.graph)
    refused(made, tmp_path, sentence)


def test_two_functions_of_one_name(tmp_path):
    sets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "f", ["a"], ["b"], [node("Relu", "a", "b")], sets)
    made = model([node("f", "X", "Y", domain="own")], X, functions=[function, function], domains=("", "own"))
    refused(made, tmp_path, "two functions own.f")


def test_names_that_are_not_utf8(tmp_path):
    content = model([node("Relu", "XXXX", "Y", name="NNNN")], [("XXXX", F, [1])]).SerializeToString()
    for name in (b"XXXX", b"NNNN"):
        path = tmp_path / "m.onnx"
        path.write_bytes(content.replace(name, b"\xff\xfe\xff\xfe"))
        with pytest.raises(ModelError, match=r"no UTF-8|cannot be read"):
            import_model(path)


# --- nodes, with dtypes and shapes -----------------------------------------------------------------------------------

BY_INFERENCE = {
    "dtypes differ": (node("Add", "X,K", "Y"), X, {"K": np.ones(4, np.int64)}, "inconsistent type"),
    "dtype": (node("Gather", "X,K", "Y"), X, {"K": np.ones(4, np.float32)}, "unsupported type.*'K' float32.4."),
    "broadcast": (node("Add", "X,K", "Y"), X, {"K": np.ones(3, np.float32)}, "Incompatible dimensions"),
    "rank": (node("Conv", "X,W", "Y"), X, W, "does not allow|expected"),
    "strides": (node("Conv", "X,W", "Y", strides=[0, 1]), IMAGE, W, "strides must"),
    "kernel": (node("MaxPool", "X", "Y", kernel_shape=[0, 0]), IMAGE, {}, "kernel_shape must"),
    "perm": (node("Transpose", "X", "Y", perm=[0, 0, 1]), X, {}, "repeated value"),
    "axis": (node("Softmax", "X", "Y", axis=7), X, {}, "expected an axis from -3 to 3, found 7"),
    "split": (node("Split", "X", "Y,Z", axis=2, num_outputs=1 << 40), X, {}, "expected num_outputs 2, as many"),
    "result": (node("Tile", "X,K", "Y"), X, {"K": np.array([1 << 40] * 3)}, "its result 'Y' has the .* at most"),
}


@pytest.mark.parametrize("name", BY_INFERENCE)
def test_inputs_are_as_onnx_infers(tmp_path, name):
    made, inputs, constants, sentence = BY_INFERENCE[name]
    refused(model([made], inputs, constants=constants, opset=18), tmp_path, f"node '.*{sentence}")


def test_a_condition_is_one_bool(tmp_path):
    out = [helper.make_tensor_value_info("o", F, [1, 4, 4])]
    branch = helper.make_graph([node("Relu", "X", "o")], "b", [], out)
    made = node("If", "c", "Y", then_branch=branch, else_branch=branch)
    for wrong in (np.zeros(0, bool), np.ones(2, bool), np.ones(1, np.float32)):
        refused(model([made], X, constants={"c": wrong}), tmp_path, "expected a condition of one bool")


# --- sizes ----------------------------------------------------------------------------------------------------------


def sparse(dims, values, indices, at=(2,)):
    made = model([node("Add", "X,S", "Y")], X)
    tensors = helper.make_tensor("S", F, [len(values)], values), helper.make_tensor("at", I, at, indices)
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(*tensors, dims))
    return made


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (sparse([1 << 20, 1 << 20], [1.0, 2.0], [0, 1]), f"expected at most {LARGEST_DENSE}|elements"),
        (sparse([1 << 15, 1 << 15], [1.0, 2.0], [0, 1]), f"when dense; expected at most {LARGEST_DENSE}"),
        (sparse([-1, 4], [1.0, 2.0], [0, 1]), "impossible shape"),
        (sparse([4, 4], [1.0, 2.0], [0, 99]), "outside its shape"),
        (sparse([4, 4], [1.0, 2.0], [0, -1]), "outside its shape"),
        (sparse([4, 4], [1.0, 2.0], [0, 1, 2], (3,)), "expected int64 indices, one or 2 for each value"),
        (sparse([4, 4], [1.0, 2.0], [0, 1, 2, 1, 0, 0], (2, 3)), "expected int64 indices, one or 2 for each value"),
    ],
)
def test_sparse_initialisers_are_bounded(tmp_path, made, sentence):
    refused(made, tmp_path, sentence)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("EyeLike", "K", "E"), node("ReduceSum", "E", "R")], {"K": np.ones((1 << 15, 1), np.float32)}),
        ([node("Range", "a,n,b", "R")], {k: np.array(v) for k, v in (("a", 0), ("n", 1 << 28), ("b", 1))}),
        ([node("ConstantOfShape", "n", "R")], {"n": np.array([1 << 14, 1 << 15])}),
        ([node("Expand", "a,n", "R")], {"a": np.ones(1, np.float32), "n": np.array([1 << 14, 1 << 15])}),
        ([node("Add", "a,b", "R")], {"a": np.ones((1 << 14, 1), np.float32), "b": np.ones(1 << 15, np.float32)}),
        ([node("Pad", "a,n", "R")], {"a": np.ones(1, np.float32), "n": np.array([0, 1 << 29])}),
        ([node("EyeLike", "a", "R")], {"a": np.broadcast_to(np.float32(0), (1 << 8, 1 << 8))}),
    ],
)
def test_folding_stays_small(tmp_path, nodes, constants):
    """Constants of 2^28 elements are refused, or left to the package to compute."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    path = save(model(nodes, X, ("R",), constants=constants, opset=18), tmp_path)
    try:
        graph = import_model(path)
        assert sum(v.data.nbytes for v in graph.values.values() if v.data is not None) < 1 << 22
    except ModelError as error:
        assert f"expected at most {LARGEST_FOLDED}" in str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 18  # KB


def test_what_is_folded_in_all_is_bounded(tmp_path, monkeypatch):
    """Each is allowed by itself."""
    monkeypatch.setattr("modelc.frontend.building.build.LARGEST_FOLDED", 4 * 4 * 64 * 64)
    inputs = [("X", F, [64, 64])]
    for count in (3, 5):
        nodes = [node("EyeLike", "X", f"E{k}") for k in range(count)]
        made = model([*nodes, node("Max", ",".join(["X", *(f"E{k}" for k in range(count))]), "Y")], inputs)
        if count == 3:
            assert import_model(save(made, tmp_path)).values["Y"].shape == (64, 64)
        else:
            refused(made, tmp_path, "node 'EyeLike_4' .EyeLike.: computing constants when compiling has made 81920")


def test_a_chain_of_folded_constants_keeps_only_what_is_read(tmp_path):
    """48 steps of 8 MB each."""
    nodes = [node("Mul", f"W{k},s", f"W{k + 1}") for k in range(48)] + [node("Add", "X,W48", "Y")]
    constants = {"W0": np.ones(1 << 21, np.float32), "s": np.float32(1.5)}
    graph = import_model(save(model(nodes, [("X", F, [1 << 21])], constants=constants), tmp_path))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = FoldConstants()(graph)
    assert ops(done) == ["Add"] and resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
    np.testing.assert_allclose(done.values["W48"].data, np.float32(1.5) ** 48, rtol=1e-5)


@pytest.mark.parametrize(("k", "shape"), [(0, (1, 16, 5)), (1, (1, 12, 4)), (2, (1, 16)), (4, (1, 2, 4))])
def test_recurrent_weights_fit_each_other(tmp_path, k, shape):
    weights = {"W": (1, 16, 3), "R": (1, 16, 4), "B": (1, 32), "H": (1, 1, 4), "C": (1, 1, 4)}
    weights["WRBHC"[k]] = shape
    made = model([node("LSTM", "X,W,R,B,,H,C", "Y", hidden_size=4)], [("X", F, [2, 1, 3])],
                 constants={name: np.ones(s, np.float32) for name, s in weights.items()})  # fmt: skip
    refused(made, tmp_path, f"expected input '{'WRBHC'[k]}' of shape")


@pytest.mark.parametrize("k", [0, 2])
def test_recurrent_inputs_have_three_dimensions(tmp_path, k):
    weights = {"W": np.ones((1, 16, 3), np.float32), "R": np.ones((16, 4) if k else (1, 16, 4), np.float32)}
    made = model([node("LSTM", "X,W,R", "Y", hidden_size=4)], [("X", F, [2, 1, 3] if k else [2, 3])], constants=weights)
    refused(made, tmp_path, f"expected input '{'XWR'[k]}' to have 3 dimensions|rank 3")


AT_DEFINITION = {  # ONNX's inference takes them
    "scale broader": (node("RMSNormalization", "X,s", "Y", axis=-2), 23, {"s": np.ones((2, 4, 4), "f4")}, "broad"),
    "window": (node("LpNormalization", "X", "Y", p=7), 18, {}, "expected p 1 or 2, found 7"),
    "epsilon": (node("LayerNormalization", "X,s", "Y", epsilon=-1.0), 18, {"s": np.ones(4, np.float32)}, "at least 0"),
    "size": (node("LRN", "X", "Y", size=0), 18, {}, "expected a size of at least 1, found 0"),
    "roi": (
        node("Resize", "X,r,,s", "Y", coordinate_transformation_mode="tf_crop_and_resize"), 18,
        {"r": np.array([0, 0, np.nan, 1, 1, 1], np.float32), "s": np.array([1, 4, 5])}, "finite numbers as roi",
    ),
    "reach": (
        node("AveragePool", "X", "Y", kernel_shape=[1 << 40], auto_pad="SAME_UPPER"), 22, {},
        "reaches over at most 2147483647 elements, found 1099511627776",
    ),
    "diagonal": (node("Trilu", "X,k", "Y"), 14, {"k": np.array([1, 2, 3])}, "expected one number as k, found 3"),
    "positions": (node("Resize", "X,,,s", "Y"), 18, {"s": np.array([1, 4, 9])}, "expected a dimension of at most 7"),
    "weights": (
        node("Resize", "X,,s", "Y", mode="linear", antialias=1, axes=[2]), 18,
        {"s": np.array([0.26], np.float32)}, "expected at most 7 weights",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AT_DEFINITION)
def test_inputs_are_as_they_are_read(tmp_path, name, monkeypatch):
    monkeypatch.setattr("modelc.ops.resize.MOST_WEIGHTS", 7)
    made, opset, constants, sentence = AT_DEFINITION[name]
    path = save(model([made], X, constants=constants, opset=opset), tmp_path)
    with pytest.raises(ModelError, match=f"node '.*{sentence}"):
        modelc.compile(path, "x86-64-v3", stop_after="partition")


def test_inputs_have_the_elements_that_are_read():
    """What an operator's own checks leave through."""
    values = (Value("a", "float32", (3, 4)), Value("b", "float32", (2, 4)))
    iters = (Iter("m", 3), Iter("n", 4))
    at = (Var("m"), Var("n"))
    block = assign("sum", iters, Load("y0", at), Load("x0", at) + Load("x1", at))
    both = Operator("Both", lambda node, inputs: (("float32", (3, 4)),), lambda *_: Definition((), (block,)))
    read = Node("Both", "n", ("a", "b"), ("y",))
    with pytest.raises(ModelError, match=r"node 'n' .Both.: input 'b' is read at 0..2 of dimension 0, which has 2"):
        both.define(read, values, [Value("y", "float32", (3, 4))])


def test_a_window_of_more_channels_than_there_are(tmp_path):
    """Neighbours that are not there are not counted."""
    sums = []
    for size in (7, (1 << 63) - 1):
        graph = imported(model([node("LRN", "X", "Y", size=size, alpha=float(size))], X), tmp_path)
        (lrn,) = graph.nodes
        definition = operator_of(lrn).define(lrn, (graph.values["X"],), [graph.values["Y"]])
        sums.append(definition.blocks[0])
    assert sums[0] == sums[1] and prod(i.extent for i in sums[0].reduction) == 7


def test_what_no_output_needs_is_a_tensor_all_the_same(tmp_path):
    for damage, sentence in (
        ({"data_type": 99}, "elements of type number 99, which ONNX does not have"),
        ({"data_type": 0}, "elements of type number 0"),
        ({"data_type": 1, "data_location": TensorProto.EXTERNAL, "raw_data": bytes(16)}, "data of its own"),
    ):
        made = model([node("Relu", "X", "Y")], X)
        made.graph.initializer.add(name="w", dims=[4], **damage)
        refused(made, tmp_path, f"initialiser 'w'.*{sentence}")
    made = model([node("Relu", "X", "Y")], X)
    made.graph.initializer.add(name="w", dims=[4], data_type=1, data_location=1).external_data.add(key="location")
    refused(made, tmp_path, "initialiser 'w' has external data with a key or a value that is missing")


def test_versions_that_are_missing(tmp_path):
    made = model([node("Relu", "X", "Y")], X)
    made.ir_version = 0
    refused(made, tmp_path, "ONNX IR version 0; expected 1 at least")
    made = model([node("Relu", "X", "Y"), node("Gelu", "X", "Z", domain="com.microsoft")], X)
    refused(made, tmp_path, "opset_import names no version of its domain 'com.microsoft'")


def test_an_operator_that_its_operator_set_does_not_have(tmp_path):
    made = model([node("Scatter", "X,i,", "Y")], X, constants={"i": np.zeros((1, 4, 4), np.int64)}, opset=8)
    refused(made, tmp_path, "there is no such operator before operator set 9, which is 8 here")


def test_a_function_of_an_absurd_operator_set(tmp_path):
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("x", 1 << 40)]
    function = helper.make_function("own", "f", ["a"], ["b"], [node("Relu", "a", "b")], sets)
    made = model([node("f", "X", "Y", domain="own")], X, functions=[function], domains=("", "own"))
    refused(made, tmp_path, "uses version 1099511627776 of operator set 'x'")


@pytest.mark.parametrize("axis", [-4, -(1 << 31), 1 << 31, (1 << 63) - 1])
def test_an_axis_that_inference_would_write_to(tmp_path, axis):
    made = model([node("LayerNormalization", "X,s", "Y,M,S", axis=axis)], X, constants={"s": np.ones(4, np.float32)})
    refused(made, tmp_path, f"expected an axis from -3 to 3, found {axis}")


def test_a_function_whose_caller_leaves_out_what_it_needs(tmp_path):
    sets = [helper.make_opsetid("", 18)]
    body = [node("Add", "a,b", "s"), node("Clip", "s,low", "c")]
    function = helper.make_function("own", "f", ["a", "b", "low"], ["c"], body, sets)
    made = model([node("f", "X", "Y", domain="own")], X, functions=[function], domains=("", "own"))
    refused(made, tmp_path, r"expected an input at position 1 \(B\), found none")
    made = model([node("f", "X,X", "Y", domain="own")], X, functions=[function], domains=("", "own"))
    assert import_model(save(made, tmp_path)).outputs == ("Y",)


def test_a_recurrent_direction_that_is_none(tmp_path):
    weights = {"W": np.ones((1, 16, 3), np.float32), "R": np.ones((1, 16, 4), np.float32)}
    made = node("LSTM", "X,W,R", "Y", hidden_size=4, direction="x")
    refused(model([made], [("X", F, [2, 1, 3])], constants=weights), tmp_path, "expected a direction among forward")


def test_branches_have_the_outputs_of_their_node(tmp_path):
    branches = [helper.make_graph([], f"b{n}", [], X_INFO * n) for n in (1, 2)]
    made = node("If", "c", "Y", then_branch=branches[0], else_branch=branches[1])
    refused(
        model([made], X, constants={"c": np.array(True)}), tmp_path, "expected branches of 1 outputs.*found 2 in else"
    )


def test_a_sparse_scalar(tmp_path):
    refused(sparse([], [1.0, 2.0], [], (2, 0)), tmp_path, "has no dimensions; expected one at least")


def test_inputs_have_the_rank_that_is_read(tmp_path):
    constants = {"s": np.float32(1), "z": np.full((4, 4), 128, np.uint8)}
    graph = imported(model([node("QuantizeLinear", "X,s,z", "Y")], X, constants=constants), tmp_path)
    with pytest.raises(ModelError, match=r"expected input 'z' to have 0 dimensions, found .4, 4."):
        modelc.compile(tmp_path / "m.onnx", "x86-64-v3", stop_after="partition")
    assert ops(graph) == ["QuantizeLinear"]


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_many_operands_are_taken_in_turns(tmp_path, op):
    names = [f"X{k}" for k in range(40)]
    made = model([node(op, ",".join(names), "Y")], [(x, F, [3]) for x in names])
    graph = check(made, tmp_path)
    assert max(len(n.inputs) for n in graph.nodes) <= MOST_OPERANDS < len(names)


def test_2000_operands_compile(tmp_path):
    names = [f"X{k}" for k in range(2000)]
    path = save(model([node("Sum", ",".join(names), "Y")], [(x, F, [3]) for x in names]), tmp_path)
    assert modelc.compile(path, "x86-64-v3", stop_after="schedule").seconds["schedule"] > 0


def test_outputs_are_of_the_type_that_is_declared(tmp_path):
    made = model([node("Relu", "X", "Y")], X, [("Y", I, [1, 4, 4])])
    refused(made, tmp_path, "declares 'Y' with elements of type int64; they are float32")


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_results_without_elements_have_no_meaning(tmp_path, mode):
    constants = {"S": np.array([1, 1, 0, 8])}
    made = model([node("Resize", "X,,,S", "Y", mode=mode)], [("X", F, [1, 1, 4, 4])], constants=constants, opset=18)
    graph = imported(made, tmp_path)
    (resize,) = graph.nodes
    inputs = tuple(graph.values[x] if x else None for x in resize.inputs)
    assert operator_of(resize).define(resize, inputs, [graph.values["Y"]]).blocks == ()


def test_kernels_count_elements_in_32_bits(tmp_path):
    """The largest model that is taken is compiled in little memory, one element more is refused."""
    for count in ((1 << 31) - 1, 1 << 31):
        path = save(model([node("Relu", "X", "Y")], [("X", F, [count])]), tmp_path)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if count < 1 << 31:
            assert "schedule" in modelc.compile(path, "x86-64-v3", stop_after="schedule").seconds
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
        else:
            with pytest.raises(ModelError, match=r"'X' has the shape .2147483648.; expected at most 2147483647 el"):
                modelc.compile(path, "x86-64-v3", stop_after="schedule")


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("location", ["w" * 5000, "a\0b", ".", "nothing", "loop", "/etc/hostname", "../m", "a\\b", ""])
def test_external_data_that_is_not_there(tmp_path, location):
    (tmp_path / "loop").symlink_to("loop")
    made = model([node("Add", "X,E", "Y")], X)
    tensor = made.graph.initializer.add(name="E", data_type=F, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    refused(
        made, tmp_path, "tensor 'E' has its data in '.{,83}', |expected a file within|tensor 'E' has its data in ''"
    )


@pytest.mark.parametrize("number", ["x", "1e3", "9" * 5000, "-1", "99999999999999999999"])
def test_external_data_with_absurd_offsets(tmp_path, number):
    made = model([node("Add", "X,E", "Y")], X)
    (tmp_path / "data").write_bytes(bytes(16))
    tensor = made.graph.initializer.add(name="E", data_type=F, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="data")
    tensor.external_data.add(key="offset", value=number)
    refused(made, tmp_path, "tensor 'E'.{,200}$")


def test_a_pipe_is_no_model(tmp_path):
    path = tmp_path / "m.onnx"
    os.mkfifo(path)
    for read in (import_model, unsupported, modelc.inspect, digest_of):
        thread = threading.Thread(target=_expect_refusal, args=(read, path), daemon=True)
        thread.start()
        thread.join(20)
        assert not thread.is_alive(), "it waits for a writer"


def _expect_refusal(read, path):
    with pytest.raises(ModelError, match="is a pipe or a device"):
        read(path)


def test_a_name_that_no_file_has():
    for name in ("x" * 5000, "a\0b"):
        with pytest.raises(ModelError, match="cannot be read"):
            import_model(name)
