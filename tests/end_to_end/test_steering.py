"""What users fix of a model's inputs: dimensions, constants, data to verify with; through packages, on every way in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import small_model as small
import yaml
from control_models import INFO, B, F, I
from onnx import TensorProto, helper, numpy_helper

import modelc
from modelc.compile.config import load_config
from modelc.errors import InputError, ModelError
from modelc.frontend.load.read import read_model
from modelc.frontend.steering.flags import steered
from modelc.frontend.steering.specialise import declared_shapes, fixed_shapes, free_flags
from modelc.frontend.steering.uses import Span, Uses, index_spans, read_uses
from modelc.package import read_package
from modelc.verify.check import drawn

OPTIONS = {"dims": {"n": 1, "h": 8}, "constants": {"flag": True, "s": 0.5}}


def chooser(path: Path) -> Path:
    """y = resize(relu(x) if flag else -x, s): a condition and scales that are inputs, and dimensions with names."""
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["t"])], "t", [], [INFO("t", F, None)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["e"])], "e", [], [INFO("e", F, None)])
    nodes = [
        helper.make_node("If", ["flag"], ["a"], "choose", then_branch=then, else_branch=other),
        helper.make_node("Concat", ["one", "one", "s", "s"], ["scales"], axis=0),
        helper.make_node("Resize", ["a", "", "scales"], ["r"], "resize", mode="nearest"),
        helper.make_node("Mul", ["r", "m"], ["y"], "weigh"),
    ]
    inputs = [INFO("x", F, ["n", 3, "h", "h"]), INFO("m", F, ["n", 1, 1, 1]), INFO("flag", B, []), INFO("s", F, [1])]
    weights = [numpy_helper.from_array(np.ones(1, np.float32), "one")]
    graph = helper.make_graph(nodes, "g", inputs, [INFO("y", F, None)], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def fed() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.standard_normal((1, 3, 8, 8), np.float32), "m": np.full((1, 1, 1, 1), 3, np.float32)}


def test_a_model_with_everything_fixed_on_every_way(tmp_path, in_brief) -> None:
    """Compiled, from flags; then verified, per layer too, timed, looked at, rebuilt: all know the constants."""
    path, place = chooser(tmp_path / "m.onnx"), tmp_path / "m.modelc"
    result = modelc.compile(path, output=place, **OPTIONS)
    assert result.report is not None and result.report.passed
    manifest = read_package(place).manifest
    assert [t.name for t in manifest.variants[0].inputs] == ["x", "m"]
    assert {c.name: c.array().tolist() for c in manifest.constants} == {"flag": True, "s": [0.5]}
    with modelc.load(place) as model:
        np.testing.assert_array_equal(model.run(fed())["y"], 3 * np.maximum(fed()["x"], 0)[..., ::2, ::2])
    layered = modelc.verify(place, path, per_layer=True)
    assert layered.passed and layered.layers and layered.first_departure is None
    assert modelc.verify(place, path, {**fed(), "flag": np.asarray(True)}).passed
    with pytest.raises(InputError, match="'flag' is a constant of the package"):
        modelc.verify(place, path, {**fed(), "flag": np.asarray(False)})
    assert modelc.bench(place, ["ort"], path, seconds=0.05)["ratio"]["ort"] > 0
    assert [c["value"] for c in modelc.inspect(place)["constants"]] == ["True", "0.5"]
    modelc.compile(path, output=tmp_path / "again", choices=place)
    assert (tmp_path / "again" / "manifest.json").read_bytes() == (place / "manifest.json").read_bytes()
    other = modelc.compile(path, output=tmp_path / "other", choices=place, constants={"flag": False}, verify=False)
    assert other.path is not None
    with modelc.load(other.path) as model:
        np.testing.assert_array_equal(model.run(fed())["y"], -3 * fed()["x"][..., ::2, ::2])


def test_the_configuration_fixes_inputs_and_flags_win(tmp_path) -> None:
    tree = {**load_config().to_json(), "inputs": {"dims": {"n": 1, "h": [8, 4]}, "constants": {"flag": True, "s": 2.0}}}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(tree))
    path = chooser(tmp_path / "m.onnx")
    settings: dict[str, Any] = {"config": tmp_path / "c.yaml", "constants": {"s": 0.5}, "verify": False}
    modelc.compile(path, output=tmp_path / "p", **settings)
    plans = read_package(tmp_path / "p").manifest.variants
    assert [(p.inputs[0].shape, p.outputs[0].shape) for p in plans] == [
        ((1, 3, 8, 8), (1, 3, 4, 4)),
        ((1, 3, 4, 4), (1, 3, 2, 2)),
    ]


def test_data_to_verify_with_says_the_shapes_and_is_what_is_compared(tmp_path) -> None:
    path = chooser(tmp_path / "m.onnx")
    constants = OPTIONS["constants"]
    result = modelc.compile(path, output=tmp_path / "p", constants=constants, inputs=fed())
    assert result.report is not None and result.report.passed and result.report.samples == 1
    assert read_package(tmp_path / "p").manifest.variants[0].inputs[0].shape == (1, 3, 8, 8)
    with pytest.raises(InputError, match=r"the inputs are x \[1, 3, 8, 8\]"):
        modelc.compile(path, output=tmp_path / "q", inputs=fed(), **{**OPTIONS, "dims": {"n": 1, "h": 9}})
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(
    ("dims", "constants", "sentence"),
    [
        ({"z": 3}, {}, "--dim names 'z', .* its free dimensions are 'n', 'h'"),
        ({"n": 1}, {}, "none of the sizes that were tried is taken for 'h': .*--constant s=VALUE"),
        ({"h": 1 << 30, "n": 1}, OPTIONS["constants"], "at most 2147483647 elements"),
        ({"n": tuple(range(300))}, {}, "make 300 variants"),
        ({}, {"q": 1}, "--constant names 'q', which is no input of the model; its inputs are 'x', 'm', 'flag', 's'"),
        ({}, {"flag": 2}, "input is of type bool; found 2"),
        ({}, {"flag": 0.0}, "input is of type bool; found 0.0"),
        ({}, {"s": [1.0, 2.0]}, r"sets dimension 0 to 2, which the model fixes at 1"),
        ({}, {"s": np.zeros(1)}, "input is of type float32; found an array of float64"),
        ({}, {"s": "none.npy"}, "none.npy cannot be read"),
        ({}, {"s": "none"}, "expected a number"),
        ({"n": (1, 2), "h": 1}, {"m": 1}, "would have another shape in each variant"),
        ({"n": 1, "h": 8}, {"flag": 1}, r"expected a constant as scales.*; it would be with --constant s=VALUE"),
    ],
)
def test_what_does_not_fit_is_a_sentence(tmp_path, dims, constants, sentence) -> None:
    with pytest.raises((ModelError, InputError), match=sentence):
        modelc.compile(chooser(tmp_path / "m.onnx"), output=tmp_path / "p", dims=dims, constants=constants)


def test_constants_of_any_dtype_and_form(tmp_path) -> None:
    kinds = {"i": I, "b": B, "u": TensorProto.UINT8, "d": TensorProto.DOUBLE, "h": TensorProto.FLOAT16}
    inputs = [INFO(name, kind, ["n"]) for name, kind in kinds.items()]
    graph = helper.make_graph([helper.make_node("Identity", ["i"], ["y"])], "g", inputs, [INFO("y", I, None)])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.save(tmp_path / "d.npy", np.asarray([1.5, -2.5]))
    given = {"i": [-(2**63), 2**63 - 1], "b": [1, 0], "u": 255, "d": str(tmp_path / "d.npy"), "h": [0.5, 1]}
    found = steered(path, dims={"n": (2,)}, constants=given).constants
    kinds_found = {name: (array.dtype.name, array.tolist()) for name, array in found.items()}
    assert kinds_found == {
        "i": ("int64", [-(2**63), 2**63 - 1]),
        "b": ("bool", [True, False]),
        "u": ("uint8", [255, 255]),
        "d": ("float64", [1.5, -2.5]),
        "h": ("float16", [0.5, 1.0]),
    }
    for wrong in ({"u": 256}, {"u": -1}, {"i": 0.5}, {"i": True}, {"i": 2**63}):
        with pytest.raises((ModelError, InputError), match=f"--constant {next(iter(wrong))}"):
            steered(path, dims={"n": (2,)}, constants=wrong)


def test_dimensions_that_are_sums_follow_from_their_parts() -> None:
    declared = {"a": ("past", 4), "b": (2, "past + now"), "c": ("now+1", "c[1]", 3)}
    assert free_flags(declared) == ["--dim past=N", "--dim now=N", "--dim 'c[1]=N'"]
    assert free_flags({"a b": ("x y",)}) == ["--dim 'x y=N'"]
    found = fixed_shapes(declared, {"c": (8, 5, 3)}, {"past": 6, "now": 7})
    assert found == {"a": (6, 4), "b": (2, 13), "c": (8, 5, 3)}
    with pytest.raises(ModelError, match="sets the dimension 'past' to 5, and --dim to 6"):
        fixed_shapes(declared, {"a": (5, 4)}, {"past": 6})


def test_what_steers_is_found_in_branches_too(tmp_path) -> None:
    uses = Uses(read_model(chooser(tmp_path / "m.onnx")).graph)
    assert [(s.name, s.places[0]) for s in uses.steering()] == [
        ("flag", ("choose", "If", "the condition")),
        ("s", ("resize", "Resize", "the scales")),
    ]
    assert uses.advice("y") == "; it depends on the data of 'flag', 'm', 's', 'x'" and uses.advice("one") == ""
    assert declared_shapes(uses.graph)["x"] == ("n", 3, "h", "h")


def test_inspect_lists_what_is_to_be_fixed(tmp_path) -> None:
    path = chooser(tmp_path / "m.onnx")
    found = modelc.inspect(path)
    json.dumps(found)
    assert found["free"] == ["--dim n=1", "--dim h=1"] and [s["name"] for s in found["steering"]] == ["flag", "s"]
    assert found["dtypes"] == {"float32": 1}
    found = modelc.inspect(path, dims={"h": 8}, constants={"flag": 1})
    assert found["supported"] and found["free"] == ["--dim n=1"] and [s["name"] for s in found["steering"]] == ["s"]
    with pytest.raises(InputError, match="inputs of a package are fixed"):
        modelc.inspect(small.package(), dims={"h": 8})


def test_indices_are_drawn_for_what_they_address(tmp_path) -> None:
    """Token ids with an offset, coordinates side by side, lengths: every drawn input is one that the package takes."""
    nodes = [
        helper.make_node("Add", ["ids", "two"], ["shifted"]),
        helper.make_node("Gather", ["table", "shifted"], ["rows"], axis=0),
        helper.make_node("Unsqueeze", ["px", "last"], ["px1"]),
        helper.make_node("Unsqueeze", ["py", "last"], ["py1"]),
        helper.make_node("Concat", ["px1", "py1"], ["places"], axis=1),
        helper.make_node("ScatterND", ["grid", "places", "update"], ["scattered"]),
        helper.make_node("ReverseSequence", ["rows", "lengths"], ["reversed"], time_axis=0, batch_axis=1),
    ]
    rng = np.random.default_rng(0)
    weights = {
        "two": np.asarray([2]),
        "last": np.asarray([1]),
        "table": rng.standard_normal((9, 3)).astype(np.float32),
        "grid": np.zeros((4, 30), np.float32),
        "update": rng.standard_normal(20).astype(np.float32),
    }
    inputs = {"ids": ([5, 6], I), "px": ([20], I), "py": ([20], I), "lengths": ([6], I)}
    path = small.save(tmp_path / "m.onnx", nodes, inputs, {"scattered": None, "reversed": None}, weights)
    spans = index_spans(read_uses(path), [("places", Span(0, -4, 3, True)), ("places", Span(1, -30, 29, True))])
    assert spans["px"] == (Span(None, -4, 3, True),) and spans["py"] == (Span(None, -30, 29, True),)
    assert spans["ids"] == (Span(None, -11, 6),)
    result = modelc.compile(path, output=tmp_path / "p")
    assert result.report is not None and result.report.passed
    for feed in drawn(read_package(tmp_path / "p"), path, seed=1, samples=20):
        assert feed["ids"].min() >= 0 and feed["ids"].max() <= 6 and feed["px"].max() <= 3 and feed["py"].max() <= 29
        assert feed["lengths"].max() <= 5 and feed["py"].max() > 3
