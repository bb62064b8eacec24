"""Recurrent nodes of many steps: nodes for their steps compute what the whole node does, share their kernels, and agree
with ONNX Runtime as packages."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from program_runs import run_program
from recurrent_models import GATES, model

import modelc
from modelc.errors import ModelError
from modelc.frontend.onnx import import_model
from modelc.frontend.operators import recurrent
from modelc.layout.program import partition
from modelc.ops import MEANINGS, evaluate_graph
from modelc.passes import run_passes
from modelc.runtime import ModelError as RunError

FUNCTIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


@settings(max_examples=30, deadline=None)
@given(
    op=st.sampled_from(sorted(GATES)),
    time=st.integers(1, 5),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    optional=st.sets(st.sampled_from("BLhcP")),
    wanted=st.sets(st.sampled_from("YH"), min_size=1),
    as_inputs=st.sets(st.sampled_from("WRBLhcP")),
    layout=st.integers(0, 1),
    linear=st.integers(0, 1),
    swapped=st.booleans(),
    clip=st.sampled_from([None, 0.25, 2.0]),
)
def test_steps_compute_what_the_whole_node_does(
    tmp_path_factory, op, time, direction, optional, wanted, as_inputs, layout, linear, swapped, clip
) -> None:
    path = tmp_path_factory.mktemp("recurrent") / "m.onnx"
    attrs: dict[str, Any] = {"linear_before_reset": linear} if op == "GRU" else {}
    if clip:
        attrs["clip"] = clip
    if swapped:
        names = FUNCTIONS[op]
        attrs["activations"] = [*(("Relu",) * len(names)), *names][: len(names) * (1 + (direction == "bidirectional"))]
    feeds = model(
        path, op, time, direction, "".join(optional), "".join(wanted | {"C"}), "X" + "".join(as_inputs), layout, **attrs
    )
    found = []
    for most in (0, time):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recurrent, "MOST_IN_ONE", most)
            graph = import_model(path)
        assert sum(node.op == f"{op}Step" for node in graph.nodes) == (
            0 if most else time * (1 + (direction == "bidirectional"))
        )
        found.append(evaluate_graph(graph, feeds))
    steps, whole = found
    assert steps.keys() == whole.keys() and steps
    for name, array in whole.items():
        np.testing.assert_allclose(steps[name], array, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", sorted(GATES))
def test_steps_share_their_kernels_and_nothing_is_copied_between_them(tmp_path, op) -> None:
    """More steps are no more kernels; every Task is the projection, a step, or one that makes an output."""
    kernels, steps = [], []
    for time in (12, 24):
        model(tmp_path / "m.onnx", op, time, "bidirectional", "BL", "YHC")
        program = partition(run_passes(import_model(tmp_path / "m.onnx")))
        kernels.append(len({bound.task.hash for bound in program.tasks}))
        steps.append(len(program.tasks) - 2 * time)
    assert kernels[0] == kernels[1] <= 10 and steps[0] == steps[1] <= 8


@pytest.mark.parametrize(
    ("op", "direction", "given", "attrs"),
    [
        ("LSTM", "bidirectional", "BLhcP", {}),
        ("GRU", "reverse", "Bh", {"linear_before_reset": 1}),
        ("GRU", "forward", "BL", {}),
        ("RNN", "bidirectional", "B", {"activations": ["Tanh", "Relu"]}),
        ("LSTM", "bidirectional", "BhcP", {"clip": 0.3}),
        ("GRU", "bidirectional", "BLh", {"clip": 0.3}),
        ("GRU", "forward", "Bh", {"clip": 0.3, "linear_before_reset": 1}),
        ("RNN", "reverse", "BL", {"clip": 0.3}),
    ],
)
@pytest.mark.sweep(3)
def test_packages_agree_with_onnx_runtime(tmp_path, op, direction, given, attrs) -> None:
    feeds = model(tmp_path / "m.onnx", op, 11, direction, given, as_inputs="XLh", size=(3, 20, 24), **attrs)
    result = modelc.compile(tmp_path / "m.onnx", output=tmp_path / "p", inputs=feeds, database=False)
    assert result.report is not None and result.report.passed and len(result.report.outputs) == 3 - (op != "LSTM")
    if "L" in given:
        feeds["L"] = np.asarray([11, 12, 1], np.int32)
        with (
            modelc.load(tmp_path / "p") as loaded,
            pytest.raises(RunError, match=r"'L' is 12 at \[1\]; .* from 0 to 11"),
        ):
            loaded.run(feeds)


@pytest.mark.parametrize("op", sorted(GATES))
@pytest.mark.parametrize("time", [3, 11])
def test_what_is_clipped_is_what_onnx_runtime_clips(tmp_path, op, time) -> None:
    """All that goes into gates, biases and peepholes with it, and not the cell state of an LSTM."""
    feeds = model(tmp_path / "m.onnx", op, time, "bidirectional", "BhcP", as_inputs="XhcP", clip=0.2)
    found = evaluate_graph(import_model(tmp_path / "m.onnx"), feeds)
    wanted = onnxruntime.InferenceSession(tmp_path / "m.onnx").run(None, feeds)
    model(tmp_path / "m.onnx", op, time, "bidirectional", "BhcP", as_inputs="XhcP")
    freely = evaluate_graph(import_model(tmp_path / "m.onnx"), feeds)
    for (name, array), one in zip(found.items(), wanted, strict=True):
        np.testing.assert_allclose(array, one, rtol=1e-5, atol=1e-6)
        assert np.abs(freely[name] - one).max() > 0.05


def test_a_clip_that_leaves_nothing_is_refused(tmp_path) -> None:
    model(tmp_path / "m.onnx", "GRU", 3, clip=0.0)
    with pytest.raises(ModelError, match=r"'rec' \(GRU\): expected a clip above 0, found 0"):
        import_model(tmp_path / "m.onnx")


def test_a_last_state_that_nobody_reads_is_not_computed_for_them(tmp_path) -> None:
    """Y alone, in both directions: the cell state of the last step is read by its own step alone."""
    feeds = model(tmp_path / "m.onnx", "LSTM", 10, "bidirectional", "B", "Y", size=(1, 4, 5))
    graph = run_passes(import_model(tmp_path / "m.onnx"))
    found, wanted = run_program(partition(graph), feeds, MEANINGS), evaluate_graph(graph, feeds)
    assert list(found) == list(wanted) and len(found) == 1
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)


def test_too_many_steps_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(recurrent, "MOST_STEPS", 20)
    model(tmp_path / "m.onnx", "GRU", 11, "bidirectional")
    with pytest.raises(ModelError, match=r"at most 20 steps in all directions \(MOST_STEPS\), found 22"):
        import_model(tmp_path / "m.onnx")
