"""ONNX -> Graph: what is refused and how, exporters' idioms, old operator sets, functions, branches, external data."""

import numpy as np
import onnx
import pytest
from imported_models import F, I, check, imported, model, node, ops, save
from onnx import TensorProto, helper, numpy_helper

from modelc.errors import ModelError
from modelc.frontend.onnx import import_model, unsupported
from modelc.ir.verify_graph import verify_graph
from modelc.passes import infer

# --- files --------------------------------------------------------------------------------------------------------

RELU = model([node("Relu", "X", "Y")], [("X", F, [1, 2])])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"\xff\xfe not a model", "not an ONNX file|holds no graph"),
        (b"PK\x03\x04zip file", "not an ONNX file|holds no graph"),
        (RELU.SerializeToString()[:-9], "truncated|holds no graph"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path, content, sentence):
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    for reads in (import_model, unsupported):
        with pytest.raises(ModelError, match=sentence):
            reads(path)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="is a folder"):
        import_model(tmp_path)


def test_every_truncation_is_a_sentence(tmp_path):
    made = model([node("Add", "X,W", "Y")], [("X", F, [2])], constants={"W": np.ones(2, np.float32)})
    content = made.SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError):
            import_model(path)


def test_any_damaged_byte_is_a_sentence_or_a_graph(tmp_path):
    made = model([node("Add", "X,W", "T"), node("Softmax", "T", "Y", axis=1)], [("X", F, [2, 2])],
                 constants={"W": np.ones((2, 2), np.float32)})  # fmt: skip
    content = made.SerializeToString()
    path = tmp_path / "m.onnx"
    rng = np.random.default_rng(1)
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([rng.integers(256)]) + content[at + 1 :])
        try:
            verify_graph(import_model(path), "import", infer)
        except ModelError as error:
            assert str(error)


def test_versions_from_the_future_are_refused(tmp_path):
    with pytest.raises(ModelError, match=r"operator set 999; expected 1 to \d+.*update onnx"):
        import_model(save(model([node("Relu", "X", "Y")], [("X", F, [1])], opset=999), tmp_path))
    with pytest.raises(ModelError, match="IR version 999"):
        import_model(save(model([node("Relu", "X", "Y")], [("X", F, [1])], ir=999), tmp_path))


def test_inconsistent_graphs_are_refused(tmp_path):
    x = [("X", F, [2])]
    for nodes, sentence in (
        ([node("Relu", "Z", "Y", "r")], "'Z' is read by node 'r', but nothing produces it"),
        ([node("Relu", "X", "Q")], "'Y' is an output, but nothing produces it"),
        ([node("Relu", "X", "Y"), node("Abs", "X", "Y", "again")], "'Y' is produced twice.*'again'"),
        ([node("Add", "X,Y", "T"), node("Relu", "T", "Y")], "depends on its own output"),
    ):
        with pytest.raises(ModelError, match=sentence):
            import_model(save(model(nodes, x), tmp_path))


def test_nodes_in_any_order_and_dead_nodes(tmp_path):
    made = model([node("Relu", "T", "Y"), node("NonZero", "X", "dead"), node("Abs", "X", "T")], [("X", F, [2, 2])])
    assert ops(imported(made, tmp_path)) == ["Abs", "Relu"]


# --- shapes -------------------------------------------------------------------------------------------------------

FREE = [("X", F, ["batch", 3, "", 4]), ("M", F, ["batch", 1, 1, 1])]


def test_free_dimensions_are_listed_with_the_flag(tmp_path):
    path = save(model([node("Mul", "X,M", "Y")], FREE), tmp_path)
    with pytest.raises(ModelError) as error:
        import_model(path)
    text = str(error.value)
    assert "add --dim batch=N --dim 'X[2]=N':" in text  # a dimension without a name has the input's
    assert "input 'X' [batch, 3, X[2], 4]" in text and "input 'M' [batch, 1, 1, 1]" in text


def test_a_named_dimension_is_fixed_everywhere(tmp_path):
    graph = check(model([node("Mul", "X,M", "Y")], FREE), tmp_path, X=(5, 3, 2, 4))
    assert graph.values["M"].shape == (5, 1, 1, 1)


@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        ({"Z": (1,)}, "names 'Z', which is no input of the model; its inputs are 'X', 'M'"),
        ({"X": (1, 3, 2)}, "has 3 dimensions; the model's input has 4"),
        ({"X": (1, 9, 2, 4)}, "sets dimension 1 to 9, which the model fixes at 3"),
        ({"X": (1, 3, -2, 4)}, "negative"),
    ],
)
def test_wrong_shapes_are_refused(tmp_path, shapes, sentence):
    with pytest.raises(ModelError, match=sentence):
        import_model(save(model([node("Mul", "X,M", "Y")], FREE), tmp_path), shapes)


