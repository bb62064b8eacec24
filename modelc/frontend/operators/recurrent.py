"""LSTM, GRU and RNN of more than a few steps, as a loop over time laid open in the Graph.

The inputs of all steps are multiplied by the weights of all gates at once, an ordinary Gemm; then there is a node for
each step (modelc/ops/rnn.py says what it computes). Steps read Regions of the projection and write Regions of the
result, so no data moves between them; they are the same Task, scheduled and compiled once, whatever their number.

Where sizes say how many steps there are, they are a Loop in the Graph, whose body is one such node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from modelc.frontend.building.bodies import Body, emit_control
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.sizes import refuse, whole
from modelc.frontend.operators.form import forms
from modelc.ir.graph import Node, Value
from modelc.ops import OPERATORS
from modelc.ops.rnn import activations_of

MOST_IN_ONE = 8  # steps that one kernel takes, unrolled
MOST_STEPS = 1 << 12  # in all directions


def recurrent(b: Builder, n: OnnxNode) -> None:
    """The node as it is, if it has few steps; else its projection and its steps, or a loop over them."""
    node = Node(n.op, n.name, n.inputs, n.outputs, n.attrs)
    types = OPERATORS[n.op].infer(node, tuple(b.value(x) if x else None for x in n.inputs))
    shape = b.shape(n.inputs[0])
    batch_first = bool(n.attrs.get("layout", 0))
    time, batch = (shape[1], shape[0]) if batch_first else shape[:2]
    directions, gates, hidden = b.shape(n.inputs[2])
    looped = b.stays_loop(n, time)
    if (time <= MOST_IN_ONE and not looped) or not batch * hidden * shape[2]:
        b.emit(n, n.op, n.inputs, n.attrs, n.outputs)
        return
    if time * directions > MOST_STEPS and not looped:
        raise n.fail(f"expected at most {MOST_STEPS} steps in all directions (MOST_STEPS), found {time * directions}")
    x = n.inputs[0] if not batch_first else b.emit(n, "Transpose", n.inputs[:1], {"perm": (1, 0, 2)})
    flat = b.reshape(n, x, (time * batch, shape[2]))
    within = b.emit(n, "StepsWithin", (n.input(4),), {"steps": time}) if n.input(4) else ""
    every: list[str] = []
    ends: tuple[list[str], list[str]] = ([], [])
    for d in range(directions):
        weights = b.reshape(n, _part(b, n, n.inputs[1], d), (gates, shape[2]))
        bias = _part(b, n, n.input(3), d)
        added = b.reshape(n, _columns(b, n, bias, 0, gates), (gates,)) if bias else ""
        projected = b.emit(n, "Gemm", (flat, weights, added), {"transB": 1})
        projected = b.reshape(n, projected, (time, batch, gates))
        recurrent_bias = _columns(b, n, bias, gates, 2 * gates) if bias else ""
        kept = ("", _part(b, n, n.inputs[2], d), recurrent_bias)
        state = tuple(_state(b, n, n.input(k), d, batch_first) for k in (5, 6))
        steps = _loop if looped else _steps
        outputs, state = steps(b, n, d, projected, kept, within, state, _part(b, n, n.input(7), d))
        for end, value in zip(ends, state, strict=True):
            end.append(value)
        if n.wants(0):
            joined = b.emit(n, "Concat", outputs, {"axis": 0}) if len(outputs) > 1 else outputs[0]
            every.append(b.reshape(n, joined, (time, 1, batch, hidden)))
    if n.wants(0):
        _put(b, n, 0, every, 1, (2, 0, 1, 3) if batch_first else ())
    for k, end in enumerate(ends, 1):
        if n.wants(k):
            _put(b, n, k, end, 0, (1, 0, 2) if batch_first else ())
    assert all(b.shape(name) == expected[1] for name, expected in zip(n.outputs, types, strict=False) if name)


def recurrent_sized(b: Builder, n: OnnxNode) -> None:
    """The node over a time whose length depends on data (sizes.py): sequences are as long as that."""
    x, batch_first = n.inputs[0], bool(n.attrs.get("layout", 0))
    counts, (time, batch) = b.sizes.of(x), (1, 0) if batch_first else (0, 1)
    others = [(name, k) for name in n.inputs if name for k in b.sizes.of(name) if (name, k) != (x, time)]
    if others:
        raise refuse(n, *others[0], "only the number of steps may be one")
    lengths = n.input(4)
    if not lengths:
        every = b.constant(np.asarray([b.shape(x)[batch]], np.int64), f"{x}_batch")
        lengths = b.emit(n, "Expand", (b.emit(n, "Cast", (counts[time],), {"to": "int32"}), every))
    inputs = [*n.inputs, *[""] * (5 - len(n.inputs))]
    inputs[0], inputs[4] = whole(b, n, x), lengths
    recurrent(b, replace(n, inputs=tuple(inputs)))
    if n.wants(0):
        b.sizes.give(n.outputs[0], {time: counts[time]})


def _steps(
    b: Builder,
    n: OnnxNode,
    d: int,
    projected: str,
    weights: Sequence[str],
    within: str,
    state: tuple[str, ...],
    peepholes: str,
) -> tuple[list[str], tuple[str, ...]]:
    """What one direction gives for every time, and its state at the end (hidden, cell)."""
    time, batch, _ = b.shape(projected)
    attrs = _attrs(n, d)
    given: list[str] = [""] * time
    for t in reversed(range(time)) if _backwards(n, d) else range(time):
        mask = b.reshape(n, _rows(b, n, within, t), (batch,)) if within else ""
        given[t] = b.fresh(f"{n.outputs[0] or n.name}_{d}_{t}")
        hidden = b.fresh(f"{given[t]}_state") if within else ""
        cell = b.fresh(f"{given[t]}_cell") if n.op == "LSTM" else ""
        names = [given[t], hidden, cell]
        while not names[-1]:
            names.pop()
        x = _rows(b, n, projected, t)
        b.emit(n, f"{n.op}Step", (x, *weights, mask, *state, peepholes), attrs, names)
        state = (hidden or given[t], cell)
    return given, state


def _loop(
    b: Builder,
    n: OnnxNode,
    d: int,
    projected: str,
    weights: Sequence[str],
    within: str,
    state: tuple[str, ...],
    peepholes: str,
) -> tuple[list[str], tuple[str, ...]]:
    """The same as _steps() by a Loop: what all times give is one value [T, 1, N, H]."""
    time, batch, gates = b.shape(projected)
    dtype, hidden, base = b.value(projected).dtype, b.shape(weights[1])[2], f"{n.outputs[0] or n.name}_{d}"
    along = [b.reshape(n, projected, (time, 1, batch, gates)), *filter(None, (within,))]
    if _backwards(n, d):
        along = [b.backwards(n, x) for x in along]
    zeros = np.zeros((1, batch, hidden), dtype)
    begins = [x or b.constant(zeros, f"{base}_zeros") for x in state[: 1 + (n.op == "LSTM")]]

    def inner(what: str, kind: str, shape: tuple[int, ...]) -> str:
        name = b.fresh(f"{base}_{what}")
        b.values[name] = Value(name, kind, shape)
        return name

    number = inner("number", "int64", ())
    before = [inner(what, dtype, (1, batch, hidden)) for what in ("before", "cell_before")[: len(begins)]]
    row, *mask = (inner(what, b.value(x).dtype, b.shape(x)[1:]) for what, x in zip(("row", "is"), along, strict=False))
    cell = b.fresh(f"{base}_cell") if n.op == "LSTM" else ""
    after, given = b.fresh(f"{base}_state"), b.fresh(base)
    names = [given, after, cell] if within or n.wants(0) else [after, "", cell]
    while not names[-1]:
        names.pop()
    outside, b.nodes = b.nodes, []
    try:
        step = (row, *weights, *(mask or ("",)), *before, *[""] * (2 - len(before)), peepholes)
        b.emit(n, f"{n.op}Step", step, _attrs(n, d), names)
        results = (after, *filter(None, (cell,)), *([given] if n.wants(0) else ()))
        body = Body(tuple(b.nodes), (number, *before, row, *mask), results, results)
    finally:
        b.nodes = outside
    ends = [b.fresh(f"{base}_{what}") for what in ("last", "last_cell")[: len(begins)]]
    every = [b.fresh(f"{base}_all")] if n.wants(0) else []
    form = {"counted": 0, "asked": 0, "asks": 0, "states": len(begins), "parts": len(along), "limit": time}
    emit_control(b, n, "Loop", (*begins, *along), (body,), form, (*ends, *every))
    if every and _backwards(n, d):
        every = [b.backwards(n, every[0])]
    return every, (*ends, *[""] * (2 - len(ends)))


def _attrs(n: OnnxNode, d: int) -> dict[str, Any]:
    """The attributes of a step of direction `d`."""
    attrs: dict[str, Any] = {"activations": activations_of(n.op, n.attrs, d)}
    return attrs | {k: n.attrs[k] for k in ("linear_before_reset", "clip") if k in n.attrs}


def _backwards(n: OnnxNode, d: int) -> bool:
    """Whether direction `d` begins with the last step."""
    return d == 1 or n.attrs.get("direction", "forward") == "reverse"


def _rows(b: Builder, n: OnnxNode, x: str, t: int) -> str:
    """[t : t + 1] of the first dimension."""
    bounds = [b.constant(np.asarray([k], np.int64), f"{x}_bound") for k in (t, t + 1, 0)]
    return b.emit(n, "Slice", (x, *bounds))


def _part(b: Builder, n: OnnxNode, x: str, d: int) -> str:
    """What an input holds for direction `d`, in its first dimension; the empty name of an absent one."""
    if not x or b.shape(x)[0] == 1:
        return x
    data = b.data(x)
    return _rows(b, n, x, d) if data is None else b.constant(np.ascontiguousarray(data[d : d + 1]), f"{x}_{d}")


def _columns(b: Builder, n: OnnxNode, x: str, start: int, end: int) -> str:
    data = b.data(x)
    if data is not None:
        return b.constant(np.ascontiguousarray(data[:, start:end]), f"{x}_{start}")
    bounds = [b.constant(np.asarray([k], np.int64), f"{x}_bound") for k in (start, end, 1)]
    return b.emit(n, "Slice", (x, *bounds))


def _state(b: Builder, n: OnnxNode, x: str, d: int, batch_first: bool) -> str:
    """A state given at the start, for one direction: [1, N, H]."""
    if x and batch_first:
        x = b.emit(n, "Transpose", (x,), {"perm": (1, 0, 2)})
    return _part(b, n, x, d)


def _put(b: Builder, n: OnnxNode, k: int, parts: Sequence[str], axis: int, perm: tuple[int, ...]) -> None:
    """Makes output `k` of what the directions give."""
    if perm:
        whole = b.emit(n, "Concat", parts, {"axis": axis}) if len(parts) > 1 else parts[0]
        b.emit(n, "Transpose", (whole,), {"perm": perm}, n.outputs[k : k + 1])
    elif len(parts) > 1:
        b.emit(n, "Concat", parts, {"axis": axis}, n.outputs[k : k + 1])
    else:
        b.bind(n, n.outputs[k], parts[0])


FORMS = forms("LSTM GRU RNN", recurrent, recurrent_sized)
