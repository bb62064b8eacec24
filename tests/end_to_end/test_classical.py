"""Models of scikit-learn's kind (ai.onnx.ml) through packages, against ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from classical_models import ML, RNG, VERSIONS, X, ml, verified
from node_models import model_of
from onnx import TensorProto, helper, numpy_helper

import modelc
from modelc.errors import ModelError
from modelc.frontend.classical.trees import BY_NUMBER
from modelc.frontend.onnx import import_model, unsupported


def test_what_prepares_numbers(tmp_path: Path) -> None:
    gaps = np.where(RNG.random(X.shape) < 0.2, np.nan, X).astype(np.float32)
    whole = RNG.integers(-2, 6, (23, 3))
    none = np.where(np.arange(23)[:, None] % 3, X, 0).astype(np.float32)
    nodes = [
        ml("Scaler", "x", "scaled", offset=[0.5, 0, 1, 2, -3], scale=[1.0, 2.0, 3.0, 4.0, 5.0]),
        *(ml("Normalizer", "none", norm, norm=norm) for norm in ("MAX", "L1", "L2")),
        ml("Imputer", "gaps", "filled", imputed_value_floats=[1.0, 2.0, 3.0, 4.0, 5.0], replaced_value_float=np.nan),
        ml("Imputer", "none", "replaced", imputed_value_floats=[7.0], replaced_value_float=0.0),
        ml("Imputer", "whole", "counted", imputed_value_int64s=[9, 8, 7], replaced_value_int64=-1),
        ml("Binarizer", "x", "binary", threshold=0.25),
        ml("ArrayFeatureExtractor", "x two", "features"),
        ml("FeatureVectorizer", "x none", "joined", inputdimensions=[5, 5]),
        ml("OneHotEncoder", "whole", "hot", cats_int64s=[4, 0, 2], zeros=1),
        ml("LabelEncoder", "whole", "named", keys_int64s=[3, -2, 5], values_floats=[0.5, 1.5, -7.0], default_float=9.0),
        ml("LabelEncoder", "rounded", "again", keys_floats=[2.0, 1.0], values_int64s=[40, 41], default_int64=-5),
    ]
    feeds = {"x": X, "gaps": gaps, "whole": whole, "none": none, "rounded": np.round(gaps)}
    verified(model_of(nodes, feeds, VERSIONS, two=np.array([4, 1])), feeds, tmp_path)


def test_linear_models_and_support_vectors(tmp_path: Path) -> None:
    def numbers(count: int) -> list[float]:
        return RNG.standard_normal(count).round(3).tolist()

    nodes = [
        ml("LinearRegressor", "x", "two", coefficients=numbers(10), intercepts=[1.0, 2.0], targets=2),
        ml("LinearRegressor", "x", "plain", coefficients=numbers(5)),
    ]
    for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        attrs = {"post_transform": transform, "classlabels_ints": [7, -3, 5]}
        nodes.append(ml("LinearClassifier", "x", f"y{transform} z{transform}", **attrs,
                        coefficients=numbers(15), intercepts=numbers(3)))  # fmt: skip
    shares = {"coefficients": [0.02, 0.0, 0.01, 0.0, 0.03], "intercepts": [0.4], "targets": 1}
    nodes.append(ml("LinearRegressor", "x", "probit", post_transform="PROBIT", **shares))
    for transform in ("NONE", "LOGISTIC"):
        attrs = {"post_transform": transform, "classlabels_ints": [2, 4]}
        nodes.append(ml("LinearClassifier", "x", f"yes{transform} both{transform}", **attrs,
                        coefficients=numbers(5), intercepts=numbers(1)))  # fmt: skip
    for kernel in ("LINEAR", "POLY", "RBF", "SIGMOID"):
        attrs = {"kernel_type": kernel, "kernel_params": [0.3, 0.1, 2.0], "n_supports": 6, "rho": [0.2]}
        attrs |= {"support_vectors": numbers(30), "coefficients": numbers(6)}
        nodes += [ml("SVMRegressor", "x", f"svm{kernel}", **attrs)]
        nodes += [ml("SVMRegressor", "x", f"in{kernel}", one_class=1, **attrs)]
    nodes.append(
        ml(
            "SVMRegressor",
            "x",
            "direct",
            kernel_type="LINEAR",
            kernel_params=[0.0, 0.0, 3.0],
            coefficients=numbers(5),
            rho=[1.0],
        )
    )
    verified(model_of(nodes, {"x": X}, VERSIONS), {"x": X}, tmp_path)


def grown(depth: int, trees: int, targets: int, kind: str, modes: tuple[str, ...], signed: bool = True) -> dict:
    """Full trees of random questions."""
    names = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")
    columns: dict[str, list] = {f"nodes_{name}": [] for name in (*names, "missing_value_tracks_true")}
    columns |= {f"{kind}_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    inner = 2**depth - 1
    for tree in range(trees):
        for node in range(2 * inner + 1):
            leaf = node >= inner
            row = (tree, node, int(RNG.integers(5)), round(float(RNG.standard_normal()), 2),
                   "LEAF" if leaf else f"BRANCH_{RNG.choice(modes)}", 0 if leaf else 2 * node + 2,
                   0 if leaf else 2 * node + 1, int(RNG.integers(2)))  # fmt: skip
            for column, value in zip(list(columns)[:8], row, strict=True):
                columns[column].append(value)
            for target in range(targets) if leaf else ():
                weight = float(RNG.standard_normal()) if signed else float(RNG.random() / trees)
                for column, value in zip(list(columns)[8:], (tree, node, target, weight), strict=True):
                    columns[column].append(value)
    return columns


def test_trees(tmp_path: Path) -> None:
    gaps = np.where(RNG.random((40, 5)) < 0.1, np.nan, RNG.standard_normal((40, 5)).round(2)).astype(np.float32)
    usual, every = ("LEQ",), ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ")
    nodes = [
        ml("TreeEnsembleRegressor", "x", f"r{a}", n_targets=3, aggregate_function=a, base_values=[0.5, 1.0, 2.0],
           **grown(3, 4, 3, "target", every))
        for a in ("SUM", "AVERAGE", "MIN", "MAX")
    ]  # fmt: skip
    nodes.append(ml("TreeEnsembleRegressor", "x", "one", n_targets=1, **grown(4, 3, 1, "target", usual)))
    nodes.append(ml("TreeEnsembleRegressor", "double", "wide", n_targets=1, **grown(4, 3, 1, "target", usual)))
    for transform in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"):
        nodes.append(ml("TreeEnsembleClassifier", "x", f"l{transform} c{transform}", post_transform=transform,
                        classlabels_int64s=[3, 1, 2], **grown(3, 5, 3, "class", usual)))  # fmt: skip
    for signed, transform in ((True, "LOGISTIC"), (True, "NONE"), (False, "NONE")):
        nodes.append(ml("TreeEnsembleClassifier", "x", f"b{signed}{transform} p{signed}{transform}",
                        post_transform=transform, classlabels_int64s=[4, 9],
                        **grown(3, 5, 1, "class", usual, signed)))  # fmt: skip
    feeds = {"x": gaps, "double": RNG.standard_normal((9, 5))}
    verified(model_of(nodes, feeds, VERSIONS), feeds, tmp_path)


def test_trees_of_operator_set_5(tmp_path: Path) -> None:
    """One asks whether a feature is in a set; thresholds and results are of float64."""
    nodes, feeds = [], {}
    for dtype in (np.float32, np.float64):
        name = np.dtype(dtype).name
        feeds[name] = RNG.integers(-3, 9, (30, 5)).astype(dtype)
        attrs = {
            "n_targets": 2, "aggregate_function": 1, "post_transform": 0, "tree_roots": [0, 4],
            "nodes_featureids": [0, 1, 2, 3, 4], "nodes_modes": np.array([0, 6, 3, 6, 5], np.uint8),
            "nodes_splits": np.array([1.5, 0, 2.25, 0, 4], dtype), "nodes_truenodeids": [1, 0, 1, 2, 4],
            "nodes_trueleafs": [0, 1, 1, 1, 1], "nodes_falsenodeids": [2, 3, 3, 3, 5],
            "nodes_falseleafs": [0, 0, 1, 1, 1], "leaf_targetids": [0, 1, 0, 1, 1, 0],
            "leaf_weights": np.array([1.0, 10.5, -100, 0.25, 7, 3], dtype),
            "membership_values": np.array([1.0, 2, np.nan, 0, 4, 5, np.nan], dtype),
        }  # fmt: skip
        given = {k: numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for k, v in attrs.items()}
        nodes.append(ml("TreeEnsemble", name, f"y{name}", **given))
    verified(model_of(nodes, feeds, {"": 18, ML: 5}), feeds, tmp_path)
    assert BY_NUMBER[0] == "LEQ"


def test_maps_of_classes_become_tables(tmp_path: Path, in_brief: None) -> None:
    """The output keeps its name, what is different is said, and ONNX Runtime gives the table too."""
    node = ml("TreeEnsembleClassifier", "x", "label scores", classlabels_int64s=[0, 1, 2], post_transform="NONE",
              **grown(2, 2, 3, "class", ("LEQ",)))  # fmt: skip
    model = model_of([node, ml("ZipMap", "scores", "chances", classlabels_int64s=[0, 1, 2])], {"x": X}, VERSIONS)
    result = verified(model, {"x": X}, tmp_path)
    assert any("'chances' is a table with a column for each class" in note for note in result.notes)
    with modelc.load(tmp_path / "m.modelc") as package:
        found = package.run({"x": X})
    assert found["chances"].shape == (23, 3)
    np.testing.assert_array_equal(found["chances"].argmax(1), found["label"])
    timed = modelc.bench(tmp_path / "m.modelc", ("ort",), model=tmp_path / "m.onnx", seconds=0.05)
    assert set(timed["engines"]) == {"modelc", "ort"}  # which gives the maps there


def tree(**changed: Any) -> onnx.NodeProto:
    attrs = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.5, 0.0, 0.0], "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"],
        "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0], "target_treeids": [0, 0],
        "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0], "n_targets": 1,
    }  # fmt: skip
    return ml("TreeEnsembleRegressor", "x", "y", **{**attrs, **changed})


@pytest.mark.parametrize(
    ("node", "sentence"),
    [
        (tree(nodes_truenodeids=[7, 0, 0]), r"expected a node \(0, 7\)"),
        (tree(nodes_modes=["BRANCH_LEQ", "BRANCH_LEQ", "LEAF"], target_nodeids=[2, 2]), "below itself"),
        (tree(nodes_featureids=[5, 0, 0]), "features from 0 to 4, found 5"),
        (tree(target_ids=[0, 1]), "targets from 0 to 0"),
        (tree(nodes_modes=["BRANCH_MAYBE", "LEAF", "LEAF"]), "found 'BRANCH_MAYBE'"),
        (tree(nodes_values=[0.5]), "expected 3 entries in nodes_values, found 1"),
        (tree(target_nodeids=[0, 2]), "weights of leaves"),
        (tree(nodes_nodeids=[0, 1, 1]), "found node 1 of tree 0 twice"),
        (tree(aggregate_function="MEDIAN"), "found 'MEDIAN'"),
        (ml("LinearClassifier", "x", "y z", coefficients=[1.0] * 10, intercepts=[0.0, 1.0],
            classlabels_strings=["a", "b"]), "classlabels_strings are strings"),
        (ml("LabelEncoder", "x", "y", keys_strings=["a"], values_int64s=[1]), "keys_strings are strings"),
        (ml("Scaler", "x", "y", offset=[1.0, 2.0], scale=[1.0]), "expected 1 or 5 numbers in offset, found 2"),
        (ml("LabelEncoder", "x", "y", keys_floats=[1.0], values_int64s=[1, 2]), "as many keys as values"),
        (ml("LinearRegressor", "x", "y", coefficients=[1.0] * 4), "expected 1 x 5 coefficients, found 4"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(node: onnx.NodeProto, sentence: str, tmp_path: Path) -> None:
    onnx.save(model_of([node], {"x": X}, VERSIONS), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=sentence):
        import_model(tmp_path / "m.onnx")


def test_strings_are_listed_before_shapes_are_known(tmp_path: Path) -> None:
    """As skl2onnx gives the classes of a model whose labels are words: in an attribute, and in a tensor."""
    share = {"coefficients": [1.0] * 10, "intercepts": [0.0, 1.0]}
    nodes = [
        ml("LinearClassifier", "x", "y z", classlabels_strings=["a", "b"], **share),
        ml("LinearClassifier", "x", "w v", classlabels_ints=[0, 1], **share),
        ml("ArrayFeatureExtractor", "words w", "said"),
    ]
    model = model_of(nodes, {"x": X}, VERSIONS)
    model.graph.initializer.append(helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"]))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, tmp_path / "m.onnx")
    found = {row[0]: row[3] for row in unsupported(tmp_path / "m.onnx")}
    assert {*found} == {"y", "said"} and all("whole numbers as labels" in reason for reason in found.values())
    assert "classlabels_strings are strings" in found["y"] and "'words' are strings" in found["said"]


def test_what_is_not_known_of_the_domain_is_listed(tmp_path: Path) -> None:
    onnx.save(model_of([ml("DictVectorizer", "x", "y", int64_vocabulary=[1])], {"x": X}, VERSIONS), tmp_path / "m.onnx")
    ((node, op, domain, reason),) = unsupported(tmp_path / "m.onnx")
    assert (node, op, domain) == ("y", "DictVectorizer", ML) and "strings, maps" in reason