def test_shape_chains_vanish(tmp_path):
    """x.view(x.size(0), -1) as PyTorch writes it, and an expanded mask."""
    nodes = [
        node("Shape", "X", "s"),
        node("Gather", "s,zero", "n", axis=0),
        node("Unsqueeze", "n,axes", "n1"),
        node("Concat", "n1,minus", "target", axis=0),
        node("Reshape", "X,target", "R"),
        node("ConstantOfShape", "s", "ones", value=helper.make_tensor("v", F, [1], [1.0])),
        node("Reshape", "ones,target", "O"),
        node("Add", "R,O", "Y"),
    ]
    constants = {"zero": np.int64(0), "axes": np.array([0]), "minus": np.array([-1])}
    graph = check(model(nodes, [("X", F, ["n", 2, 3])], constants=constants), tmp_path, X=(4, 2, 3))
    assert ops(graph) == ["Reshape", "Add"]
    assert "target" not in graph.values and graph.constant(graph.nodes[0].inputs[1]).tolist() == [4, 6]


def test_an_input_that_steers_is_refused_with_its_name(tmp_path):
    made = model([node("Reshape", "X,S", "Y", "r")], [("X", F, [4]), ("S", I, [2])])
    with pytest.raises(ModelError, match=r"node 'r'.*constant as shape, found 'S'"):
        import_model(save(made, tmp_path))


# --- what is not supported ----------------------------------------------------------------------------------------


def test_all_unsupported_nodes_are_listed_at_once(tmp_path):
    nodes = [
        node("StringNormalizer", "X", "a", "first"),
        node("Frobnicate", "X", "b", "second", domain="com.acme"),
        node("Optional", "X", "c"),
        node("Relu", "X", "d"),
    ]
    made = model(nodes, [("X", F, [2])], ["a", "b", "c", "d"], domains=("", "com.acme"))
    path = save(made, tmp_path)
    assert [u[:3] for u in unsupported(path)] == [
        ("first", "StringNormalizer", ""),
        ("second", "Frobnicate", "com.acme"),
        ("Optional_2", "Optional", ""),
    ]
    with pytest.raises(ModelError) as error:
        import_model(path)
    assert "'second' (com.acme.Frobnicate)" in str(error.value) and "'Optional_2'" in str(error.value)


def test_an_operator_newer_than_the_set_is_refused(tmp_path):
    made = model([node("Unheard", "X", "Y", "u")], [("X", F, [2])], opset=9)
    with pytest.raises(ModelError, match=r"'u' \(Unheard\): ONNX operator set 9 has no such operator"):
        import_model(save(made, tmp_path))


def test_data_dependent_operators_of_constants_are_computed(tmp_path):
    nodes = [node("NonZero", "C", "z"), node("Squeeze", "z,axes", "i"), node("Gather", "X,i", "Y")]
    constants = {"C": np.array([0, 1, 1]), "axes": np.array([0])}
    made = model(nodes, [("X", F, [3])], constants=constants)
    assert unsupported(save(made, tmp_path)) == []
    assert check(made, tmp_path).values["Y"].shape == (2,)


def test_a_condition_of_several_dimensions_is_refused(tmp_path):
    made = model([node("Compress", "X,C", "Y")], [("X", F, [3, 3])], constants={"C": np.ones((3, 3), bool)})
    with pytest.raises(ModelError, match=r"node 'Compress_0' .*a condition of one dimension, found \[3, 3\]"):
        import_model(save(made, tmp_path))


def test_statistics_of_float64_are_float32(tmp_path):
    """As the attribute stash_type says by default, and ONNX Runtime does."""
    constants = {"s": np.ones(4), "b": np.zeros(4)}
    x = [("X", TensorProto.DOUBLE, [2, 3, 4])]
    graph = check(model([node("LayerNormalization", "X,s,b", "Y,M,D")], x, ("Y", "M", "D"), constants), tmp_path)
    assert [graph.values[name].dtype for name in graph.outputs] == ["float64", "float32", "float32"]


def test_training_by_an_old_operator_set_is_refused(tmp_path):
    made = model([node("Dropout", "X,r,t", "Y", "drop")], [("X", F, [2])], opset=13,
                 constants={"r": np.float32(0.5), "t": np.array(True)})  # fmt: skip
    with pytest.raises(ModelError, match=r"'drop'.*training mode.*from operator set 15 on, found 13"):
        import_model(save(made, tmp_path))


