"""Whole networks, imported and simplified: what is left of them, and that they compute the same."""

import networks
import numpy as np
import onnx
import pytest
from graph_to_onnx import assert_same, random_feeds, run_onnx, to_onnx
from repository import ROOT

from modelc.frontend.onnx import import_model, unsupported
from modelc.passes import run_passes

# Operators that simplified networks are made of, whatever their exporter wrote.
LEFT = {
    "resnet18": (
        lambda: networks.resnet(18, width=8, image=32, classes=10),
        {"Conv", "Relu", "MaxPool", "Add", "GlobalAveragePool", "Reshape", "Gemm"},
    ),
    "mobilenet-v2": (
        lambda: networks.mobilenet(width=0.25, image=32, classes=10),
        {"Conv", "Clip", "Add", "GlobalAveragePool", "Reshape", "Gemm"},
    ),
    "resnet3d-18": (
        lambda: networks.resnet3d(width=4, frames=4, image=16, classes=10),
        {"Conv", "Relu", "Add", "GlobalAveragePool", "Reshape", "Gemm"},
    ),
    "dcgan": (lambda: networks.dcgan(width=4, latent=10), {"ConvTranspose", "Relu", "Tanh"}),
    "bert": (
        lambda: networks.bert(2, 32, 2, tokens=16, vocabulary=100),
        {"Gather", "Slice", "Cast", "Sub", "Mul", "Add", "MatMul", "Reshape", "Transpose", "Div", "Softmax", "Gemm"}
        | {"LayerNormalization", "Gelu", "Tanh"},
    ),
    "gpt2": (
        lambda: networks.gpt2(2, 32, 2, tokens=16, vocabulary=100, context=32),
        {"Gather", "Add", "MatMul", "Gemm", "Reshape", "Transpose", "Split", "Div", "Where", "Softmax"}
        | {"LayerNormalization", "Gelu"},
    ),
    "vit": (
        lambda: networks.vit(2, 32, 2, image=32, patch=8, classes=10),
        {"Conv", "Concat", "Add", "Mul", "MatMul", "Gemm", "Reshape", "Transpose", "Slice", "Softmax"}
        | {"LayerNormalization", "Gelu"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_networks_simplify(tmp_path, name):
    build, left = LEFT[name]
    path = tmp_path / "m.onnx"
    onnx.save(build(), path)
    assert unsupported(path) == []
    graph = import_model(path)
    after = run_passes(graph)
    assert {n.op for n in after.nodes} <= left
    assert len(after.nodes) < len(graph.nodes)
    feeds = _feeds(graph)
    expected = run_onnx(path, feeds)
    assert_same(expected, run_onnx(to_onnx(graph), feeds))
    assert_same(expected, run_onnx(to_onnx(after), feeds), 1e-3, 1e-5)


def _feeds(graph):
    feeds = random_feeds(graph, high=100)
    return {k: (v % 2 if "mask" in k or "type" in k else v) for k, v in feeds.items()}


# Trained models (scripts/fetch_models.py): shapes for their free dimensions, and their node count simplified, at most.
TRAINED = {
    "yunet": ({}, 100),
    "opennsfw": ({"input:0": (1, 224, 224, 3)}, 125),
    "resnet50-arc": ({}, 142),
    "ppocr-det": ({"x": (1, 3, 160, 160)}, 197),
    "ppocr-rec": ({"x": (1, 3, 48, 64)}, 210),
    "minilm": ({"input_ids": (1, 32)}, 108),
}


@pytest.mark.parametrize("name", TRAINED)
def test_trained_models_simplify(name):
    path = ROOT / f"models/{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} is not there; scripts/fetch_models.py {name} fetches it")
    shapes, most = TRAINED[name]
    graph = import_model(path, shapes)
    after = run_passes(graph)
    assert len(after.nodes) <= most
    feeds = _feeds(graph)
    feeds |= {k: np.ones_like(v) for k, v in feeds.items() if "mask" in k}
    for expected, found in zip(run_onnx(path, feeds), run_onnx(to_onnx(after), feeds), strict=True):
        scale = max(float(np.abs(expected).max()), 1.0)  # a Sigmoid near 0 is right to 1e-7 of 1, not of itself
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * scale)
