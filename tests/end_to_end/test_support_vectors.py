"""Classes by support vectors (ai.onnx.ml): votes, scores and probabilities as ONNX Runtime has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from classical_models import VERSIONS, X, ml, verified
from node_models import model_of

from modelc.errors import ModelError
from modelc.frontend.onnx import import_model
from modelc.ops import evaluate_graph

RNG = np.random.default_rng(3)


def numbers(count: int) -> list[float]:
    return RNG.standard_normal(count).round(3).tolist()


def classifier(
    name: str, counts: Sequence[int], kernel: str = "RBF", probable: bool = False, transform: str = "NONE", **more
) -> onnx.NodeProto:
    """`counts` are those of the vectors of each class."""
    classes, vectors = len(counts), sum(counts)
    pairs = classes * (classes - 1) // 2
    attrs = dict(kernel_type=kernel, kernel_params=[0.3, 0.1, 2.0], vectors_per_class=counts)
    attrs |= dict(support_vectors=numbers(vectors * 5), coefficients=numbers(vectors * (classes - 1)))
    attrs |= dict(rho=numbers(pairs), classlabels_ints=list(range(10, 10 + classes)), post_transform=transform)
    if probable:
        attrs |= dict(prob_a=(-np.abs(RNG.standard_normal(pairs)) - 1).tolist(), prob_b=numbers(pairs))
    return ml("SVMClassifier", "x", f"label_{name} score_{name}", **{**attrs, **more})


def linear(name: str, classes: int, positive: bool) -> onnx.NodeProto:
    weights = [abs(w) if positive else w for w in numbers(5 * classes)]
    attrs = dict(kernel_type="LINEAR", kernel_params=[0.0, 0.0, 3.0], coefficients=weights, rho=[-0.3])
    return ml("SVMClassifier", "x", f"label_{name} score_{name}", classlabels_ints=list(range(classes)), **attrs)


def test_votes_scores_and_probabilities(tmp_path: Path) -> None:
    nodes = []
    for counts in ([3, 4], [3, 2, 4], [2, 3, 2, 4, 2]):
        for probable in (False, True):
            every = [("NONE", kernel) for kernel in ("RBF", "LINEAR", "POLY", "SIGMOID")]
            for transform, kernel in (*every, ("LOGISTIC", "RBF"), ("SOFTMAX", "RBF")):
                name = f"{len(counts)}_{probable}_{transform}_{kernel}"
                nodes.append(classifier(name, counts, kernel, probable, transform))
    nodes += [linear(f"linear_{k}_{positive}", k, positive) for k in (2, 3) for positive in (False, True)]
    model = model_of(nodes, {"x": X}, VERSIONS)
    onnx.save(model, tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    wanted = dict(zip((o.name for o in session.get_outputs()), session.run(None, {"x": X}), strict=True))
    found = evaluate_graph(import_model(tmp_path / "m.onnx"), {"x": X})
    assert len(wanted) == 2 * len(nodes) == 80
    for name, value in wanted.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
        np.testing.assert_allclose(found[name], value, 1e-4, 1e-4, err_msg=name)
    assert sum(len(np.unique(value)) > 1 for name, value in wanted.items() if name.startswith("label")) > 30


def test_as_a_package(tmp_path: Path) -> None:
    """Probabilities are found in a loop that a run ends."""
    nodes = [classifier("chances", [3, 2, 4], probable=True), classifier("two", [3, 4]), linear("linear", 3, False)]
    verified(model_of(nodes, {"x": X}, VERSIONS), {"x": X}, tmp_path)


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (classifier("y", [3, 4], rho=[1.0, 2.0]), "expected 1 numbers in rho, found 2"),
        (classifier("y", [3, 4, 2], prob_a=[1.0], prob_b=[1.0]), "expected 3 numbers in prob_a and prob_b, found 1"),
        (classifier("y", [3, 4], vectors_per_class=[3, 5]), "expected 8 x 5 numbers in support_vectors"),
        (classifier("y", [3, 4], classlabels_ints=[1]), "expected two labels or more"),
        (classifier("y", [3, 4], kernel="COSINE"), "found 'COSINE'"),
    ],
)
def test_what_does_not_fit_is_refused(node: onnx.NodeProto, sentence: str, tmp_path: Path) -> None:
    onnx.save(model_of([node], {"x": X}, VERSIONS), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=sentence):
        import_model(tmp_path / "m.onnx")
