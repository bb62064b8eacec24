"""Recurrent cells.

LSTM, GRU and RNN of a few steps are one Definition each, unrolled over time: one contraction for all inputs, then per
step a contraction of the state and the cell's equations; every step writes elements of its own. Longer ones become
nodes when they are imported (frontend/operators/recurrent.py): a matrix product for the inputs of all steps, and a
node LSTMStep, GRUStep or RNNStep for each, all of them the same Task but for where their operands lie. A step has one
direction:

    x0 [1, N, gates * H]  the input by the weights of the gates, with their bias
    x2 [1, gates * H, H]  recurrent weights            x3 [1, gates * H]  their bias
    x4 [N]                whether the step is within the sequence (bool); absent: it is
    x5, x6 [1, N, H]      the state before it          x7 [1, 3 * H]      peepholes

and gives what the whole node gives for its time, and its state: all of [1, N, H]."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from modelc.ir.addresses import claim
from modelc.ir.block import AnyBlock, Buffer, Iter
from modelc.ir.expr import Const, Expr, Load, Var, cast, const, op
from modelc.ir.graph import Node, Value
from modelc.ops.operator import (
    Definition,
    Inputs,
    Operator,
    Types,
    assign,
    check_known,
    fail,
    fold,
    given,
    required,
    shape_of,
    text,
)

DIRECTIONS = ("forward", "reverse", "bidirectional")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_ACTIVATIONS: dict[str, Callable[[str, Expr], Expr]] = {
    "Sigmoid": lambda real, x: op("sigmoid", x),
    "Tanh": lambda real, x: op("tanh", x),
    "Relu": lambda real, x: op("max", x, const(0, real)),
}


def _extents(node: Node, inputs: Inputs) -> tuple[int, int, int, int, bool]:
    """Time, batch, hidden size, directions, and whether the batch comes first."""
    x, hidden = required(node, inputs, 0), shape_of(node, inputs, 2, 3)[2]
    first, second, _ = shape_of(node, inputs, 0, 3)
    batch_first = bool(node.attrs.get("layout", 0))
    time, batch = (second, first) if batch_first else (first, second)
    direction = text(node, "direction", "forward")
    if direction not in DIRECTIONS:
        fail(node, f"expected a direction among {', '.join(DIRECTIONS)}, found {direction!r}")
    directions = 2 if direction == "bidirectional" else 1
    if x.dtype not in ("float32", "float64"):
        fail(node, f"expected float32 or float64, found {x.dtype}")
    return time, batch, hidden, directions, batch_first


def _check_weights(node: Node, inputs: Inputs, batch: int, hidden: int, directions: int, batch_first: bool) -> None:
    gates, features = GATES[node.op] * hidden, required(node, inputs, 0).shape[2]
    state = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    shapes = {1: (directions, gates, features), 2: (directions, gates, hidden), 3: (directions, 2 * gates)}
    shapes |= {5: state, 6: state, 7: (directions, 3 * hidden)}
    if (asked := node.attrs.get("hidden_size", hidden)) != hidden:
        fail(node, f"expected hidden_size {hidden} as its recurrent weights, found {asked}")
    for k, shape in shapes.items():
        value = given(inputs, k)
        if value is not None and value.shape != shape:
            fail(node, f"expected input {value.name!r} of shape {list(shape)}, found {list(value.shape)}")


def is_step(node: Node) -> bool:
    return node.op.endswith("Step")


def activations_of(kind: str, attrs: Mapping[str, Any], direction: int) -> tuple[str, ...]:
    """The names of the functions of one direction."""
    count = len(_DEFAULTS[kind])
    return tuple(attrs.get("activations") or _DEFAULTS[kind] * 2)[direction * count : (direction + 1) * count]


def cell_of(node: Node) -> str:
    """LSTM, GRU or RNN."""
    return node.op.removesuffix("Step")


def _infer_step(node: Node, inputs: Inputs) -> Types:
    (_, batch, _), hidden = shape_of(node, inputs, 0, 3), shape_of(node, inputs, 2, 3)[2]
    every, state = GATES[cell_of(node)] * hidden, (1, batch, hidden)
    shapes = {
        0: (1, batch, every),
        2: (1, every, hidden),
        3: (1, every),
        4: (batch,),
        5: state,
        6: state,
        7: (1, 3 * hidden),
    }
    for k, shape in shapes.items():
        value = given(inputs, k)
        if value is not None and value.shape != shape:
            fail(node, f"expected input {value.name!r} of shape {list(shape)}, found {list(value.shape)}")
    return ((required(node, inputs, 0).dtype, state),) * len(node.outputs)


def _infer_within(node: Node, inputs: Inputs) -> Types:
    (batch,) = shape_of(node, inputs, 0, 1)
    return (("bool", (node.attrs["steps"], batch)),)


def _define_within(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """Whether each step lies within each sequence, whose lengths are given."""
    steps, lengths, (t, n) = node.attrs["steps"], required(node, inputs, 0), map(Var, "tn")
    check_known(node, lengths, lengths.data, 0, steps)
    iters = (Iter("t", steps), Iter("n", lengths.shape[0]))
    length = cast("int64", claim(Load("x0", (n,)), 0, steps))
    return Definition((), (assign("within", iters, Load("y0", (t, n)), op("lt", t, length)),))


def _infer(node: Node, inputs: Inputs) -> Types:
    time, batch, hidden, directions, batch_first = _extents(node, inputs)
    if node.attrs.get("input_forget", 0):
        fail(node, "expected a cell whose forget gate is its own, found input_forget")
    if "clip" in node.attrs and not node.attrs["clip"] > 0:
        fail(node, f"expected a clip above 0, found {node.attrs['clip']}")
    _check_weights(node, inputs, batch, hidden, directions, batch_first)
    lengths = given(inputs, 4)
    if lengths is not None and (lengths.dtype, lengths.shape) != ("int32", (batch,)):
        actual = f"{lengths.dtype} {list(lengths.shape)}"
        fail(node, f"expected sequence_lens of type int32 and shape {[batch]}, found {actual}")
    dtype = required(node, inputs, 0).dtype
    every = (batch, time, directions, hidden) if batch_first else (time, directions, batch, hidden)
    last = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
    return ((dtype, every), (dtype, last), (dtype, last))[: len(node.outputs)]


@dataclass
class _Cell:
    """One direction of a recurrent node while its Blocks are written."""

    node: Node
    inputs: Inputs
    d: int
    blocks: list[AnyBlock] = field(default_factory=list)
    locals: dict[str, Buffer] = field(default_factory=dict)
    kept: tuple[int, ...] = ()  # of a step: the outputs that somebody reads

    def __post_init__(self) -> None:
        self.single_step, self.kind = is_step(self.node), cell_of(self.node)
        if self.single_step:
            self.time, self.batch, _ = shape_of(self.node, self.inputs, 0, 3)
            self.hidden, self.batch_first = shape_of(self.node, self.inputs, 2, 3)[2], False
        else:
            self.time, self.batch, self.hidden, _, self.batch_first = _extents(self.node, self.inputs)
        names = activations_of(self.kind, self.node.attrs, self.d)
        if unknown := [a for a in names if a not in _ACTIVATIONS]:
            fail(self.node, f"expected activations among {', '.join(_ACTIVATIONS)}, found {unknown[0]}")
        self.real = required(self.node, self.inputs, 0).dtype
        functions = [partial(_ACTIVATIONS[a], self.real) for a in names]
        self.activations = [*(partial(self.of_gate, f) for f in functions[:2]), *functions[2:]]
        self.iters = (Iter("n", self.batch), Iter("k", self.hidden))
        lengths = given(self.inputs, 4)
        if self.single_step:
            self.masked = lengths is not None
            return
        if lengths is not None:
            check_known(self.node, lengths, lengths.data, 0, self.time)
        self.masked = lengths is not None and (lengths.data is None or bool((lengths.data < self.time).any()))

    def of_gate(self, function: Callable[[Expr], Expr], x: Expr) -> Expr:
        """The activation of a gate, of what the node clips. The cell state of an LSTM is not clipped for its own, which
        is what ONNX Runtime does."""
        if "clip" in self.node.attrs:
            most = float(self.node.attrs["clip"])
            x = op("min", op("max", x, const(-most, self.real)), const(most, self.real))
        return function(x)

    def local(self, name: str, *shape: int) -> str:
        name = f"{name}{self.d}"
        self.locals[name] = Buffer(name, self.real, shape)
        return name

    def result(self, t: int) -> Load:
        """What is returned for time `t`."""
        d, n, k = Const(self.d), Var("n"), Var("k")
        if self.single_step:
            return Load("y0", (Const(0), n, k))
        return Load("y0", (n, Const(t), d, k) if self.batch_first else (Const(t), d, n, k))

    def output(self, t: int) -> Load:
        """The hidden state after time `t`: past the end of a sequence it stays what it was, and zeros are returned."""
        name = "y1" if 1 in self.kept else f"hidden{self.d}"
        return Load(name, (Const(t), Var("n"), Var("k"))) if self.apart else self.result(t)

    @property
    def apart(self) -> bool:
        """Whether the hidden state is kept beside what is returned."""
        return self.masked or 1 in self.kept

    def memory(self, t: int) -> Load:
        """The cell state of an LSTM after time `t`."""
        return Load("y2" if 2 in self.kept else f"cell{self.d}", (Const(t), Var("n"), Var("k")))

    def within(self, t: int, new: Expr, old: Expr) -> Expr:
        """`new` at times within the sequence, else `old`."""
        if not self.masked:
            return new
        if self.single_step:
            return op("select", Load("x4", (Var("n"),)), new, old)
        return op("select", op("lt", Const(t, "int32"), claim(Load("x4", (Var("n"),)), 0, self.time)), new, old)

    def step(self, t: int, value: Expr, old: Expr) -> None:
        """The hidden state after time `t`, which was `old` before."""
        if self.apart:
            self.put("hidden", t, self.within(t, value, old), "y1" if 1 in self.kept else "")
            value = self.within(t, self.output(t), const(0, self.real))
        self.blocks.append(assign(f"h{self.d}_{t}", self.iters, self.result(t), value))

    def state(self, buffer: str) -> Load:
        """A state given at the start or returned at the end."""
        d, n, k = Const(self.d), Var("n"), Var("k")
        return Load(buffer, (n, d, k) if self.batch_first else (d, n, k))

    def before(self, t: int | None, later: Callable[[int], Load], k: int) -> Expr:
        """A state before a step: after time `t`, or (None) input `k`, or nothing."""
        if t is not None:
            return later(t)
        return self.state(f"x{k}") if given(self.inputs, k) is not None else const(0, self.real)

    def project(self) -> None:
        """The inputs of all times by the weights of all gates; of a step this has been done."""
        if self.single_step:
            return
        features = required(self.node, self.inputs, 0).shape[2]
        gates = GATES[self.kind] * self.hidden
        name = self.local("projected", self.time, self.batch, gates)
        t, n, j, i = map(Var, "tnji")
        x = Load("x0", (n, t, i) if self.batch_first else (t, n, i))
        iters = (Iter("t", self.time), Iter("n", self.batch), Iter("j", gates), Iter("i", features, True))
        self.blocks.append(fold("add", name, iters, Load(name, (t, n, j)), x * Load("x1", (Const(self.d), j, i))))

    def recur(self, t: int, state: Expr, first: int, count: int, name: str) -> None:
        """The state (an expression over n, k) by the recurrent weights of `count` gates from `first` on."""
        name = self.local(name, self.time, self.batch, count * self.hidden)
        n, j, k = map(Var, "njk")
        if isinstance(state, Const):  # nothing before the first step
            every = (Iter("n", self.batch), Iter("j", count * self.hidden))
            self.blocks.append(assign(f"{name}_{t}", every, Load(name, (Const(t), n, j)), state))
            return
        iters = (Iter("n", self.batch), Iter("j", count * self.hidden), Iter("k", self.hidden, True))
        weight = Load("x2", (Const(self.d), j + first * self.hidden, k))
        self.blocks.append(fold("add", f"{name}_{t}", iters, Load(name, (Const(t), n, j)), state * weight))

    def bias(self, gate: int, recurrent: bool) -> Expr | None:
        if given(self.inputs, 3) is None or (self.single_step and not recurrent):
            return None
        row = gate + (GATES[self.kind] if recurrent and not self.single_step else 0)
        return Load("x3", (Const(self.d), Var("k") + row * self.hidden))

    def from_input(self, t: int, gate: int) -> Expr:
        e: Expr = Load(
            "x0" if self.single_step else f"projected{self.d}", (Const(t), Var("n"), Var("k") + gate * self.hidden)
        )
        bias = self.bias(gate, False)
        return e if bias is None else e + bias

    def from_state(self, t: int, gate: int, name: str = "recurrent") -> Expr:
        return Load(f"{name}{self.d}", (Const(t), Var("n"), Var("k") + gate * self.hidden))

    def biased(self, e: Expr, gate: int) -> Expr:
        bias = self.bias(gate, True)
        return e if bias is None else e + bias

    def gate(self, t: int, gate: int) -> Expr:
        """What goes into a gate's activation."""
        return self.biased(self.from_input(t, gate) + self.from_state(t, gate), gate)

    def put(self, name: str, t: int, body: Expr, output: str = "") -> Load:
        """A local of every time, or an output, assigned at time `t`."""
        local = output or self.local(name, self.time, self.batch, self.hidden)
        write = Load(local, (Const(t), Var("n"), Var("k")))
        self.blocks.append(assign(f"{local}_{t}", self.iters, write, body))
        return write


