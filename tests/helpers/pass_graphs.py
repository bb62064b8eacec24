"""Graphs as text for the tests of passes, and a pass with its numbers compared."""

from dataclasses import replace

import numpy as np
from graph_texts import parse_graph
from graph_to_onnx import assert_same, random_feeds, run_onnx, to_onnx

from modelc.ir.graph import Graph, Value
from modelc.ir.graph_text import show_graph
from modelc.ir.verify_graph import verify_graph
from modelc.ops import evaluate_graph
from modelc.passes import infer, run_passes

SCALARS = """
    const half: float32[] = [0.5]
    const one: float32[] = [1.0]
    const two: float32[] = [2.0]
    const three: float32[] = [3.0]
    const six: float32[] = [6.0]
    const zero: float32[] = [0.0]
    const sixth: float32[] = [0.16666667]
    const root: float32[] = [1.4142135]
    const inverse: float32[] = [0.70710677]
    const c: float32[] = [0.7978846]
    const k: float32[] = [0.044715]
    const ck: float32[] = [0.035677407]
    const eps: float32[] = [1e-05]
"""


def graph(text: str) -> Graph:
    """A Graph from nodes alone: `input X: float32[2]` and `const` lines, then nodes; values are inferred."""
    declared, nodes, outputs = [], [], []
    for line in filter(None, map(str.strip, text.splitlines())):
        kind = line.split()[0]
        (declared if kind in ("input", "const") else outputs if kind == "output" else nodes).append(line)
    nodes = [n if "#" in n else f"{n}  # n{k}" for k, n in enumerate(nodes)]
    parsed = parse_graph("\n".join(["graph g", *declared, *nodes, *outputs]))
    values = dict(parsed.values)
    for node in parsed.nodes:
        types = infer(node, tuple(values[x] if x else None for x in node.inputs))
        for name, (dtype, shape) in zip(node.outputs, types, strict=False):
            if name:
                values[name] = Value(name, dtype, shape)
    made = replace(parsed, values=values)
    verify_graph(made, "test", infer)
    return made


def nodes(g: Graph) -> list[str]:
    """The nodes as text, constants by their values, without names and sources."""
    lines = [line.strip().split("  #")[0] for line in show_graph(g).splitlines() if "  #" in line]
    return [line for line in lines if " = " in line]


def ops(g: Graph) -> list[str]:
    return [n.op for n in g.nodes]


def interpreted(g: Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the operator library says the Graph computes."""
    found = evaluate_graph(g, feeds)
    return [found[name] for name in g.outputs]


def applied(name: str, text: str | Graph, numbers: bool = True, **options) -> Graph:
    """The Graph after one pass; the numbers are compared with ONNX Runtime's and the interpreter's."""
    before = graph(text) if isinstance(text, str) else text
    after = run_passes(before, [{name: options}])
    assert [v for v in after.outputs] == [v for v in before.outputs]
    if numbers:
        feeds = random_feeds(before, high=2)
        expected = run_onnx(to_onnx(before), feeds)
        assert_same(expected, run_onnx(to_onnx(after), feeds))
        assert_same(expected, interpreted(after, feeds))
    return after


def weights(name: str, *shape: int, seed: int = 0, low: float | None = None) -> str:
    """A constant of random numbers as a line of text."""
    rng = np.random.default_rng([seed, *name.encode()])
    data = (rng.standard_normal(shape) if low is None else rng.uniform(low, 2, shape)).astype(np.float32)
    made = Graph("g", (), (), {name: Value(name, "float32", shape, data)}, ())
    return show_graph(made).splitlines()[1]
