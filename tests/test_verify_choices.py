"""Outputs that are orders or choices: near-equal scores may trade places, and no others."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from modelc.choices import digest_of
from modelc.config import load_config
from modelc.frontend.surgery import Choice, choices_of
from modelc.package import write_package
from modelc.pipeline import Run
from modelc.target import load_target
from modelc.verify.check import verify_outputs
from modelc.verify.choices import followed, traded_places
from modelc.verify.report import Report
from modelc.verify.truth import evaluated

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


@pytest.fixture(scope="module")
def verified(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Report]:
    """A package of the detector, compared with other models, kernel by kernel too."""
    model = detector(tmp_path_factory.mktemp("choices") / "right.onnx")
    run = Run(model, digest_of(model), load_target("native"), load_config(), ({},))
    programs = run.programs()
    compiled = run.kernels(programs.rounded)
    path = write_package(run.spec(programs, compiled), model.with_name("p.modelc")).path

    def compared(other: Path) -> Report:
        run.model = other
        return verify_outputs(path, other, X, kernels=partial(run.layers, programs, compiled))

    return compared


def test_near_equal_scores_may_trade_places(tmp_path: Path, verified: Callable[[Path], Report]) -> None:
    report = verified(detector(tmp_path / "other.onnx", swapped(1e-5)))
    assert report.passed
    traded = {o.name: o.traded for o in report.outputs}
    assert traded["label"] == 2 and traded["order"] >= 4 and traded["found"] and traded["sum"] and not traded["best"]
    assert "'label' with 2 choice(s) among nearly equal scores" in report.sentence()
    assert set(report.to_json()["summary"]["by_choice"]) == {"order", "found", "label", "sum"}


OTHERS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], dict[str, int], bool]] = {
    "nearly equal scores the other way round": (swapped(1e-5), {}, True),
    "scores that are not nearly equal": (swapped(0.05), {}, False),
    "the least first": (swapped(1e-5), {"largest": 0}, False),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_wrong_order_is_none_of_nearly_equal_scores(tmp_path: Path, what: str) -> None:
    shift, attrs, right = OTHERS[what]
    computed = evaluated(detector(tmp_path / "a.onnx"), X, wide=False)
    chosen = {name: computed[name] for name in ("order", "label")}
    found = followed(detector(tmp_path / "b.onnx", shift, **attrs), X, chosen, "ort-plain", 1e-3, 1e-4)
    assert (found is not None) == right
    if found is not None:
        assert found.traded["label"] == 2 and found.outputs["order"] is chosen["order"]


SCORES = np.array([[5.0, 5.000001, 3.0, 1.0]], np.float32)
ORDER = Choice("order", "s", 1, True)


def places(ours: list[int], reference: list[int] = [1, 0, 2]) -> int | None:  # noqa: B006
    return traded_places(np.array([ours]), np.array([reference]), SCORES, ORDER, 1e-3, 1e-4)


def test_places_that_may_be_traded() -> None:
    assert places([1, 0, 2]) == 0
    assert places([0, 1, 2]) == 2
    assert places([0, 1, 3]) is None
    assert places([1, 1, 2]) is None  # twice
    assert places([0, 1, 4]) is None  # no score
    assert places([0, -3, 2]) is None
    best = Choice("best", "s", -1, False)
    assert traded_places(np.array([0]), np.array([1]), SCORES, best, 1e-3, 1e-4) == 1
    assert traded_places(np.array([2]), np.array([1]), SCORES, best, 1e-3, 1e-4) is None


def test_what_a_model_chooses_by(tmp_path: Path) -> None:
    found = choices_of(detector(tmp_path / "m.onnx"))
    assert found == (Choice("order", "s", 1, True), Choice("label", "s", 1, False))
