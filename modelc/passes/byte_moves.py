"""What only moves or selects numbers between DequantizeLinear and QuantizeLinear is done on the bytes.

    move(DQ(q))                      ->  DQ(move(q))         Transpose, MaxPool, Slice, Concat of one scale, ...
    Q(move(x))                       ->  move(Q(x))          Concat and windows: what computes x writes bytes
    Q(Relu(x)), Q(Clip(x, a, b))     ->  Q(x)                where Q saturates there anyway
    Q(Clip(DQ(q), a, b))             ->  Clip(q, Q(a), Q(b)) of one scale and zero point
    Q(DQ(q))                         ->  q                   of one scale and zero point

All of it is exact: a scale is positive, so that quantizing and dequantizing keep the order of numbers, and equal
numbers equal. Windows and borders that hold no data hold the lowest byte where they held the lowest number, and the
zero point where they held zero. Scales by channel, and scales that are computed, stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.ir.graph import Graph, Node, Value
from modelc.ops import OPERATORS
from modelc.passes.machine import BYTES
from modelc.passes.pattern import Bind, Constant, Editor, Match, Op, Rule, rewrite

MOVING = ("moves", "selects", "chooses")
MOVES = (*(name for name, row in OPERATORS.items() if row.numbers in MOVING), "Resize", "Pad")
JOINS = tuple(name for name, row in OPERATORS.items() if row.numbers == "joins")
QUANTIZED_BEFORE = ("MaxPool", "Resize", "DepthToSpace", "SpaceToDepth", "Expand", "Tile", "Pad")  # not less are moved
REAL = Op("DequantizeLinear", Bind("x"), Constant("s"), name="real", more=True)


@dataclass(frozen=True)
class ByteMoves:
    def __call__(self, graph: Graph) -> Graph:
        while True:
            graph = rewrite(graph, RULES)
            split = _split_as_bytes(graph)
            if split is None:
                return graph
            graph = split


# --- scales -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Steps:
    """The one positive scale, and the one zero point, by which bytes of `dtype` stand for float32 numbers."""

    scale: np.float32
    zero: int
    dtype: str

    def of(self, number: float) -> int:
        """The byte that a number is quantized to."""
        kind = np.iinfo(DTYPES[self.dtype])
        with np.errstate(over="ignore"):
            whole = np.rint(np.float32(number) / self.scale).astype(np.float64) + self.zero
        return int(np.clip(whole, kind.min, kind.max))

    def exactly(self, number: float) -> int | None:
        """The byte that stands for just this number."""
        byte = self.of(number)
        return byte if np.float32(byte - self.zero) * self.scale == np.float32(number) else None


def _steps(e: Editor, node: Node | None) -> Steps | None:
    """Those of a QuantizeLinear or a DequantizeLinear."""
    if node is None or node.op not in ("QuantizeLinear", "DequantizeLinear") or node.attrs.get("block_size", 0):
        return None
    whole, real = node.inputs[:1], node.outputs[:1]
    if node.op == "QuantizeLinear":
        whole, real = real, whole
    scale, dtype = e.data(node.inputs[1]), e.value(whole[0]).dtype
    zero = e.data(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1, np.int64)
    if scale is None or zero is None or scale.size != 1 or zero.size != 1 or dtype not in BYTES:
        return None
    if scale.dtype != np.float32 or e.value(real[0]).dtype != "float32" or not 0 < scale.item() < np.inf:
        return None
    return Steps(np.float32(scale.item()), int(zero.item()), dtype)


def _byte(e: Editor, number: int, dtype: str, base: str) -> str:
    return e.constant(np.asarray(number), f"{base}_byte", dtype)


# --- moves of what is dequantized ---------------------------------------------------------------------------------


def _sunk(e: Editor, m: Match) -> str | None:
    """What moves or selects numbers does so before they are dequantized."""
    node, source = m.root, e.producer(m["real"])
    steps = _steps(e, source)
    assert source is not None
    if steps is None or node.inputs[0] != m["real"] or len([o for o in node.outputs if o]) > 1:
        return None
    if e.data(m["x"]) is not None and (node.op != "Gather" or e.data(node.inputs[1]) is not None):
        return None
    moved = _moved(e, node, m["x"], steps)
    return None if moved is None else e.again(source, (moved, *source.inputs[1:]))


def _moved(e: Editor, node: Node, x: str, steps: Steps, exact: bool = True) -> str | None:
    """`node` over the bytes `x`, with what it fills up as bytes; `exact`: which stand for just that."""
    if node.op == "Resize" and not _chooses(node):
        return None
    if node.op != "Pad" or node.attrs.get("mode", "constant") != "constant":
        return e.again(node, (x, *node.inputs[1:]))
    fill = e.scalar(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else 0.0
    if fill is None or np.isnan(fill):
        return None
    byte = steps.exactly(fill) if exact else steps.of(fill)
    if byte is None:
        return None
    return e.again(node, (x, node.inputs[1], _byte(e, byte, steps.dtype, node.outputs[0]), *node.inputs[3:]))


def _chooses(node: Node) -> bool:
    """Whether a Resize gives numbers that it was given, and no others."""
    cropped = node.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize"
    return node.attrs.get("mode", "nearest") == "nearest" and not cropped


def _joined(e: Editor, m: Match) -> str | None:
    """What joins, or chooses among, numbers of one scale and zero point does so before they are dequantized."""
    node, sources = m.root, [e.producer(x) for x in m.root.inputs]
    every = [_steps(e, n) if n is not None and n.op == "DequantizeLinear" else None for n in sources]
    if len(every) < 2 or every[0] is None or any(steps != every[0] for steps in every):
        return None
    wholes = [source.inputs[0] for source in sources if source is not None]
    if any(e.data(x) is not None for x in wholes):
        return None
    if node.op != "Concat" and len({e.shape(x) for x in wholes}) > 1:
        return None
    first = sources[0]
    assert first is not None
    return e.again(first, (e.again(node, wholes), *first.inputs[1:]))


def _rectified(e: Editor, m: Match) -> str | None:
    """Relu of what is dequantized is that of bytes at the zero point."""
    source = e.producer(m["real"])
    steps = _steps(e, source)
    if steps is None or source is None or e.data(m["x"]) is not None:
        return None
    limited = e.add("Clip", (m["x"], _byte(e, steps.zero, steps.dtype, m.root.outputs[0])))
    return e.again(source, (limited, *source.inputs[1:]))


def _split_as_bytes(graph: Graph) -> Graph | None:
    """The parts of what is dequantized are dequantized after it is split; None where there is nothing to split so."""
    producers, values, nodes, split = graph.producers(), dict(graph.values), list[Node](), False
    editor = Editor(graph)
    for node in graph.nodes:
        source = producers.get(node.inputs[0]) if node.op == "Split" else None
        steps = _steps(editor, source)
        if (
            source is None
            or source.op != "DequantizeLinear"
            or steps is None
            or values[source.inputs[0]].data is not None
        ):
            nodes.append(node)
            continue
        parts = {out: graph.fresh(f"{out}_bytes", values) for out in node.outputs if out}
        values |= {name: Value(name, steps.dtype, values[out].shape) for out, name in parts.items()}
        bytes_of = tuple(parts.get(out, "") for out in node.outputs)
        nodes.append(Node("Split", node.name, (source.inputs[0], *node.inputs[1:]), bytes_of, node.attrs, node.source))
        for k, (out, name) in enumerate(parts.items()):
            inputs = (name, *source.inputs[1:])
            origin = tuple(dict.fromkeys((*source.source, *node.source)))
            nodes.append(Node(source.op, f"{node.name}/{source.op}_{k}", inputs, (out,), source.attrs, origin))
        split = True
    return graph.with_nodes(nodes, values.values()) if split else None


# --- what is quantized --------------------------------------------------------------------------------------------


def _same(e: Editor, m: Match) -> str | None:
    """Quantized by what it was dequantized by: round((q - z) * s / s) + z is q."""
    written, read = _steps(e, m.root), _steps(e, e.producer(m["real"]))
    return m["x"] if written is not None and written == read else None


def _saturated(e: Editor, m: Match) -> str | None:
    """Limits at which bytes saturate anyway are no limits more."""
    steps, limiting = _steps(e, m.root), e.producer(m["limited"])
    limits = None if limiting is None else _limits(e, limiting)
    if steps is None or limits is None:
        return None
    kind, (least, largest) = np.iinfo(DTYPES[steps.dtype]), limits
    if steps.of(least) != kind.min or steps.of(largest) != kind.max:
        return None
    return e.again(m.root, (m["y"], *m.root.inputs[1:]))


def _limited(e: Editor, m: Match) -> str | None:
    """Numbers that stay in the same steps are limited as bytes."""
    steps, limiting = _steps(e, m.root), e.producer(m["limited"])
    limits = None if limiting is None else _limits(e, limiting)
    if steps is None or limits is None or steps != _steps(e, e.producer(m["real"])):
        return None
    ends = [_byte(e, steps.of(limit), steps.dtype, m["limited"]) for limit in limits]
    return e.add("Clip", (m["x"], *ends))


def _limits(e: Editor, node: Node) -> tuple[float, float] | None:
    """The least and the largest number that Relu or Clip gives."""
    if node.op == "Relu":
        return 0.0, float("inf")
    ends: list[float] = []
    for k, (name, otherwise) in enumerate((("min", -np.inf), ("max", np.inf)), 1):
        given = len(node.inputs) > k and node.inputs[k]
        end = e.scalar(node.inputs[k]) if given else float(node.attrs.get(name, otherwise))
        if end is None:
            return None
        ends.append(end)
    return (ends[0], ends[1]) if ends[0] <= ends[1] else None


def _quantized_before(e: Editor, m: Match) -> str | None:
    """What computes numbers that are moved and quantized writes bytes."""
    steps, node = _steps(e, m.root), e.producer(m["moved"])
    assert node is not None
    maker = e.producer(m["y"])
    if steps is None or maker is None or len([o for o in node.outputs if o]) > 1:
        return None
    if maker.op == "DequantizeLinear":  # bytes are moved anyway, and fewer are quantized anew behind
        return None
    if node.op not in QUANTIZED_BEFORE or not e.private(m["y"]) or node.inputs[0] != m["y"]:
        return None
    if node.op == "Resize" and not _chooses(node):
        return None
    quantized = e.again(m.root, (m["y"], *m.root.inputs[1:]))
    return _moved(e, node, quantized, steps, exact=False)


def _parts_quantized(e: Editor, m: Match) -> str | None:
    """Parts of a Concat are written as bytes."""
    steps, node = _steps(e, m.root), e.producer(m["joined"])
    if steps is None or node is None:
        return None
    parts = {x: e.again(m.root, (x, *m.root.inputs[1:])) for x in dict.fromkeys(node.inputs)}
    return e.again(node, [parts[x] for x in node.inputs])


TO = (Constant("to"), Constant("z"))
MOVED = Op("|".join(QUANTIZED_BEFORE), Bind("y"), name="moved", more=True)
RULES = (
    Rule(Op("QuantizeLinear", REAL, Constant("to"), more=True), _same, private=False),
    Rule(Op("QuantizeLinear", Op("Relu|Clip", Bind("y"), name="limited", more=True), *TO), _saturated),
    Rule(Op("QuantizeLinear", Op("Relu|Clip", REAL, name="limited", more=True), *TO), _limited, private=False),
    Rule(Op("|".join(MOVES), REAL, more=True), _sunk, private=False),
    Rule(Op("|".join(JOINS), REAL, more=True), _joined, private=False),
    Rule(Op("Relu", REAL), _rectified, private=False),
    Rule(Op("QuantizeLinear", MOVED, *TO), _quantized_before),
    Rule(Op("QuantizeLinear", Op("Concat", Bind("y"), name="joined", more=True), *TO), _parts_quantized),
)
