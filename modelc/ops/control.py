"""Control flow: types, and the opaque Block that stands for it. What it means is said by ir/control.py and the Graphs
that the Node carries; the plan lays their steps out."""

from __future__ import annotations

from modelc.ir.block import OpaqueBlock
from modelc.ir.control import NO_LIMIT, LoopForm, captured
from modelc.ir.graph import Graph, Node, Value
from modelc.ops.operator import Definition, Inputs, Operator, Types, fail, required

Kind = tuple[str, tuple[int, ...]]


def _kind(value: Value) -> Kind:
    return value.dtype, value.shape


def _shown(kind: Kind) -> str:
    return f"{kind[0]}{list(kind[1])}"


def _results(body: Graph) -> Types:
    return tuple(_kind(body.value(name)) for name in body.outputs)


def _check_given(node: Node, body: Graph, given: Types) -> None:
    wanted = tuple(_kind(body.value(name)) for name in body.inputs)
    if wanted != given:
        fail(node, f"expected a body of inputs {_all(given)}, found {_all(wanted)}")


def _all(kinds: Types) -> str:
    return ", ".join(map(_shown, kinds)) or "none"


def _if_infer(node: Node, inputs: Inputs) -> Types:
    if len(node.bodies) != (1 if "only" in node.attrs else 2):
        fail(node, f"expected two branches, or one alone, found {len(node.bodies)}")
    first = required(node, inputs, 0)
    if first.dtype != "bool" or any(n != 1 for n in first.shape):
        fail(node, f"expected a condition of one bool, found {_shown(_kind(first))}")
    given = tuple(_kind(required(node, inputs, k)) for k in range(1, len(inputs)))
    for body in node.bodies:
        _check_given(node, body, given)
    then, other = _results(node.bodies[0]), _results(node.bodies[-1])
    if then != other:
        fail(node, f"expected branches of the same types, found {_all(then)} and {_all(other)}")
    return then


def _loop_infer(node: Node, inputs: Inputs) -> Types:
    form = LoopForm.of(node.attrs)
    (body,) = node.bodies
    kinds = [_kind(required(node, inputs, k)) for k in range(len(inputs))]
    states, parts = kinds[form.first_state : form.first_part], kinds[form.first_part :][: form.parts]
    at, _ = captured("Loop", node.attrs)
    elements = [(dtype, shape[1:]) for dtype, shape in parts]
    _check_given(node, body, (("int64", ()), *states, *elements, *kinds[at:]))
    results = list(_results(body))
    if form.asks and results.pop(0)[0] != "bool":
        fail(node, "expected its body to give a condition of type bool")
    if results[: form.states] != states:
        fail(node, f"expected its body to carry {_all(tuple(states))}, found {_all(tuple(results[: form.states]))}")
    handed = results[form.states :]
    if parts and (form.limit == NO_LIMIT or form.counted or form.asked or form.asks):
        fail(node, "expected a number of iterations that is known, for it goes along a value")
    if handed and form.limit == NO_LIMIT:
        fail(node, "expected a limit of its iterations, for it hands out what each of them makes")
    return (*states, *((dtype, (form.limit, *shape)) for dtype, shape in handed))


def _control(node: Node, inputs: Inputs, outputs: tuple[Value | None, ...]) -> Definition:
    """One Block; its attribute `outputs` says which of the bodies' outputs are wanted."""
    wanted = tuple(k for k, value in enumerate(outputs) if value is not None and value.name)
    attrs = tuple(sorted({**node.attrs, "outputs": wanted}.items()))
    reads, writes = (f"x{k}" for k in range(len(inputs))), (f"y{k}" for k in wanted)
    return Definition((), (OpaqueBlock(node.op.lower(), node.op, tuple(reads), tuple(writes), attrs),))


OPERATORS = (
    Operator("If", _if_infer, _control, steers={0: "the condition"}),
    Operator("Loop", _loop_infer, _control, steers={0: "the trip count", 1: "the condition"}),
)
