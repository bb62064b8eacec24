"""What a package keeps from run to run: beside ONNX Runtime, which is handed the state each time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from control_models import INFO, B, F, I, agree, node, saved
from library_of import library_of
from onnx import helper
from state_models import STATES, cell

import modelc
from modelc.compile.fixed import Inputs
from modelc.compile.inputs import data_of, divided
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model
from modelc.ir.graph import actual
from modelc.ops import evaluate_graph
from modelc.package import read_package, run_emulated
from modelc.runtime import ModelError as LoadedError


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("state")
    model, package = cell(folder / "m.onnx"), folder / "m.modelc"
    result = modelc.compile(model, output=package, states=STATES, dims={"n": (2, 3)}, database=False)
    assert result.report is not None and result.report.passed and result.report.samples >= 8
    assert {one.name for one in result.report.outputs} == {"y"}
    return model, package


class ByHand:
    """The model, and what it gave last."""

    def __init__(self, model: Path, rows: int) -> None:
        self.session, self.rows = ort.InferenceSession(str(model)), rows
        self.state = {name: np.zeros((rows, 4), np.float32) for name in STATES}

    def run(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        y, *state = self.session.run(["y", *STATES.values()], {**feeds, **self.state})
        self.state = dict(zip(STATES, state, strict=True))
        return [y]


def feeds(rows: int, k: int, row: int = 1) -> dict[str, np.ndarray]:
    x = np.random.default_rng(k).standard_normal((rows, 4)).astype(np.float32)
    return {"x": x, "i": np.asarray(row)}


def test_a_state_goes_from_run_to_run_for_each_handle_and_variant(kept) -> None:
    model, package = kept
    with modelc.load(package, threads=1) as one, modelc.load(package, threads=2) as other:
        assert [t.name for t in one.inputs] == ["x", "i"] and [t.name for t in one.outputs] == ["y"]
        two, three, behind = ByHand(model, 2), ByHand(model, 3), ByHand(model, 2)
        for k in range(5):
            agree(one.run(feeds(2, k)), two.run(feeds(2, k)))
            agree(one.run(feeds(3, k)), three.run(feeds(3, k)))
            if k % 2:
                agree(other.run(feeds(2, k)), behind.run(feeds(2, k)))
        one.reset()
        two, three = ByHand(model, 2), ByHand(model, 3)
        for k in range(3):
            agree(one.run(feeds(2, k)), two.run(feeds(2, k)))
            agree(one.run(feeds(3, k)), three.run(feeds(3, k)))
            agree(other.run(feeds(2, k)), behind.run(feeds(2, k)))


def test_a_run_that_ends_with_an_error_leaves_the_state(kept) -> None:
    model, package = kept
    with modelc.load(package) as loaded:
        wanted = ByHand(model, 2)
        for k in range(4):
            agree(loaded.run(feeds(2, k)), wanted.run(feeds(2, k)))
            with pytest.raises(LoadedError, match="'i' is 4"):
                loaded.run(feeds(2, k, row=4))


def test_a_package_with_a_state_is_verified_again_rebuilt_and_described(kept, tmp_path) -> None:
    model, package = kept
    report = modelc.verify(package, model, per_layer=True)
    assert report.passed and report.samples >= 8 and {"h_next", "y"} <= {layer.value for layer in report.layers}
    modelc.compile(model, output=tmp_path / "again", choices=package, verify=False)
    for name in ("params.bin", library_of(package).name, "choices.json"):
        assert (package / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert [(one["name"], one["output"]) for one in modelc.inspect(package)["states"]] == [*STATES.items()]
    plan = read_package(package).manifest.variants[1]
    assert [state.input.shape for state in plan.states] == [(3, 4)] * 2 and plan.slots == (48,) * 4


@pytest.mark.parametrize(
    ("states", "sentence"),
    [
        ({"g": "h_next"}, r"--state g=h_next: the model has no input 'g'; its inputs are 'x', 'h', 'last', 'i'"),
        ({"h": "z"}, "no output 'z'; its outputs are 'y', 'h_next', 'x_seen'"),
        ({"i": "y"}, r"expected an input and an output alike, found int64\[\] and float32\[2, 4\]"),
        ({"h": "h_next", "last": "h_next"}, "'h_next' is another state's output"),
    ],
)
def test_a_state_that_cannot_be_is_a_sentence(tmp_path, states, sentence) -> None:
    with pytest.raises(ModelError, match=sentence):
        modelc.compile(cell(tmp_path / "m.onnx"), output=tmp_path / "p", states=states, dims={"n": 2})


def test_tune_keeps_states_and_divides_what_is_said_of_several_models(tmp_path, in_brief) -> None:
    first, second = cell(tmp_path / "a.onnx"), named(tmp_path / "b.onnx")
    fixed = Inputs((), {"n": 2, "m": 3}, states={**STATES, "k": "k_next"})
    one, two = divided(fixed, [first, second])
    assert (one.dims, one.states) == ({"n": 2}, STATES) and (two.dims, two.states) == ({"m": 3}, {"k": "k_next"})
    x = np.zeros((2, 4), np.float32)
    assert [list(data or ()) for data in data_of({"x": x, "z": x}, [first, second])] == [["x"], ["z"]]
    options = {"budget": "1", "database": False, "dims": {"n": 2}, "states": STATES, "inputs": feeds(2, 0)}
    (result,) = modelc.tune(first, output=tmp_path / "p", **options)
    assert result.report is not None and result.report.passed
    assert [t.name for t in read_package(tmp_path / "p").manifest.variants[0].inputs] == ["x", "i"]


def named(path: Path) -> Path:
    """k' = k + z."""
    inputs = [INFO(name, F, ["m", 4]) for name in ("z", "k")]
    return saved(path, [node("Add", ["z", "k"], ["k_next"])], inputs, ["k_next"], {})


