"""The text of Graphs, and their verifier."""

from dataclasses import replace

import numpy as np
import pytest
from graph_texts import GraphSyntaxError, parse_graph
from hypothesis import given, settings
from hypothesis import strategies as st

from modelc.errors import InvalidIR
from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph, Node, Value
from modelc.ir.graph_text import show_graph
from modelc.ir.verify_graph import verify_graph
from modelc.passes import infer

TEXT = """graph net
  input X: float32[1, 3]
  const W: float32[3] = [0.5, -0.0, 1e-45]
  const "layer 1/b": int64[] = [7]
  value Y: float32[1, 3]
  value "y:0": float32[1, 3]
  Y = Mul(X, W)  # scale
  "y:0" = Clip(Y, "", W) mode="a \\"b\\"" pads=(1, 2) one=(3,) none=() ratio=0.25 t=uint8[2]([1, 2])  # c from n1, "n 2"
  output "y:0"
  grown X in "y:0" axis=1 room=9
  note "a sentence"
"""


def test_text_is_read_and_printed_back():
    graph = parse_graph(TEXT)
    assert show_graph(graph) == TEXT
    assert parse_graph(show_graph(graph)) == graph
    assert graph.values["layer 1/b"].data.shape == ()
    node = graph.nodes[1]
    assert node.inputs == ("Y", "", "W") and node.source == ("n1", "n 2")
    assert {k: v for k, v in node.attrs.items() if k != "t"} == {
        "mode": 'a "b"', "pads": (1, 2), "one": (3,), "none": (), "ratio": 0.25
    }  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.integers(0, 4), max_size=3),
    st.binary(min_size=8, max_size=64),
    st.text(),
)
def test_any_constant_name_and_bits_survive(dtype, shape, seed, name):
    kind = DTYPES[dtype]
    count = int(np.prod(shape, dtype=int))
    content = (seed * (count + 1))[: count * kind.itemsize]
    data = np.frombuffer(content, np.uint8).copy()
    data = (data % 2).astype(bool) if dtype == "bool" else data.view(kind)
    value = Value(name or "v", dtype, tuple(shape), data.reshape(shape))
    node = Node("Identity", name, (value.name,), ("out " + value.name,), {}, ())
    graph = Graph(
        name,
        (),
        node.outputs,
        {value.name: value, node.outputs[0]: replace(value, name=node.outputs[0], data=None)},
        (node,),
    )
    assert parse_graph(show_graph(graph)) == graph


def test_large_constants_are_elided_for_people_only():
    data = np.arange(100, dtype=np.float32)
    graph = Graph("g", (), (), {"W": Value("W", "float32", (100,), data)}, ())
    assert parse_graph(show_graph(graph)) == graph
    elided = show_graph(graph, elide=50)
    assert "<elided sha256:" in elided and len(elided) < 120
    with pytest.raises(GraphSyntaxError, match=r"line 2: .*elided"):
        parse_graph(elided)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("value X: float31[1]", "expected a dtype"),
        ("const X: int8[2] = [1]", "expected 2 numbers"),
        ("Y = Relu(X)", "the node's name"),
        ("Y = Relu(X", r"expected '\)'"),
        ("Y = Relu(X) a=@  # n", "did not expect"),
        ('const X: int8[2] = "AAAA"', "damaged data"),
    ],
)
def test_syntax_errors_name_the_line(line, sentence):
    with pytest.raises(GraphSyntaxError, match=f"line 2: .*{sentence}"):
        parse_graph(f"graph g\n  {line}\n")


GOOD = """graph g
  input X: float32[2, 3]
  const W: float32[3] = [1.0, 2.0, 3.0]
  value A: float32[2, 3]
  value B: float32[2, 3]
  A = Mul(X, W)  # a
  B = Relu(A)  # b
  output B
"""


def test_a_valid_graph_passes():
    verify_graph(parse_graph(GOOD), "test", infer)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("B = Relu(A)  # b", "A = Relu(A)  # b", "'A' is produced by both 'a' and 'b'"),
        ("B = Relu(A)  # b", "B = Relu(C)  # b", r"node 'b' \(Relu\) reads 'C', which is neither"),
        ("A = Mul(X, W)  # a", "A = Mul(B, W)  # a", "'a'.* reads 'B' before node 'b' produces it"),
        ("B = Relu(A)  # b", "B = Relu(A)  # a", "two nodes are named 'a'"),
        ("B = Relu(A)", "W = Relu(A)", "writes 'W', which is an input or a constant"),
        (
            "B: float32[2, 3]",
            "B: float32[3, 2]",
            r"'B' is declared float32\[3, 2\], its operator gives float32\[2, 3\]",
        ),
        ("B: float32[2, 3]", "B: float64[2, 3]", "'B' is declared float64"),
        ("output B", "output C", "output 'C' is not produced"),
        ("output B", "output W", "output 'W' is a constant"),
        ("  value A: float32[2, 3]\n", "", "writes 'A', which has no dtype"),
        ("value A:", "value C: int8[1]\n  value A:", "value 'C' is neither fed, constant, nor produced"),
        ("X: float32[2, 3]", "X: float32[2, 4]", "cannot be inferred"),
        ("B = Relu(A)", "B = Nonsense(A)", "cannot be inferred"),
    ],
)
def test_the_verifier_says_what_and_where(old, new, sentence):
    assert old in GOOD
    with pytest.raises(InvalidIR, match=f"pass x: .*{sentence}"):
        verify_graph(parse_graph(GOOD.replace(old, new)), "pass x", infer)


def test_the_verifier_looks_at_constants():
    graph = parse_graph(GOOD)
    for broken, sentence in (
        (replace(graph.values["W"], shape=(4,)), r"constant 'W' is float32\[4\] but holds float32\[3\]"),
        (replace(graph.values["W"], dtype="int32"), "constant 'W' is int32"),
        (replace(graph.values["W"], name="V"), "filed under another name"),
    ):
        with pytest.raises(InvalidIR, match=sentence):
            verify_graph(replace(graph, values={**graph.values, "W": broken}), "test")