# --- old operator sets --------------------------------------------------------------------------------------------

X4 = [("X", F, [2, 3, 4, 5])]
OLD = {
    "squeeze 11": (11, [node("Unsqueeze", "X", "T", axes=[0, -1]), node("Squeeze", "T", "Y", axes=[0])], {}),
    "reduce sum 11": (11, [node("ReduceSum", "X", "Y", axes=[1, -1], keepdims=0)], {}),
    "reduce mean 13": (13, [node("ReduceMean", "X", "Y", axes=[2])], {}),
    "softmax 11": (11, [node("Softmax", "X", "Y", axis=1)], {}),
    "log softmax 9 last": (9, [node("LogSoftmax", "X", "Y", axis=3)], {}),
    "slice 9": (9, [node("Slice", "X", "Y", starts=[1, 0], ends=[3, 100], axes=[2, 3])], {}),
    "slice 11 backwards": (11, [node("Slice", "X,s,e,a,t", "Y")],
                           {"s": np.array([-1]), "e": np.array([-100]), "a": np.array([3]), "t": np.array([-2])}),
    "pad 9": (9, [node("Pad", "X", "Y", mode="constant", pads=[0, 0, 1, 2, 0, 0, 3, 4], value=2.0)], {}),
    "split 11": (11, [node("Split", "X", "A,B", axis=3, split=[2, 3]), node("Concat", "B,A", "Y", axis=3)], {}),
    "split equal": (13, [node("Split", "X", "A,B", axis=2), node("Sub", "A,B", "Y")], {}),
    "clip 6": (9, [node("Clip", "X", "Y", min=-0.5, max=0.5)], {}),
    "dropout 9": (9, [node("Dropout", "X", "T,", ratio=0.5), node("Relu", "T", "Y")], {}),
    "top-k 9": (9, [node("TopK", "X", "Y,I", axis=3, k=2)], {}),
    "upsample 9": (9, [node("Upsample", "X,s", "Y", mode="nearest")], {"s": np.array([1, 1, 2, 3], np.float32)}),
    "upsample 7 linear": (7, [node("Upsample", "X", "Y", mode="linear", scales=[1.0, 1.0, 2.0, 2.0])], {}),
    "resize 10": (10, [node("Resize", "X,s", "Y", mode="linear")], {"s": np.array([1, 1, 2, 1.6], np.float32)}),
    "resize 11": (11, [node("Resize", "X,r,s", "Y", mode="nearest", coordinate_transformation_mode="half_pixel")],
                  {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 2, 1.5], np.float32)}),
    "resize 11 to sizes": (11, [node("Resize", "X,r,r,s", "Y", mode="linear")],
                           {"r": np.zeros(0, np.float32), "s": np.array([2, 3, 7, 9])}),
    "resize 12 of a region": (12, [node("Resize", "X,r,s", "Y", mode="cubic")],
                              {"r": np.float32([0, 0, 0, 0, 1, 1, 1, 1]), "s": np.float32([1, 1, 1.5, 2])}),
    "batch norm 8": (8, [node("BatchNormalization", "X,a,b,c,d", "Y", epsilon=1e-3)],
                     {k: np.array([0.5, 1.5, 2.5], np.float32) for k in "abcd"}),
    "flatten": (9, [node("Flatten", "X", "Y", axis=2)], {}),
    "global pool": (9, [node("GlobalAveragePool", "X", "T"), node("Flatten", "T", "Y")], {}),
    "average pool same": (11, [node("AveragePool", "X", "Y", kernel_shape=[2, 3], auto_pad="SAME_LOWER")], {}),
    "max pool valid": (11, [node("MaxPool", "X", "Y", kernel_shape=[2, 3], strides=[1, 2], auto_pad="VALID")], {}),
    "conv same": (11, [node("Conv", "X,W", "Y", strides=[2, 2], auto_pad="SAME_UPPER")],
                  {"W": np.linspace(-1, 1, 2 * 3 * 3 * 3, dtype=np.float32).reshape(2, 3, 3, 3)}),
    "gemm 9": (9, [node("Flatten", "X", "T", axis=1), node("Gemm", "T,W,c", "Y", transB=1, alpha=0.5, beta=2.0)],
               {"W": np.linspace(-1, 1, 7 * 60, dtype=np.float32).reshape(7, 60), "c": np.ones(7, np.float32)}),
    "prelu 7": (9, [node("PRelu", "X,W", "Y")], {"W": np.array([0.1, 0.2, 0.3], np.float32).reshape(3, 1, 1)}),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
def test_old_operator_sets(tmp_path, name):
    opset, nodes, constants = OLD[name]
    outputs = ("Y",)
    check(model(nodes, X4, outputs, constants, opset=opset, ir=4), tmp_path)