# --- scalars --------------------------------------------------------------------------------------------------------


def scalars(path: Path) -> Path:
    """Values without dimensions: inputs, outputs, constants, a state, what branches give, what loops carry, and what a
    Scan takes out of a constant."""
    then = helper.make_graph([node("Neg", ["x"], ["minus"])], "then", [], [INFO("minus", F, [])])
    otherwise = helper.make_graph([node("Mul", ["x", "three"], ["more"])], "otherwise", [], [INFO("more", F, [])])
    loop = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["v", "x"], ["w"]), node("Mul", ["v", "v"], ["s"])],
        "loop",
        [INFO("i", I, []), INFO("go", B, []), INFO("v", F, [])],
        [INFO("on", B, []), INFO("w", F, []), INFO("s", F, [])],
    )
    scan = helper.make_graph(
        [node("Mul", ["v", "each"], ["w"]), node("Add", ["w", "x"], ["s"])],
        "scan",
        [INFO("v", F, []), INFO("each", F, [])],
        [INFO("w", F, []), INFO("s", F, [])],
    )
    nodes = [
        helper.make_node("If", ["q"], ["chosen"], then_branch=then, else_branch=otherwise),
        helper.make_node("Loop", ["m", "", "x"], ["carried", "squares"], body=loop),
        helper.make_node("Scan", ["x", "list"], ["product", "every"], body=scan, num_scan_inputs=1),
        node("Add", ["h", "carried"], ["h_next"]),
        node("Mul", ["fixed", "x"], ["scaled"]),
        node("Identity", ["three"], ["constant"]),
        node("ReduceSum", ["list"], ["total"], keepdims=0),
        node("Cast", ["n"], ["real"], to=F),
        node("Reshape", ["x", "none"], ["same"]),
    ]
    kinds = {"x": F, "q": B, "m": I, "h": F, "n": I, "fixed": F}
    weights = {"three": np.float32(3), "list": np.float32([2, 3, 4]), "none": np.zeros(0, np.int64)}
    outputs = ["chosen", "carried", "squares", "product", "every", "scaled", "constant", "total", "real", "same"]
    return saved(path, nodes, [INFO(n, kind, []) for n, kind in kinds.items()], [*outputs, "h_next"], weights)


def test_values_without_dimensions_have_none_anywhere(tmp_path) -> None:
    """In Python, through the C interface, in the interpreter, and kept from run to run."""
    path, fixed = scalars(tmp_path / "m.onnx"), {"fixed": 1.5}
    given = {"constants": fixed, "bounds": {"m": 4}, "database": False}
    for name, states in (("p", {}), ("kept", {"h": "h_next"})):
        result = modelc.compile(path, output=tmp_path / name, states=states, **given)
        assert result.report is not None and result.report.passed
    constants = {"fixed": np.asarray(1.5, np.float32)}
    graph, session = import_model(path, {}, constants, given["bounds"]), ort.InferenceSession(str(path))
    state = np.zeros((), np.float32)
    with modelc.load(tmp_path / "p") as plain, modelc.load(tmp_path / "kept") as keeping:
        for q, m in ((True, 3), (False, 0), (True, 4)):
            feed = {"x": np.float32(m + 0.5), "q": np.bool_(q), "m": np.int64(m), "n": np.int64(7)}
            feed = {name: np.asarray(value) for name, value in feed.items()}
            wanted = session.run(None, {**feed, "h": state, **constants})
            names = [o.name for o in session.get_outputs()]
            for found in (
                plain.run({**feed, "h": state}),
                run_emulated(tmp_path / "p", {**feed, "h": state}).outputs,
                actual(evaluate_graph(graph, {**feed, "h": state})),
                {**keeping.run(feed), "h_next": wanted[-1]},
            ):
                assert {name: array.shape for name, array in found.items()} == dict(
                    zip(names, (array.shape for array in wanted), strict=True)
                )
                for name, array in zip(names, wanted, strict=True):
                    np.testing.assert_allclose(found[name], array, rtol=1e-6)
            state = wanted[-1]
