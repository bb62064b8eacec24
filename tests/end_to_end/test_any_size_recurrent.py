"""Recurrent nodes and loops whose number of iterations sizes say: one loop in the package, right at every size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from any_size_models import opened
from control_models import INFO, B, F, I, body, node, saved
from recurrent_models import model as recurrent_model

import modelc
from modelc.errors import ModelError
from modelc.frontend.building.trips import Trips, differing
from modelc.frontend.onnx import import_model
from modelc.ir.sizes import is_sized
from modelc.ops import evaluate_graph
from modelc.package import read_package
from modelc.package.spec import Repeat

LONGEST, MOST_BATCH = 32, 6
SIZES = ((1, 1), (2, 3), (3, 5), (7, 2), (12, 4), (20, 6), (25, 1), (32, 6))
Feed = dict[str, np.ndarray]


def drawn(session: ort.InferenceSession, run: Mapping[str, int]) -> Feed:
    feed: Feed = {}
    for given in session.get_inputs():
        shape = [run.get(n, n) for n in given.shape]
        feed[given.name] = np.random.default_rng(run["time"]).standard_normal(shape).astype(np.float32)
        if given.type == "tensor(int32)":
            feed[given.name] = np.asarray([max(run["time"] - 3 * k, 1) for k in range(shape[0])], np.int32)
    return feed


def check(model: Path, package: Path) -> None:
    """Compares a package with ONNX Runtime at sizes that it was not compiled for."""
    session = ort.InferenceSession(model)
    names = [output.name for output in session.get_outputs()]
    with modelc.load(package) as opened:
        for time, batch in SIZES:
            feed = drawn(session, {"time": time, "batch": batch})
            found = opened.run(feed)
            for name, expected in zip(names, session.run(None, feed), strict=True):
                assert found[name].shape == expected.shape
                np.testing.assert_allclose(
                    found[name], expected, rtol=1e-4, atol=1e-5 * (1 + np.abs(expected).max(initial=0))
                )


def repeats(package: Path) -> list[Repeat]:
    (plan,) = read_package(package).manifest.variants
    return [control for control in plan.control if isinstance(control, Repeat)]


@pytest.mark.parametrize(
    ("op", "direction", "given", "wanted", "attrs"),
    [
        ("LSTM", "bidirectional", "BLhcP", "YHC", {}),
        ("LSTM", "reverse", "", "Y", {}),
        ("LSTM", "forward", "BL", "HC", {"clip": 0.3}),
        ("GRU", "bidirectional", "BLh", "YH", {"linear_before_reset": 1}),
        ("GRU", "reverse", "B", "H", {}),
        ("RNN", "bidirectional", "B", "YH", {"activations": ["Tanh", "Relu"]}),
        ("RNN", "forward", "Lh", "H", {}),
    ],
)
@pytest.mark.parametrize("free", ["time", "time and batch"])
@pytest.mark.sweep(7)
def test_recurrent_nodes_take_every_length(tmp_path, op, direction, given, wanted, attrs, free) -> None:
    recurrent_model(tmp_path / "m.onnx", op, 9, direction, given, wanted, "XLhc", 0, (MOST_BATCH, 6, 10), **attrs)
    names, dims = {"X": {0: "time"}}, {"time": range(1, LONGEST + 1)}
    if "batch" in free:
        names |= {"X": {0: "time", 1: "batch"}, "L": {0: "batch"}, "h": {1: "batch"}, "c": {1: "batch"}}
        dims["batch"] = range(1, MOST_BATCH + 1)
    opened(tmp_path / "m.onnx", names)
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", dims=dims, verify=False, database=False)
    check(tmp_path / "m.onnx", tmp_path / "p")
    loops = repeats(tmp_path / "p")
    assert len(loops) == (2 if direction == "bidirectional" else 1)
    assert all(is_sized(loop.limit) for loop in loops)
    assert any(is_sized(part.bytes) for loop in loops for part in loop.carried) == ("batch" in free)


def test_weights_may_be_inputs(tmp_path) -> None:
    recurrent_model(tmp_path / "m.onnx", "LSTM", 9, "bidirectional", as_inputs="XLhcWRBP", size=(MOST_BATCH, 6, 10))
    opened(tmp_path / "m.onnx", {"X": {0: "time"}})
    dims = {"time": range(1, LONGEST + 1)}
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", dims=dims, verify=False, database=False)
    check(tmp_path / "m.onnx", tmp_path / "p")


def test_the_batch_may_come_first(tmp_path) -> None:
    """ONNX Runtime has no such node; the interpreter has."""
    path = tmp_path / "m.onnx"
    recurrent_model(path, "LSTM", 9, "bidirectional", "BLhcP", "YHC", "XLhc", 1, (2, 6, 10))
    opened(path, {"X": {0: "batch", 1: "time"}, "L": {0: "batch"}, "h": {0: "batch"}, "c": {0: "batch"}})
    dims = {"time": range(1, LONGEST + 1), "batch": range(1, MOST_BATCH + 1)}
    modelc.compile(path, output=tmp_path / "p", dims=dims, verify=False, database=False)
    with modelc.load(tmp_path / "p") as loaded:
        for time, batch in SIZES[1:5]:
            fixed = tmp_path / "fixed.onnx"
            feed = recurrent_model(fixed, "LSTM", time, "bidirectional", "BLhcP", "YHC", "XLhc", 1, (batch, 6, 10))
            model = onnx.load(fixed)
            del model.graph.initializer[:]
            model.graph.initializer.extend(onnx.load(path).graph.initializer)
            onnx.save(model, fixed)
            found = loaded.run(feed)
            for name, expected in evaluate_graph(import_model(fixed), feed).items():
                np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("time", [3, 9])
def test_a_fixed_number_of_steps_is_laid_open(tmp_path, time) -> None:
    """As for fixed shapes: the batch alone is free."""
    path = tmp_path / "m.onnx"
    recurrent_model(path, "RNN", time, "forward", "Bh", "YH", "Xh", 0, (2, 6, 10))
    opened(path, {"X": {1: "batch"}, "h": {1: "batch"}})
    modelc.compile(path, output=tmp_path / "p", dims={"batch": range(1, 9)}, verify=False, database=False)
    (plan,) = read_package(tmp_path / "p").manifest.variants
    assert not plan.control and bool(plan.loops) == (time > 8)
    session = ort.InferenceSession(path)
    with modelc.load(tmp_path / "p") as loaded:
        for batch in (1, 3, 4, 8):
            feed = drawn(session, {"time": time, "batch": batch})
            for found, expected in zip(loaded.run(feed).values(), session.run(None, feed), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


# --- loops of the model -----------------------------------------------------------------------------------------------


def counted(path: Path, fewer: int = 0, asked: bool = False, nested: bool = False) -> Path:
    """A Loop over the rows of x, without the last `fewer`; `asked`: by its condition alone. In an iteration there may
    be a Loop of three."""
    nodes = [
        node("Gather", ["x", "i"], ["row"], axis=0),
        node("Mul", ["h", "half"], ["a"]),
        node("Add", ["a", "row"], ["b"]),
    ]
    if nested:
        within = [node("Identity", ["go"], ["on"]), node("Sin", ["g"], ["g2"])]
        inner = body(within, ["on", "g2"], (INFO("j", I, []), INFO("go", B, []), INFO("g", F, None)))
        nodes += [node("Loop", ["three", "", "b"], ["c"], "inner", body=inner)]
    nodes += [node("Tanh", ["c" if nested else "b"], ["h2"]), node("Identity", ["h2"], ["out"])]
    nodes += [node("Add", ["i", "one"], ["next"]), node("Less", ["next", "n"], ["again"])]
    part = body(nodes, ["again", "h2", "out"], (INFO("i", I, []), INFO("started", B, []), INFO("h", F, [4])))
    steering = ["", "yes"] if asked else ["n", ""]
    top = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"], axis=0),
        node("Sub", ["rows", "fewer"], ["n"]),
        node("Loop", [*steering, "start"], ["last", "every"], "loop", body=part),
    ]
    weights = {"half": np.float32(0.5), "yes": np.array(True)}
    weights |= {name: np.int64(n) for name, n in {"zero": 0, "one": 1, "three": 3, "fewer": fewer}.items()}
    return saved(path, top, [INFO("x", F, ["time", 4]), INFO("start", F, [4])], ["last", "every"], weights)


def scanned(path: Path, back: int = 0, axis: int = 0) -> Path:
    """A Scan along an axis of x."""
    nodes = [
        node("Mul", ["h", "half"], ["a"]),
        node("Add", ["a", "row"], ["b"]),
        node("Tanh", ["b"], ["h2"]),
        node("Identity", ["h2"], ["out"]),
    ]
    part = body(nodes, ["h2", "out"], (INFO("h", F, [4]), INFO("row", F, [4])))
    ways = {f"scan_{side}_directions": [back] for side in ("input", "output")}
    ways |= {f"scan_{side}_axes": [axis] for side in ("input", "output")}
    top = [node("Scan", ["start", "x"], ["last", "every"], "scan", body=part, num_scan_inputs=1, **ways)]
    shape = [4, "time"] if axis else ["time", 4]
    inputs = [INFO("x", F, shape), INFO("start", F, [4])]
    return saved(path, top, inputs, ["last", "every"], {"half": np.float32(0.5)})


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (counted, {}),
        (counted, {"fewer": 1}),
        (counted, {"asked": True}),
        (counted, {"nested": True}),
        (scanned, {}),
        (scanned, {"back": 1, "axis": 1}),
    ],
)
def test_loops_run_as_often_as_sizes_say(tmp_path, make: Callable[..., Path], options: dict[str, Any]) -> None:
    make(tmp_path / "m.onnx", **options)
    dims = {"time": range(1, LONGEST + 1)}
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", dims=dims, verify=False, database=False)
    check(tmp_path / "m.onnx", tmp_path / "p")
    assert [is_sized(loop.limit) for loop in repeats(tmp_path / "p")] == [True]


def rows_of(path: Path) -> Path:
    """A Scan over x [time, n, 4], and in its body one over n; of a table it adds the beginning."""
    folded = [node("Mul", ["g", "half"], ["a"]), node("Add", ["a", "cell"], ["b"]), node("Tanh", ["b"], ["g2"])]
    inner = body(folded, ["g2"], (INFO("g", F, [4]), INFO("cell", F, [4])))
    nodes = [
        node("Add", ["row", "places"], ["cells"]),
        node("Scan", ["h", "cells"], ["h2"], "inner", body=inner, num_scan_inputs=1),
        node("Identity", ["cells"], ["out"]),
    ]
    part = body(nodes, ["h2", "out"], (INFO("h", F, [4]), INFO("row", F, ["n", 4])))
    top = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["n"], axis=0),
        node("Slice", ["table", "zero", "n"], ["places"]),
        node("Scan", ["start", "x"], ["last", "every"], "scan", body=part, num_scan_inputs=1),
    ]
    weights: dict[str, Any] = {"half": np.float32(0.5), "zero": np.array([0]), "one": np.array([1])}
    weights["table"] = np.random.default_rng(0).standard_normal((MOST_BATCH, 4)).astype(np.float32)
    inputs = [INFO("x", F, ["time", "batch", 4]), INFO("start", F, [4])]
    return saved(path, top, inputs, ["last", "every"], weights)


def test_loops_lie_in_each_other_and_take_the_beginning_of_constants(tmp_path) -> None:
    rows_of(tmp_path / "m.onnx")
    dims = {"time": range(1, LONGEST + 1), "batch": range(1, MOST_BATCH + 1)}
    modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", dims=dims, database=False, verify=False)
    check(tmp_path / "m.onnx", tmp_path / "p")
    assert [str(loop.limit) for loop in repeats(tmp_path / "p")] == ["size_time(1, 32)", "size_batch(1, 6)"]


def test_what_is_verified_is_the_loop(tmp_path) -> None:
    path = tmp_path / "m.onnx"
    recurrent_model(path, "LSTM", 9, "reverse", "BLhc", "YHC", "XLhc", 0, (2, 6, 10))
    opened(path, {"X": {0: "time"}})
    modelc.compile(path, output=tmp_path / "p", dims={"time": range(1, 13)}, database=False)
    verification = read_package(tmp_path / "p").manifest.verification
    assert verification is not None and verification["passed"]


def test_a_loop_that_cannot_be_one_is_named(tmp_path) -> None:
    """What it carries is longer after each iteration."""
    nodes = [
        node("Gather", ["x", "i"], ["row"], axis=0),
        node("Concat", ["h", "row"], ["h2"], axis=0),
        node("Identity", ["started"], ["again"]),
    ]
    part = body(nodes, ["again", "h2"], (INFO("i", I, []), INFO("started", B, []), INFO("h", F, None)))
    top = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"], axis=0),
        node("Loop", ["rows", "", "start"], ["last"], "grows", body=part),
    ]
    inputs = [INFO("x", F, ["time", 4]), INFO("start", F, [4])]
    saved(tmp_path / "m.onnx", top, inputs, ["last"], {"zero": np.int64(0)})
    with pytest.raises(ModelError, match="sizes say how often node 'grows' runs, and it cannot be a loop"):
        modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", dims={"time": range(1, 33)}, database=False)


def test_which_nodes_stay_loops_is_seen_by_their_counts(tmp_path) -> None:
    counted(tmp_path / "m.onnx", nested=True)

    def looked(loops: frozenset[str] | None) -> tuple[list[Trips], list[int]]:
        looks = [Trips(loops), Trips(loops)]
        graphs = [
            import_model(tmp_path / "m.onnx", {"x": (time, 4)}, trips=trips)
            for time, trips in zip((5, 9), looks, strict=True)
        ]
        return looks, [len(graph.nodes) for graph in graphs]

    looks, nodes = looked(None)
    assert differing(looks) == {"loop"} and looks[0].counts == {"loop": 5, "loop/inner": 3}
    assert nodes[0] == nodes[1]
    looks, nodes = looked(frozenset({"loop"}))
    assert differing(looks) == {"loop"} and nodes[0] == nodes[1]
    looks, nodes = looked(frozenset())
    assert nodes[0] < nodes[1]


def test_the_gates_of_a_state_are_computed_once_a_step(tmp_path: Path) -> None:
    """They are a phase of their own, and not in each iteration of a loop over the state that reads them."""
    path = tmp_path / "m.onnx"
    recurrent_model(path, "GRU", 9, "forward", "B", "YH", "X", size=(1, 16, 160), linear_before_reset=1)
    opened(path, {"X": {0: "time", 1: "batch"}})
    dims = {"time": "1..64", "batch": "1..8@1"}
    modelc.compile(path, output=tmp_path / "p", dims=dims, database=False, verify=False)
    steps = read_package(tmp_path / "p").manifest.variants[0].steps
    assert len({step.symbol for step in steps if step.name.startswith("grustep")}) > 1