def _rnn(cell: _Cell, t: int, previous: int | None) -> None:
    hidden = cell.before(previous, cell.output, 5)
    cell.recur(t, hidden, 0, 1, "recurrent")
    (f,) = cell.activations
    cell.step(t, f(cell.gate(t, 0)), hidden)


def _gru(cell: _Cell, t: int, previous: int | None) -> None:
    hidden = cell.before(previous, cell.output, 5)
    f, g = cell.activations
    linear_first = bool(cell.node.attrs.get("linear_before_reset", 0))
    cell.recur(t, hidden, 0, 3 if linear_first else 2, "recurrent")
    update, reset = cell.put("update", t, f(cell.gate(t, 0))), f(cell.gate(t, 1))
    if linear_first:
        inner = reset * cell.biased(cell.from_state(t, 2), 2)
    else:
        cell.recur(t, cell.put("reset", t, reset * hidden), 2, 1, "candidate")
        inner = cell.biased(cell.from_state(t, 0, "candidate"), 2)
    new = g(cell.from_input(t, 2) + inner)
    cell.step(t, (const(1, cell.real) - update) * new + update * hidden, hidden)


def _lstm(cell: _Cell, t: int, previous: int | None) -> None:
    if 2 not in cell.kept:
        cell.local("cell", cell.time, cell.batch, cell.hidden)

    def peephole(which: int, c: Expr, e: Expr) -> Expr:
        if given(cell.inputs, 7) is None:
            return e
        return e + Load("x7", (Const(cell.d), Var("k") + which * cell.hidden)) * c

    f, g, h = cell.activations
    hidden = cell.before(previous, cell.output, 5)
    cell.recur(t, hidden, 0, 4, "recurrent")
    old, new = cell.before(previous, cell.memory, 6), cell.memory(t)
    keep, take = f(peephole(2, old, cell.gate(t, 2))), f(peephole(0, old, cell.gate(t, 0)))
    value = cell.within(t, keep * old + take * g(cell.gate(t, 3)), old)
    cell.blocks.append(assign(f"c{cell.d}_{t}", cell.iters, new, value))
    cell.step(t, f(peephole(1, new, cell.gate(t, 1))) * h(new), hidden)


