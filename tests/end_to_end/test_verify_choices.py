"""Outputs that are orders or choices: near-equal scores may trade places, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from other_reading import read_as

import modelc
from modelc.compile.verification import blueprints_of
from modelc.package import read_package
from modelc.verify.report import Report
from modelc.verify.verdict import verify_outputs

CLASSES, FEATURES = 12, 8
X = {"x": np.random.default_rng(5).standard_normal((2, FEATURES)).astype(np.float32)}


def detector(path: Path, shift: Callable[[np.ndarray], np.ndarray] = lambda b: b, **attrs: int) -> Path:
    """Scores of which the places 3 and 4, and 7 and 8, differ by a millionth; the five best with their boxes, the best
    alone, and what hangs on them. `shift` changes the biases, `attrs` are other attributes of the TopK."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((FEATURES, CLASSES)).astype(np.float32)
    weights[:, (4, 8)] = weights[:, (3, 7)]
    bias = np.zeros(CLASSES, np.float32)
    bias[[3, 4, 7, 8]] = (9, 9 + 1e-6 * 9, 4, 4 + 1e-6 * 4)
    known = {"w": weights, "b": shift(bias.copy()), "k": np.array([5]), "boxes": rng.uniform(0, 99, (CLASSES, 4))}
    known["boxes"] = known["boxes"].astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["s"], "score"),
        helper.make_node("TopK", ["s", "k"], ["best", "order"], "top", axis=1, **attrs),
        helper.make_node("Gather", ["boxes", "order"], ["found"], "take", axis=0),
        helper.make_node("ArgMax", ["s"], ["label"], "choose", axis=1, keepdims=0),
        helper.make_node("ReduceSum", ["found", "k1"], ["sum"], "add", keepdims=0),
    ]
    known["k1"] = np.array([2])
    kinds = {"best": (1, [2, 5]), "order": (7, [2, 5]), "found": (1, [2, 5, 4]), "label": (7, [2]), "sum": (1, [2, 5])}
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, FEATURES])],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in kinds.items()],
        [numpy_helper.from_array(v, k) for k, v in known.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def swapped(apart: float) -> Callable[[np.ndarray], np.ndarray]:
    """The two greatest scores the other way round, and so far apart; the next two too."""

    def shift(bias: np.ndarray) -> np.ndarray:
        bias[[3, 4, 7, 8]] = (9 + apart, 9, 4 + apart, 4)
        return bias

    return shift


def verified(package: Path, other: Path) -> Report:
    """What a package of the detector is found to be where ONNX Runtime reads another model."""
    model = package.with_name("right.onnx")
    with read_as(other):
        return verify_outputs(package, model, X, blueprints=blueprints_of(read_package(package), model))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = detector(tmp_path_factory.mktemp("choices") / "right.onnx")
    modelc.compile(model, output=model.with_name("p.modelc"), database=False)
    return model.with_name("p.modelc")


def test_near_equal_scores_may_trade_places(tmp_path: Path, package: Path) -> None:
    report = verified(package, detector(tmp_path / "other.onnx", swapped(1e-5)))
    assert report.passed
    amplified = {output.name for output in report.outputs if output.amplified}
    assert amplified == {"order", "found", "label", "sum"}
    assert "'label' departs by" in report.sentence() and "every kernel is right" in report.sentence()
    assert set(report.to_json()["summary"]["amplified"]) == amplified


OTHERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], dict[str, int]]] = {
    "scores that are not nearly equal": (swapped(0.05), {}),
    "the least first": (swapped(1e-5), {"largest": 0}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_wrong_order_is_none_of_nearly_equal_scores(tmp_path: Path, package: Path, what: str) -> None:
    shift, attrs = OTHERS[what]
    report = verified(package, detector(tmp_path / "other.onnx", shift, **attrs))
    assert not report.passed and report.first_departure is not None
