"""ONNX's own node tests: what the import and the passes make of every model has the outputs that the test expects."""

import numpy as np
import onnx
import pytest
from graph_texts import parse_graph
from graph_to_onnx import assert_same, run_onnx, to_onnx
from imported_models import constants_of
from onnx import numpy_helper
from onnx_cases import node_tests

from modelc.errors import ModelError
from modelc.frontend.control.structure import row_of
from modelc.frontend.onnx import import_model, unsupported
from modelc.ir.graph_text import show_graph
from modelc.ir.verify_graph import verify_graph
from modelc.passes import infer, run_passes

ALSO = {"Pad": (2,), "Dropout": (1,)}  # inputs that real models carry as initialisers, beside those that steer
# ONNX Runtime, which runs the imported Graph here, differs from ONNX in these.
DIFFERENT = ("resize_downsample_scales_linear_align_corners", "resize_downsample_scales_cubic_align_corners")
# What stays for a run though all that it reads is known.
UNFOLDED = {"Bernoulli", "Multinomial", "RandomUniformLike", "QuantizeLinear", "DequantizeLinear"}


def specialised(case):
    """The model with its steering inputs as initialisers, what is fed to it, and what it has to give."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    inputs, expected = case.data_sets[0]
    feeds = {i.name: x for i, x in zip(model.graph.input, inputs, strict=False)}
    for node in model.graph.node:
        for k in (*row_of(node).steers, *ALSO.get(node.op_type, ())):
            if k < len(node.input) and isinstance(feeds.get(node.input[k]), np.ndarray):
                model.graph.initializer.append(numpy_helper.from_array(feeds.pop(node.input[k]), node.input[k]))
    return model, feeds, list(expected)


def examine(case, path) -> str:
    """What became of a test: "same", "refused", or "not run" by ONNX Runtime. Anything else is an exception."""
    model, feeds, expected = specialised(case)
    path.write_bytes(model.SerializeToString())
    try:
        lacking = unsupported(path)
        graph = import_model(path, {k: x.shape for k, x in feeds.items() if isinstance(x, np.ndarray)})
    except ModelError as error:
        assert str(error)
        return "refused"
    assert not lacking
    verify_graph(graph, "import", infer)
    assert parse_graph(show_graph(graph)) == graph
    simplified = run_passes(graph)
    if any(not isinstance(x, np.ndarray) for x in expected) or case.name.removeprefix("test_") in DIFFERENT:
        return "not run"
    for candidate in (graph, simplified):
        try:
            found = run_onnx(to_onnx(candidate), feeds)
        except Exception:
            return "not run"
        assert_same(expected, found, 1e-3, 1e-4)
    return "same"


def examine_folded(case, path) -> str:
    """What became of a test whose inputs are all initialisers: "same", "refused", or "not folded"."""
    inputs, expected = case.data_sets[0]
    plain = all(isinstance(x, np.ndarray) and x.dtype.kind in "iufb" for x in (*inputs, *expected))
    if not plain or any(n.domain or n.op_type in UNFOLDED for n in case.model.graph.node):
        return "not folded"
    model = onnx.ModelProto.FromString(case.model.SerializeToString())
    names = [i.name for i in model.graph.input]
    model.graph.initializer.extend(numpy_helper.from_array(x, n) for n, x in zip(names, inputs, strict=False))
    del model.graph.input[:]
    path.write_bytes(model.SerializeToString())
    try:
        found = constants_of(import_model(path))
    except ModelError:
        return "refused"
    assert not any(x is None for x in found)
    if case.name.removeprefix("test_") not in DIFFERENT:
        assert_same(list(expected), found, 1e-3, 1e-4)
    return "same"


@pytest.mark.parametrize("part", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 8))])
def test_node_tests(tmp_path, part):
    cases = node_tests()[part::8]
    found: dict[str, list[str]] = {"same": [], "refused": [], "not run": []}
    wrong, folded = [], []
    for case in cases:
        try:
            found[examine(case, tmp_path / "m.onnx")].append(case.name)
        except Exception as error:
            wrong.append(f"{case.name}: {type(error).__name__} {error}"[:300])
        try:
            folded.append(examine_folded(case, tmp_path / "m.onnx"))
        except Exception as error:
            wrong.append(f"{case.name}, folded: {type(error).__name__} {error}"[:300])
    assert not wrong, "\n".join(wrong)
    assert folded.count("same") > 0.6 * len(cases), folded
    assert len(found["same"]) > 0.6 * len(cases), {k: len(v) for k, v in found.items()}
