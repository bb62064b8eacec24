"""Inputs and outputs that look like states, by what exporters call them; the flags are those that compile takes."""

from __future__ import annotations

import onnx
import pytest
from control_models import saved
from onnx import TensorProto, helper
from state_models import STATES, cell

import modelc
from modelc.frontend.steering.states import state_candidates

F, I = TensorProto.FLOAT, TensorProto.INT64


def graph(*pairs: tuple[str, str], before: list | None = None, after: list | None = None) -> onnx.GraphProto:
    """A graph with these inputs and outputs, beside tokens and logits."""
    shapes = before or [1, 8], after or [1, 8]
    sides = [[helper.make_tensor_value_info(pair[k], F, shapes[k]) for pair in pairs] for k in (0, 1)]
    tokens = helper.make_tensor_value_info("input_ids", I, ["b", "s"])
    logits = helper.make_tensor_value_info("logits", F, ["b", "s", 9])
    return helper.make_graph([], "g", [tokens, *sides[0]], [logits, *sides[1]])


NAMES = (
    ("past_key_values.0.key", "present.0.key"),
    ("past_key_values.1.decoder.value", "present.1.decoder.value"),
    ("past_kv_3", "present_kv_3"),
    ("state", "stateN"),
    ("h0", "hn"),
    ("C0", "CN"),
    ("r1i", "r1o"),
    ("cache_in_0", "cache_out_0"),
    ("cached_len_1", "new_cached_len_1"),
    ("prev_hidden", "hidden"),
    ("/rnn/h_in", "/rnn/h_out"),
)


def test_names_of_exporters_alone_and_together() -> None:
    for pair in NAMES:
        assert [(one.input, one.output) for one in state_candidates(graph(pair))] == [pair]
    several = NAMES[:4] + NAMES[6:9]
    assert [(one.input, one.output) for one in state_candidates(graph(*several))] == [*several]


@pytest.mark.parametrize(
    "pair", [("input_image", "output_image"), ("x", "y"), ("in", "out"), ("left_state", "right_state")]
)
def test_what_is_no_state(pair) -> None:
    assert not state_candidates(graph(pair))
    assert not state_candidates(graph(NAMES[0], ("past_0_key", "other")))  # which of the two is past?


def test_shapes_say_whether_it_grows() -> None:
    cache = NAMES[0]
    for before, after, grows in (
        ([1, "past"], [1, "past + s"], True),
        ([1, "past"], [1, "past"], False),
        ([1, 4], [1, "anything"], False),
        (["b", 4], ["b", 5], True),
        ([1, 2, 3], [1, 2], True),
    ):
        (one,) = state_candidates(graph(cache, before=before, after=after))
        assert one.grows is grows, (before, after)


def test_inspect_says_the_flags_that_compile_takes(tmp_path) -> None:
    found = modelc.inspect(cell(tmp_path / "m.onnx"))["states"]
    assert [(one["input"], one["output"], one["flag"]) for one in found] == [("h", "h_next", "--state h=h_next")]
    assert ("h", "h_next") in STATES.items()
    nodes = [helper.make_node("Add", ["x", "h0"], ["hn"])]
    inputs = [helper.make_tensor_value_info(name, F, [2, 3]) for name in ("x", "h0")]
    path = saved(tmp_path / "n.onnx", nodes, inputs, ["hn"], {})
    (one,) = modelc.inspect(path)["states"]
    assert modelc.inspect(path, states={one["input"]: one["output"]})["states"] == []
    flag = one["flag"].removeprefix("--state ").split("=")
    assert modelc.compile(path, output=tmp_path / "p", states=dict([flag]), stop_after="import").path is None
