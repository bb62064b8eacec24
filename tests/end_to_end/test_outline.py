"""A look at a model reads no large tensor, and imports nothing that it does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from repository import ROOT

import modelc
from modelc.errors import ModelError
from modelc.frontend.load.outline import LARGE, read_outline
from modelc.frontend.load.read import read_model, tensor_array

NEEDLESS = ("tvm", "onnxruntime", "openvino", "scipy", "xgboost", "jsonschema", "yaml", "torch")
SIDE = 600  # a square of so many float32 is larger than LARGE


def a_model(path: Path) -> onnx.ModelProto:
    """Weights as an initialiser, in a Constant node and in a branch; a small one stays where it is."""
    rng = np.random.default_rng(0)
    w = [numpy_helper.from_array(rng.standard_normal((SIDE, SIDE)).astype("f4"), f"w{k}") for k in range(3)]
    info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIDE]) for name in ("x", "y", "a", "b")]
    one = helper.make_graph([helper.make_node("MatMul", ["h", "w2"], ["a"])], "one", [], [info[2]], [w[2]])
    two = helper.make_graph([helper.make_node("Identity", ["h"], ["b"])], "two", [], [info[3]])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=w[1]),
        helper.make_node("MatMul", ["x", "w0"], ["m"]),
        helper.make_node("MatMul", ["m", "c"], ["n"]),
        helper.make_node("Add", ["n", "bias"], ["h"]),
        helper.make_node("If", ["which"], ["y"], then_branch=one, else_branch=two),
    ]
    which = helper.make_tensor_value_info("which", TensorProto.BOOL, [])
    bias = numpy_helper.from_array(rng.standard_normal(SIDE).astype("f4"), "bias")
    graph = helper.make_graph(nodes, "g", [info[0], which], [info[1]], [w[0], bias])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, path)
    return model


def tensors_of(model: onnx.ModelProto) -> list[TensorProto]:
    (branch,) = (a.g for a in model.graph.node[4].attribute if a.name == "then_branch")
    return [*model.graph.initializer, model.graph.node[0].attribute[0].t, *branch.initializer]


def test_what_is_large_stays_in_the_file(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    whole, outline = a_model(path), read_outline(path)
    assert path.stat().st_size > 3 * SIDE * SIDE * 4 > 100 * outline.ByteSize() > 0
    compared = 0
    for ours, theirs in zip(tensors_of(outline), tensors_of(whole), strict=True):
        large = len(theirs.raw_data) >= LARGE
        assert ours.HasField("raw_data") is not large and (ours.name, ours.dims) == (theirs.name, theirs.dims)
        np.testing.assert_array_equal(tensor_array(ours, tmp_path), numpy_helper.to_array(theirs))
        compared += large
        ours.CopyFrom(theirs)
    assert compared == 3 and outline == whole
    assert modelc.inspect(path)["dtypes"] == {"float32": 3 * SIDE * SIDE + SIDE}


def test_what_is_no_plain_model_is_read_whole(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    a_model(path)
    content, said = path.read_bytes(), []
    for k, damaged in enumerate((content[:-1], content[: len(content) // 2], content + b"\x0b", b"\xff" * LARGE)):
        place = tmp_path / f"{k}.onnx"
        place.write_bytes(damaged)
        messages = []
        for read in (read_model, read_outline):
            with pytest.raises(ModelError) as raised:
                read(place)
            messages.append(str(raised.value))
        assert messages[0] == messages[1]
        said += messages
    assert all("protobuf cannot be read" in message for message in said) and len(said) == 8
    odd = tmp_path / "a\\b.onnx"  # no name for external data
    odd.write_bytes(content)
    assert read_outline(odd) == read_model(path)


def test_a_tensor_with_data_in_two_places_is_refused_all_the_same(tmp_path) -> None:
    model = a_model(tmp_path / "m.onnx")
    tensor = model.graph.initializer[0]
    tensor.external_data.add(key="location", value="elsewhere")
    tensor.data_location = TensorProto.EXTERNAL
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="both external data and data of its own"):
        read_outline(tmp_path / "m.onnx")


def test_inspect_imports_nothing_that_it_does_not_need(tmp_path) -> None:
    a_model(tmp_path / "m.onnx")
    program = (
        "import sys\n"
        "from modelc.cli import main\n"
        "try:\n"
        "    main(['inspect', sys.argv[1]])\n"
        "except SystemExit as end:\n"
        "    assert not end.code, end.code\n"
        f"print(sorted({{m.split('.')[0] for m in sys.modules}} & {set(NEEDLESS)!r}))\n"
        "print(sum(m.startswith('modelc.') for m in sys.modules), 'onnx' in sys.modules)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "m.onnx"], capture_output=True, text=True, env=env)
    needless, (count, onnx_too) = done.stdout.splitlines()[-2], done.stdout.splitlines()[-1].split()
    assert (needless, onnx_too) == ("[]", "True"), done.stdout + done.stderr
    assert 20 < int(count) < 170  # of some 380: rooms below the frontend are not there