def test_broadcast_attributes_of_operator_set_6(tmp_path):
    """ONNX Runtime does not run these any more: the newest form is compared."""
    made = model(
        [node("Add", "X,B", "Y", axis=1, broadcast=1)], X4, constants={"B": np.ones(3, np.float32)}, opset=6, ir=3
    )
    graph = imported(made, tmp_path)
    assert ops(graph) == ["Reshape", "Add"] and graph.values[graph.nodes[1].inputs[1]].shape == (3, 1, 1)


# --- functions and branches ---------------------------------------------------------------------------------------


def test_functions_of_the_model_are_inlined(tmp_path):
    scaled = helper.make_function(
        "mine", "Scaled", ["a", "b"], ["c"],
        [node("Elu", "a", "t"), node("Mul", "t,b", "c")],
        [helper.make_opsetid("", 17)], ["alpha"],
    )  # fmt: skip
    scaled.node[0].attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="alpha", type=onnx.AttributeProto.FLOAT)
    )
    twice = helper.make_function(
        "mine", "Twice", ["a"], ["c"],
        [node("Scaled", "a,a", "t", domain="mine", alpha=0.3), node("Scaled", "t,a", "c", domain="mine", alpha=0.7)],
        [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)],
    )  # fmt: skip
    nodes = [node("Twice", "X", "T", "call", domain="mine"), node("Relu", "T", "Y")]
    graph = check(model(nodes, X4, functions=[scaled, twice], domains=("", "mine")), tmp_path)
    assert ops(graph) == ["Elu", "Mul", "Elu", "Mul", "Relu"]
    assert [n.attrs.get("alpha") for n in graph.nodes[:3:2]] == pytest.approx([0.3, 0.7])
    assert all(n.source == ("call",) for n in graph.nodes[:4])


def test_a_function_that_calls_itself_is_refused(tmp_path):
    loop = helper.make_function(
        "mine", "F", ["a"], ["c"], [node("F", "a", "c", domain="mine")], [helper.make_opsetid("mine", 1)]
    )
    made = model([node("F", "X", "Y", domain="mine")], X4, functions=[loop], domains=("", "mine"))
    with pytest.raises(ModelError, match="circle"):
        import_model(save(made, tmp_path))


def branch(name, nodes, output, constants=None):
    tensors = [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()]
    return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, F, None)], tensors)


@pytest.mark.parametrize(("rank", "op"), [(4, "Mul"), (3, "Add")])
def test_the_branch_that_a_known_condition_takes(tmp_path, rank, op):
    """As PyTorch writes `if x.dim() == 4`."""
    then = branch("then", [node("Mul", "T,two", "o")], "o", {"two": np.float32(2)})
    other = branch("else", [node("Add", "T,two", "o")], "o", {"two": np.float32(3)})
    nodes = [
        node("Relu", "X", "T"),
        node("Shape", "X", "s"),
        node("Size", "s", "r"),
        node("Equal", "r,four", "c"),
        helper.make_node("If", ["c"], ["Y"], name="if", then_branch=then, else_branch=other),
    ]
    x = [("X", F, [2] * rank)]
    graph = check(model(nodes, x, constants={"four": np.int64(4)}), tmp_path)
    assert ops(graph) == ["Relu", op]


def test_a_branch_that_hands_through(tmp_path):
    then, other = branch("then", [node("Identity", "X", "o")], "o"), branch("else", [node("Relu", "X", "p")], "p")
    nodes = [helper.make_node("If", ["c"], ["Y"], name="if", then_branch=then, else_branch=other)]
    check(model(nodes, X4, constants={"c": np.array(True)}), tmp_path)


def test_outputs_that_are_constants_or_inputs(tmp_path):
    nodes = [node("Shape", "X", "Y"), node("Identity", "X", "Z"), node("Relu", "W", "R")]
    graph = check(model(nodes, X4, ["Y", "Z", "W", "R"], {"W": np.ones(2, np.float32)}), tmp_path)
    assert graph.outputs == ("Y", "Z", "W", "R")


