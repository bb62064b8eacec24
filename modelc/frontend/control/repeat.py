"""Loop and Scan that are left to a run: the body is imported once. What it carries keeps its dtype and shape; what each
iteration hands out has a place in the result, so that their number has to be known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any

import numpy as np
import onnx

from modelc.errors import ModelError, NotKnown
from modelc.frontend.building.bodies import Body, emit_control
from modelc.frontend.building.build import Builder, OnnxNode
from modelc.frontend.building.sizes import refuse
from modelc.frontend.control.branches import body_of
from modelc.frontend.control.carried import UNBOUNDED, Carried, carried, handed_counts, like
from modelc.frontend.load.importing import Importing, Scope
from modelc.ir.control import NO_LIMIT
from modelc.ir.graph import Value
from modelc.ops.found import ROOM

FEW_NUMBERS = 64  # of a state that may be the same in every iteration, as shapes are
MOST_GROWING = 1 << 12  # iterations that there is room for of what each makes larger, which all of them copy
MOST_COLLECTED = 1 << 16  # iterations that there is room for where a run decides how many there are


@dataclass(frozen=True)
class Runs:
    """How often a loop runs: `limit` times (-1: whatever the rest says), at most as often as `count` says, while
    `condition` and then what the body computes is true. The last two are values; the empty name is none."""

    limit: int = NO_LIMIT
    count: str = ""
    condition: str = ""

    @property
    def steered_by(self) -> str:
        return self.count or self.condition


def repeated_loop(
    importer: Importing, node: OnnxNode, graph: onnx.GraphProto, outer: Scope, why: str, known_count: int | None = None
) -> str | None:
    """Imports a Loop that was not unrolled, `why`; `known_count` is how many iterations it makes, whatever its
    condition, if that is known. None if it was imported; else why not, empty where a node in the body says so."""
    b, states = importer.builder, list(node.inputs[2:])
    for k, what in ((0, "trip count"), (1, "condition")):
        if node.input(k) and np.prod(b.shape(node.input(k))) != 1:
            raise node.fail(f"expected one number as {what}, found {list(b.shape(node.input(k)))}")
    count, go = (b.data(node.input(k)) for k in (0, 1))
    limit = NO_LIMIT if count is None else max(0, int(count.reshape(-1)[0]))
    asked = node.input(1) if go is None else ""
    counted = _checked_count(b, node.input(0)) if count is None else ""
    runs = Runs(limit, counted, asked) if known_count is None else Runs(known_count)
    yes = b.constant(np.asarray(True), f"{node.name}/condition")
    number = Value(b.fresh(f"{node.name}/number"), "int64", ())
    formals = [i.name for i in graph.input]
    kept = _kept(graph, formals[2:], [o.name for o in graph.output][1 : 1 + len(states)])
    kept |= _held(importer, node, graph, outer, number, states, kept)
    fixed = {formals[1]: yes} | {formals[2 + k]: x for k, x in enumerate(states) if k in kept}
    if any(k not in kept and x in importer.sequences for k, x in enumerate(states)):
        return f"{why}, and it carries a sequence of tensors, whose length has to be known when compiling"
    moved = [k for k in range(len(states)) if k not in kept]

    def imported(given: Sequence[Value]) -> Body | None:
        named = {formals[0]: number} | {formals[2 + k]: x for k, x in zip(moved, given, strict=True)}
        return _imported(importer, node, graph, outer, named, fixed, why)

    begun, most = [states[k] for k in moved], _most(b, runs) if known_count is None else 0
    room = most if 0 < most <= MOST_GROWING else 0
    form = carried(b, node, begun, imported, lambda body: [body.results[1 + k] for k in moved], room)
    if not isinstance(form, Carried):
        outermost = outer.around is not None and outer.around.around is None and not outer.around.prefix
        asks_most = bool(form and form.endswith(UNBOUNDED) and runs.count and not room and outermost)
        more = f"; say how often it runs at most, up to {MOST_GROWING}, with --bound {quote(f'{node.input(0)}=N')}"
        return f"{why}, and {form}{more * asks_most}" if form else ""
    body = form.body
    goes_on = b.data(body.originals[0]) if known_count is None else np.asarray(True)
    asks = [body.results[0]] if goes_on is None else []
    if goes_on is not None and not goes_on.reshape(-1)[0]:
        runs = Runs(min(1, limit) if limit != NO_LIMIT else 1, runs.count, runs.condition)
    handed = list(body.results[1 + len(states) :])
    wanted = [name for name in node.outputs[len(states) :] if name]
    counts = bool(wanted) and bool(runs.steered_by or asks or runs.limit == NO_LIMIT)
    if counts:
        runs = Runs(_most(b, runs), runs.count, runs.condition)
    if counts and not ROOM <= runs.limit <= MOST_COLLECTED:
        steering = runs.steered_by
        advice = b.advice(steering) if steering else ", and whether it goes on is computed by its body"
        return f"{why}, so the length of {', '.join(map(repr, wanted))} is not known when compiling{advice}"
    if not wanted:
        handed = []
    made = Body(body.nodes, (number.name, *form.given), (*asks, *form.results, *handed), body.originals)
    outputs = list(node.outputs) + [""] * (len(states) + len(handed) - len(node.outputs))
    begins, ends = list(form.states), [*(outputs[k] for k in moved), *form.counts, *outputs[len(states) :]]
    if counts:
        begins, made, ends = _counted(b, node, number.name, begins, made, ends, len(asks))
    _emit(b, node, runs, begins, (), made, ends, bool(asks))
    _give(b, [outputs[k] for k in moved], form)
    for name, result in zip(outputs[len(states) :], handed, strict=True):
        if name:
            b.sizes.give(name, handed_counts(b, node, made, made.given, result))
    if counts:
        made_so_many = ends[len(begins) - 1]
        b.sizes.bounds[made_so_many] = runs.limit
        for name in wanted:
            b.sizes.give(name, {**b.sizes.of(name), 0: made_so_many})
    for k in kept:
        if outputs[k]:
            through = OnnxNode("Identity", "", 1, f"{node.name}/{outputs[k]}", (), (outputs[k],), {}, node.source)
            importer.hand(through, outputs[k], states[k])
    return None


def _held(
    importer: Importing,
    node: OnnxNode,
    graph: onnx.GraphProto,
    outer: Scope,
    number: Value,
    states: Sequence[str],
    kept: set[int],
) -> set[int]:
    """The states that begin as a few whole numbers and are the same after an iteration that begins with them: they are
    what they were, whatever the others are."""
    b, formals = importer.builder, [i.name for i in graph.input]
    held = {k for k, x in enumerate(states) if k not in kept and _is_few_numbers(b, x)}
    while held:
        inner, names = outer.within(f"{node.name}/body/"), set(b.node_names)
        constant = {formals[1]: b.constant(np.asarray(True), f"{node.name}/condition")}
        constant |= {formals[2 + k]: states[k] for k in held | kept}
        changing = [k for k in range(len(states)) if k not in held | kept]
        if any(states[k] in importer.sequences for k in changing):
            return set()
        given = {formals[0]: number} | {formals[2 + k]: like(b, node, states[k]) for k in changing}
        try:
            body = body_of(importer, graph, node, inner, given, constant, [o.name for o in graph.output])
        except ModelError:
            return set()  # the import that follows says what is wrong
        b.node_names = names
        if body is None:
            return set()
        same = {k for k in held if _same(b.data(states[k]), b.data(body.originals[1 + k]))}
        if same == held:
            break
        held = same
    return held


def _is_few_numbers(b: Builder, x: str) -> bool:
    data = b.values[x].data if x in b.values else None
    return data is not None and data.dtype.kind in "iub" and data.size <= FEW_NUMBERS


def _same(before: Any, after: Any) -> bool:
    return after is not None and before.shape == after.shape and bool((before == after).all())


def _give(b: Builder, outputs: Sequence[str], form: Carried) -> None:
    for output, sizes in zip(outputs, form.sizes, strict=True):
        if output:
            b.sizes.give(output, sizes)


def _most(b: Builder, runs: Runs) -> int:
    """How many iterations there can be, as far as that is known; -1 where nothing says it."""
    return b.sizes.bounds.get(runs.count, runs.limit)


def _checked_count(b: Builder, count: str) -> str:
    """The trip count as what a run checks, where it has a bound."""
    elements = b.sizes.elements.get(count)
    marked = b.sizes.marked(int(elements.reshape(-1)[0])) if elements is not None else None
    return marked if marked is not None else count


def _counted(
    b: Builder, node: OnnxNode, number: str, carried: Sequence[str], body: Body, ends: Sequence[str], asks: int
) -> tuple[list[str], Body, list[str]]:
    """What the loop carries, its body and its outputs, with the number of iterations as one state more."""
    outside, b.nodes = b.nodes, list(body.nodes)
    try:
        following = b.fresh(f"{node.name}/following")
        b.emit(node, "Add", (number, b.constant(np.asarray(1, np.int64), f"{node.name}/one")), outputs=(following,))
        nodes = tuple(b.nodes)
    finally:
        b.nodes = outside
    before = b.value(number)
    at, last = asks + len(carried), len(carried)
    state = Value(b.fresh(f"{node.name}/before"), before.dtype, before.shape)
    b.values[state.name] = state
    given = (*body.given[: 1 + last], state.name, *body.given[1 + last :])
    results = (*body.results[:at], following, *body.results[at:])
    none = b.constant(np.asarray(0, np.int64), f"{node.name}/none")
    count = b.fresh(f"{node.name}/count")
    return [*carried, none], Body(nodes, given, results, body.originals), [*ends[:last], count, *ends[last:]]


def repeated_scan(
    importer: Importing,
    node: OnnxNode,
    graph: onnx.GraphProto,
    outer: Scope,
    parts: Sequence[tuple[str, int, bool]],
    handed_out: Callable[[Sequence[int]], Sequence[tuple[int, bool]]],
    why: str,
) -> str | None:
    """Imports a Scan that was not unrolled, `why`: `parts` are the values that it goes along, with axis and whether
    backwards; `handed_out` says the same of its results, whose ranks it is told."""
    b, formals = importer.builder, [i.name for i in graph.input]
    states = list(node.inputs[: len(node.inputs) - len(parts)])
    for x, axis, _ in parts:
        if axis in b.sizes.of(x):
            raise refuse(node, x, axis, "a Scan goes along it")
    along = [_along(b, node, *part) for part in parts]
    number = Value(b.fresh(f"{node.name}/number"), "int64", ())
    elements = [Value(b.fresh(f"{node.name}/{x}"), b.value(x).dtype, b.shape(x)[1:]) for x in along]
    b.values |= {x.name: x for x in (number, *elements)}
    for x, element in zip(along, elements, strict=True):
        b.sizes.give(element.name, {axis - 1: c for axis, c in b.sizes.of(x).items()})

    def imported(given: Sequence[Value]) -> Body | None:
        named = dict(zip(formals, (*given, *elements), strict=True))
        return _imported(importer, node, graph, outer, named, {}, why)

    form = carried(b, node, states, imported, lambda body: body.results[: len(states)])
    if not isinstance(form, Carried):
        return f"{why}, and {form}" if form else ""
    body, handed = form.body, form.body.results[len(states) :]
    given = (number.name, *form.given, *(x.name for x in elements))
    body = Body(body.nodes, given, (*form.results, *handed), body.originals)
    outputs = list(node.outputs) + [""] * (len(states) + len(handed) - len(node.outputs))
    axes = handed_out([len(b.shape(x)) + 1 for x in handed])
    stacked = [b.fresh(f"{name}_stacked") if name else "" for name in outputs[len(states) :]]
    runs = Runs(b.shape(along[0])[0])
    ends = [*outputs[: len(states)], *form.counts, *stacked]
    _emit(b, node, runs, form.states, along, body, ends, False)
    _give(b, outputs[: len(states)], form)
    for name, whole, result, (axis, back) in zip(outputs[len(states) :], stacked, handed, axes, strict=True):
        if name:
            b.sizes.give(whole, handed_counts(b, node, body, given, result))
            through = OnnxNode("Identity", "", 1, f"{node.name}/{name}", (), (name,), {}, node.source)
            b.bind(through, name, _moved_to(b, node, whole, axis, back))
    return None


def _imported(
    importer: Importing,
    node: OnnxNode,
    graph: onnx.GraphProto,
    outer: Scope,
    given: dict[str, Value],
    fixed: dict[str, str],
    why: str,
) -> Body | None:
    inner = outer.within(f"{node.name}/body/")
    try:
        return body_of(importer, graph, node, inner, given, fixed, [o.name for o in graph.output])
    except ModelError as error:
        text = f"{error}; it is in the body of node {node.name!r} ({node.op}), which is compiled once: {why}"
        raise (NotKnown(text, error.value) if isinstance(error, NotKnown) else ModelError(text)) from None


def _emit(
    b: Builder,
    node: OnnxNode,
    runs: Runs,
    states: Sequence[str],
    parts: Sequence[str],
    body: Body,
    outputs: Sequence[str],
    asks: bool,
) -> None:
    if not any(outputs):
        return
    attrs = {
        "counted": int(bool(runs.count)),
        "asked": int(bool(runs.condition)),
        "asks": int(asks),
        "states": len(states),
        "parts": len(parts),
        "limit": runs.limit,
    }
    steering = [x for x in (runs.count, runs.condition) if x]
    emit_control(b, node, "Loop", (*steering, *states, *parts), (body,), attrs, outputs)


def _kept(graph: onnx.GraphProto, given: Sequence[str], results: Sequence[str]) -> set[int]:
    """The states that the body hands on as they are."""
    same = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Identity" and n.domain in ("", "ai.onnx")}

    def origin(name: str) -> str:
        seen = set[str]()
        while name in same and name not in seen:
            seen.add(name)
            name = same[name]
        return name

    return {k for k, (taken, handed_on) in enumerate(zip(given, results, strict=True)) if origin(handed_on) == taken}


def _along(b: Builder, node: OnnxNode, x: str, axis: int, back: bool) -> str:
    """The value with `axis` first, and reversed along it where the Scan goes `back`."""
    rank = len(b.shape(x))
    if axis:
        perm = (axis, *(d for d in range(rank) if d != axis))
        x = b.emit(node, "Transpose", (x,), {"perm": perm}, (b.fresh(f"{x}_first"),))
    return b.backwards(node, x) if back else x


def _moved_to(b: Builder, node: OnnxNode, x: str, axis: int, back: bool) -> str:
    """The inverse of _along."""
    x = b.backwards(node, x) if back else x
    if not axis:
        return x
    others = list(range(1, len(b.shape(x))))
    perm = (*others[:axis], 0, *others[axis:])
    return b.emit(node, "Transpose", (x,), {"perm": perm}, (b.fresh(f"{x}_moved"),))
