"""DynamicQuantizeLSTM (domain com.microsoft): an LSTM whose matrix products are of whole numbers. What it is fed is
quantized and multiplied at once for all steps, its state anew at each one, in a loop that is left to a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelc.frontend.building.bodies import Body, emit_control
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.formula import Formula
from modelc.frontend.operators.form import Fused
from modelc.ir.graph import Value
from modelc.ops.rnn import activations_of

FUNCTIONS = ("Sigmoid", "Tanh", "Relu")
GATES = 4  # input, output, forget and cell, in this order


@dataclass(frozen=True)
class Direction:
    """Weights of one direction [I, 4 H] and [H, 4 H] with scales and zero points, biases [4 H] of both, peepholes."""

    fed: tuple[str, str, str]
    kept: tuple[str, str, str]
    bias: str
    peepholes: tuple[str, ...]
    functions: tuple[str, ...]


def _dynamic_quantize_lstm(b: Builder, n: OnnxNode) -> None:
    f = Formula(b, n)
    time, batch, _ = b.shape(n.inputs[0])
    directions, hidden, _ = b.shape(n.inputs[2])
    direction = n.attrs.get("direction", "forward")
    if directions != (2 if direction == "bidirectional" else 1):
        raise n.fail(f"expected weights of as many directions as {direction!r} has, found {directions}")
    if n.input(4) or n.attrs.get("input_forget", 0):
        raise n.fail("expected sequences of full length and no input_forget, found one of them")
    if "clip" in n.attrs and not n.attrs["clip"] > 0:
        raise n.fail(f"expected a clip above 0, found {n.attrs['clip']}")
    sides = [_direction(f, d, hidden) for d in range(directions)]
    quantized = _quantized(f, n.inputs[0])
    given: list[str] = []
    ends: tuple[list[str], list[str]] = ([], [])
    for d, side in enumerate(sides):
        projected = _product(f, quantized, side.fed)
        backwards = d == 1 or direction == "reverse"
        states = tuple(_state(f, k, d, batch, hidden) for k in (5, 6))
        every, *last = _steps(f, side, b.backwards(n, projected) if backwards else projected, states)
        every = b.backwards(n, every) if backwards else every
        given.append(f.reshaped(every, time, 1, batch, hidden))
        for end, x in zip(ends, last, strict=True):
            end.append(f.reshaped(x, 1, batch, hidden))
    if n.wants(0):
        f.hand(0, f("Concat", *given, axis=1) if len(given) > 1 else given[0])
    for k, end in enumerate(ends, 1):
        if n.wants(k):
            f.hand(k, f("Concat", *end, axis=0) if len(end) > 1 else end[0])


def _steps(f: Formula, side: Direction, rows: str, states: tuple[str, ...]) -> tuple[str, str, str]:
    """The states after every step [T, B, H], and state and cell after the last one: a loop along `rows` [T, B, 4 H]."""
    b, n = f.b, f.n
    time, *row = f.shape(rows)

    def inner(what: str, shape: Sequence[int], dtype: str = "float32") -> str:
        name = b.fresh(f"{n.name or n.op}_{what}")
        b.values[name] = Value(name, dtype, tuple(shape))
        return name

    number, state, cell = inner("number", (), "int64"), *(inner(x, f.shape(states[0])) for x in ("state", "cell"))
    element = inner("row", row)
    outside, b.nodes = b.nodes, []
    try:
        originals = _step(f, side, element, state, cell)
        results = tuple(f("Identity", x) for x in (*originals, originals[0]))
        body = Body(tuple(b.nodes), (number, state, cell, element), results, (*originals, originals[0]))
    finally:
        b.nodes = outside
    last, last_cell, every = (b.fresh(f"{n.name or n.op}_{x}") for x in ("last", "last_cell", "states"))
    attrs = {"counted": 0, "asked": 0, "asks": 0, "states": 2, "parts": 1, "limit": time}
    emit_control(b, n, "Loop", (*states, rows), (body,), attrs, (last, last_cell, every))
    return every, last, last_cell


def _direction(f: Formula, d: int, hidden: int) -> Direction:
    n, every = f.n, GATES * hidden
    functions = activations_of("LSTM", n.attrs, d)
    if unknown := [x for x in functions if x not in FUNCTIONS]:
        raise n.fail(f"expected activations among {', '.join(FUNCTIONS)}, found {unknown[0]!r}")

    def of(k: int) -> str:
        x = n.inputs[k]
        part = f.part(x, 0, d, d + 1)
        return f.reshaped(part, *f.shape(x)[1:])

    bias = ""
    if n.input(3):
        both = of(3)
        bias = f("Add", f.part(both, 0, 0, every), f.part(both, 0, every, 2 * every))
    peepholes: tuple[str, ...] = ()
    if n.input(7):
        whole = of(7)
        peepholes = tuple(f.part(whole, 0, k * hidden, (k + 1) * hidden) for k in range(3))
    return Direction((of(1), of(8), of(9)), (of(2), of(10), of(11)), bias, peepholes, functions)


def _state(f: Formula, k: int, d: int, batch: int, hidden: int) -> str:
    if not f.n.input(k):
        zero = f.constant(0.0)
        return f("Expand", zero, f.constant((batch, hidden), "int64"))
    return f.reshaped(f.part(f.n.inputs[k], 0, d, d + 1), batch, hidden)


def _quantized(f: Formula, x: str) -> tuple[str, str, str]:
    """Whole numbers, their scale and zero point."""
    names = tuple(f.b.fresh(f"{f.n.name or f.n.op}_{what}") for what in ("quantized", "scale", "zero"))
    f("DynamicQuantizeLinear", x, outputs=names)
    return names[0], names[1], names[2]


def _product(f: Formula, x: tuple[str, str, str], w: tuple[str, str, str]) -> str:
    """The product of what two triples of whole numbers, scale and zero point stand for."""
    total = f("MatMulInteger", x[0], w[0], x[2], w[2])
    return f("Mul", f.cast(total, "float32"), f("Mul", x[1], w[1]))


def _step(f: Formula, side: Direction, row: str, state: str, cell: str) -> tuple[str, str]:
    """State and cell after a step, [B, H]."""
    hidden = f.shape(state)[1]
    total = f("Add", row, _product(f, _quantized(f, state), side.kept))
    total = f("Add", total, side.bias) if side.bias else total
    gates = [f.part(total, 1, k * hidden, (k + 1) * hidden) for k in range(GATES)]
    into, out, forget, new = gates
    outer, inner, last = side.functions
    if side.peepholes:
        into = f("Add", into, f("Mul", cell, side.peepholes[0]))
        forget = f("Add", forget, f("Mul", cell, side.peepholes[2]))
    kept = f("Mul", f(outer, _clipped(f, forget)), cell)
    taken = f("Mul", f(outer, _clipped(f, into)), f(inner, _clipped(f, new)))
    cell = f("Add", kept, taken)
    if side.peepholes:
        out = f("Add", out, f("Mul", cell, side.peepholes[1]))
    return f("Mul", f(outer, _clipped(f, out)), f(last, cell)), cell


def _clipped(f: Formula, gate: str) -> str:
    """What goes into the activation of a gate. The cell state is not clipped for its own: see ops/rnn.py."""
    if "clip" not in f.n.attrs:
        return gate
    most = float(f.n.attrs["clip"])
    return f("Clip", gate, f.constant(-most), f.constant(most))


RECURRENT = (
    Fused(
        "DynamicQuantizeLSTM",
        _dynamic_quantize_lstm,
        "X W R B? sequence_lens? initial_h? initial_c? P? W_scale W_zero_point R_scale R_zero_point",
        3,
        "hidden_size:INT direction:STRING activations:STRINGS activation_alpha:FLOATS activation_beta:FLOATS "
        "clip:FLOAT input_forget:INT",
    ),
)