FUSED = {
    "FusedMatMul": ("X,W", (4, 5), {"transB": 1, "alpha": 0.5}),
    "BiasGelu": ("X,W", (5,), {}),
    "FastGelu": ("X,W", (5,), {}),
    "QuickGelu": ("X", (5,), {}),
    "SkipLayerNormalization": ("T,T,W,W,W", (5,), {}),
    "FusedConv": ("X,W", (2, 3, 2, 2), {"activation": "Relu", "kernel_shape": [2, 2]}),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_operators_of_onnx_runtime(tmp_path, name):
    inputs, shape, attrs = FUSED[name]
    weights = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    constants = {"W": weights, "s": np.array([6, 4, 5])}
    nodes = [node("Reshape", "X,s", "T"), node(name, inputs, "Y", domain="com.microsoft", **attrs)]
    check(model(nodes, X4, constants=constants, domains=("", "com.microsoft")), tmp_path)


# --- external data ------------------------------------------------------------------------------------------------


def external(folder, **entries):
    made = model([node("Add", "X,W", "Y")], [("X", F, [4])], constants={"W": np.ones(4, np.float32)})
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    return save(made, folder)


def test_external_data_is_read(tmp_path):
    (tmp_path / "sub").mkdir()
    np.arange(8, dtype=np.float32).tofile(tmp_path / "sub/w.bin")
    graph = import_model(external(tmp_path, location="sub/w.bin", offset=8, length=16))
    assert graph.constant("W").tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"location": "../w.bin"}, "within the model's folder"),
        ({"location": "a/../../w.bin"}, "within the model's folder"),
        ({"location": "/etc/passwd"}, "within the model's folder"),
        ({"location": "C:\\w.bin"}, "within the model's folder"),
        ({"location": ""}, "within the model's folder"),
        ({"location": "link.bin"}, "leaves the model's folder"),
        ({"location": "none.bin"}, "is not in the model's folder"),
        ({"location": "w.bin", "offset": 8}, "which has 16 bytes"),
        ({"location": "w.bin", "offset": -4}, "bytes -4"),
        ({"location": "w.bin", "offset": "x"}, "expected numbers as offset"),
        ({"location": "w.bin", "length": 8}, "has length 8"),
    ],
)
def test_external_data_elsewhere_is_refused(tmp_path, entries, sentence):
    folder = tmp_path / "model"
    folder.mkdir()
    np.ones(4, np.float32).tofile(folder / "w.bin")
    np.ones(4, np.float32).tofile(tmp_path / "w.bin")
    (folder / "link.bin").symlink_to(tmp_path / "w.bin")
    with pytest.raises(ModelError, match=sentence):
        import_model(external(folder, **entries))


def test_a_tensor_of_the_wrong_size_is_refused(tmp_path):
    made = model([node("Add", "X,W", "Y")], [("X", F, [4])], constants={"W": np.ones(4, np.float32)})
    made.graph.initializer[0].raw_data += b"1234"
    with pytest.raises(ModelError, match=r"'W'.*needs 16 bytes of data, found 20"):
        import_model(save(made, tmp_path))


def test_an_absurd_constant_is_not_computed(tmp_path):
    nodes = [node("Range", "a,b,c", "r"), node("Add", "X,r", "Y")]
    made = model(nodes, [("X", I, [1])], constants={"a": np.int64(0), "b": np.int64(1 << 40), "c": np.int64(1)})
    with pytest.raises(ModelError, match="elements"):
        import_model(save(made, tmp_path))


@pytest.mark.parametrize(
    ("start", "limit", "delta"), [(0, 5, np.nan), (np.nan, 5, 1), (0, np.nan, 1), (0, np.inf, 1), (-np.inf, 5, 1)]
)
def test_a_range_of_no_countable_steps_is_refused(tmp_path, start, limit, delta):
    nodes = [node("Range", "a,b,c", "r"), node("Shape", "r", "Y")]
    constants = {"a": np.float32(start), "b": np.float32(limit), "c": np.float32(delta)}
    with pytest.raises(ModelError, match=r"'Range_0' \(Range\): expected numbers between which steps can be counted"):
        import_model(save(model(nodes, [], constants=constants), tmp_path))


@pytest.mark.parametrize("delta", [np.inf, -np.inf])
def test_a_range_of_infinite_steps_is_empty_as_in_onnx_runtime(tmp_path, delta):
    constants = {"a": np.float32(0), "b": np.float32(5), "c": np.float32(delta)}
    graph = check(model([node("Range", "a,b,c", "Y")], [], constants=constants), tmp_path)
    assert graph.value("Y").shape == (0,)


def test_a_resize_that_crops_needs_its_region(tmp_path):
    attrs = {"coordinate_transformation_mode": "tf_crop_and_resize"}
    nodes = [node("Resize", "X,,s", "Y", **attrs)]
    made = model(nodes, [("X", F, [1, 2, 4, 5])], constants={"s": np.float32([1, 1, 2, 2])}, opset=11)
    with pytest.raises(ModelError, match=r"'Resize_0' \(Resize\): expected an input at position 1 \(roi\)"):
        import_model(save(made, tmp_path))