_STEPS = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


def _define_step(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    cell = _Cell(node, inputs, 0, kept=tuple(k for k, output in enumerate(outputs) if output is not None))
    _STEPS[cell.kind](cell, 0, None)
    return Definition(tuple(cell.locals.values()), tuple(cell.blocks))


def _define(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    directions = _extents(node, inputs)[3]
    blocks: list[AnyBlock] = []
    locals_: dict[str, Buffer] = {}
    for d in range(directions):
        cell = _Cell(node, inputs, d)
        cell.project()
        times = list(range(cell.time))
        if text(node, "direction", "forward") == "reverse" or d == 1:
            times.reverse()
        previous: int | None = None
        for t in times:
            _STEPS[node.op](cell, t, previous)
            previous = t
        cell.blocks.append(assign(f"last{d}", cell.iters, cell.state("y1"), cell.before(previous, cell.output, 5)))
        if node.op == "LSTM":
            end = cell.before(previous, cell.memory, 6)
            cell.blocks.append(assign(f"lastcell{d}", cell.iters, cell.state("y2"), end))
        blocks += cell.blocks
        locals_ |= cell.locals
    return Definition(tuple(locals_.values()), tuple(blocks))


OPERATORS = (
    *(Operator(name, _infer, _define) for name in GATES),
    Operator("StepsWithin", _infer_within, _define_within),
    *(Operator(f"{name}Step", _infer_step, _define_step) for name in GATES),
)
