"""What all passes over Graphs have in common: their registry, checks after each, the same numbers before and after."""

from dataclasses import replace

import numpy as np
import pytest
from graph_to_onnx import assert_same, random_feeds
from hypothesis import given, settings
from hypothesis import strategies as st
from pass_graphs import graph, interpreted

from modelc.errors import ConfigError, InvalidIR
from modelc.ir.graph import Graph, Node, Value
from modelc.ir.verify_graph import verify_graph
from modelc.passes import PASSES, SIMPLIFY, infer, make_pass, run_passes


def test_passes_are_named_by_their_files():
    for name, kind in PASSES.items():
        assert kind.__module__ == f"modelc.passes.{name}"
        assert kind.__dataclass_params__.frozen
    assert {make_pass(spec)[0] for spec in SIMPLIFY} == set(PASSES)


def test_unknown_passes_and_options_are_refused():
    g = graph("input X: float32[2]\nY = Relu(X)\noutput Y")
    with pytest.raises(ConfigError, match="unknown pass 'fold_all'; the passes are eliminate_dead"):
        run_passes(g, ["fold_all"])
    with pytest.raises(ConfigError, match="fold_constants has no option size; it has limit"):
        run_passes(g, [{"fold_constants": {"size": 1}}])


def test_the_pass_that_breaks_a_graph_is_named(monkeypatch):
    def broken(g):
        return replace(g, nodes=())

    monkeypatch.setitem(PASSES, "fuse_gelu", lambda: broken)
    monkeypatch.setattr("modelc.passes.spec.fields", lambda kind: ())
    with pytest.raises(InvalidIR, match="pass fuse_gelu: output 'Y' is not produced"):
        run_passes(graph("input X: float32[2]\nY = Relu(X)\noutput Y"), ["eliminate_dead", "fuse_gelu"])


def test_every_pass_is_told_of():
    seen = []
    g = graph("input X: float32[2]\nY = Relu(X)\noutput Y")
    run_passes(g, ["eliminate_dead", "fold_constants"], on_pass=lambda name, after: seen.append((name, after == g)))
    assert seen == [("eliminate_dead", True), ("fold_constants", True)]


UNARY = ["Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Identity", "Erf"]
BINARY = ["Add", "Sub", "Mul", "Max"]


@st.composite
def random_graphs(draw):
    """Chains and joins of elementwise operators and moves over [2, 3, 4] and its permutations."""
    shapes = {"X": (2, 3, 4)}
    constants = {f"c{v}": np.float32(v) for v in (0, 1, 2, 0.5)}
    values = {"X": Value("X", "float32", (2, 3, 4))}
    values |= {k: Value(k, "float32", (), np.asarray(v)) for k, v in constants.items()}
    made = []
    for index in range(draw(st.integers(1, 12))):
        x, out = draw(st.sampled_from(sorted(shapes))), f"v{index}"
        kind = draw(st.sampled_from(["unary", "scalar", "binary", "transpose", "reshape"]))
        attrs, inputs, op = {}, (x,), ""
        if kind == "unary":
            op = draw(st.sampled_from(UNARY))
        elif kind == "scalar":
            op, c = draw(st.sampled_from(BINARY)), draw(st.sampled_from(sorted(constants)))
            inputs = draw(st.sampled_from([(x, c), (c, x)]))
        elif kind == "binary":
            op = draw(st.sampled_from(BINARY))
            inputs = (x, draw(st.sampled_from([y for y in sorted(shapes) if shapes[y] == shapes[x]])))
        elif kind == "transpose":
            op, attrs = "Transpose", {"perm": draw(st.permutations(range(len(shapes[x]))).map(tuple))}
        else:
            target = np.asarray(draw(st.sampled_from([(2, 3, 4), (6, 4), (24,), (1, 24, 1)])), np.int64)
            op, inputs = "Reshape", (x, f"s{index}")
            values[f"s{index}"] = Value(f"s{index}", "int64", target.shape, target)
        node = Node(op, f"n{index}", inputs, (out,), attrs, (f"n{index}",))
        ((dtype, shape),) = infer(node, tuple(values[i] for i in inputs))
        values[out], shapes[out] = Value(out, dtype, shape), shape
        made.append(node)
    outputs = draw(st.lists(st.sampled_from([n.outputs[0] for n in made]), min_size=1, max_size=3, unique=True))
    return Graph("random", ("X",), tuple(outputs), values, ()).with_nodes(made)


@settings(max_examples=60, deadline=None)
@given(random_graphs())
def test_simplified_random_graphs_compute_the_same(g):
    verify_graph(g, "random", infer)
    after = run_passes(g)
    feeds = random_feeds(g)
    assert_same(interpreted(g, feeds), interpreted(after, feeds))
    assert len(after.nodes) <= len(g.nodes) + 1
    assert run_passes(after) == after
