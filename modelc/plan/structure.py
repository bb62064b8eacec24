"""Steps put together into a plan, with what runs some of them again, or not at all: control flow, whose bodies are
plans of their own and lie in the arena of the plan around them, and loops (roll.py) over steps that repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from modelc.ir.block import OpaqueBlock
from modelc.ir.control import LoopForm, captured
from modelc.ir.graph import RANDOM_STATE
from modelc.ir.program import BoundTask, Program
from modelc.ir.sizes import DependsOnSize, most
from modelc.package.spec import SLOTS, Argument, Branch, Carried, Control, Moving, Plan, Repeat, Rolled, State, Step
from modelc.package.tensor import TensorInfo
from modelc.plan.roll import rolled

Place = Callable[[str], Argument]  # where a value or a temporary lies


@dataclass(frozen=True)
class Structured:
    """One If or Loop before anything has a place: the plans of its bodies, and what it needs of the arena."""

    bound: BoundTask
    plans: tuple[Plan, ...]
    arguments: tuple[str, ...]  # values, in the Block's order
    temporaries: Mapping[str, int]
    taken: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # nothing may lie in place of what it reads

    @property
    def needs(self) -> tuple[str, ...]:
        return (*self.arguments, *self.temporaries)


def structured(bound: BoundTask, number: int, plans: tuple[Plan, ...]) -> Structured:
    """Task `number` of a program, whose bodies have these plans."""
    block = bound.control
    attrs, prefix = dict(block.attrs), f"{bound.task.name} {number}."
    sizes = {"arena": max(plan.arena_bytes for plan in plans)}
    if block.meaning == "Loop":
        form, (plan,) = LoopForm.of(attrs), plans
        sizes |= {"number": plan.inputs[0].bytes}
        sizes |= {"go": plan.outputs[0].bytes} if form.asks else {}
        sizes |= {f"spare{k}": plan.inputs[1 + k].bytes for k in range(form.states)}
    count = len(plans[0].outputs) - (block.meaning == "Loop" and bool(attrs["asks"]))
    for k in set(range(count)) - set(attrs["outputs"]):
        sizes[f"y{k}"] = _bytes_of_output(block, plans[0], k)
    arguments = tuple(bound.values[name] for name in (*block.inputs, *block.outputs))
    return Structured(bound, plans, arguments, {prefix + name: size for name, size in sizes.items()})


def _name(bound: BoundTask) -> str:
    """The name of the node: of one in a body, that of the node around it before its own."""
    return bound.bodies[0].name.rpartition("/")[0]


def _bytes_of_output(block: OpaqueBlock, plan: Plan, k: int) -> int:
    """The size of output `k` of the whole, which nobody reads."""
    if block.meaning == "If":
        return plan.outputs[k].bytes
    form = LoopForm.of(dict(block.attrs))
    return plan.outputs[k + form.asks].bytes * (1 if k < form.states else most(form.limit))


Part = TypeVar("Part", bound=Control | Carried | Moving)


def _moved(part: Part, steps: int, slots: int, there: Callable[[Argument], Argument]) -> Part:
    """The same among other steps and slots, so many further on, where arguments are elsewhere."""
    further = dict.fromkeys(("first", "middle", "end"), steps) | dict.fromkeys(SLOTS, slots)

    def changed(name: str, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(_moved(inner, steps, slots, there) for inner in value)
        return there(value) if isinstance(value, Argument) else value + further[name] if name in further else value

    return replace(part, **{name: changed(name, value) for name, value in vars(part).items()})


@dataclass
class Assembly:
    """A plan's steps while they are put together."""

    steps: list[Step] = field(default_factory=list)
    loops: list[Rolled] = field(default_factory=list)
    control: list[Control] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # bytes that each has to reach

    def state(self, tensor: TensorInfo, output: str) -> State:
        """An input that the handle keeps, and that is `output` after a run."""
        return State(tensor, output, self._slot(tensor.bytes), self._slot(tensor.bytes))

    def grown(self, tensor: TensorInfo, output: str, room: int) -> State:
        """An input that is the beginning of the `output`, which lies in one buffer of `room` bytes."""
        slot = self._slot(room)
        return State(tensor, output, slot, slot, room)

    def plain(self, steps: Sequence[Step]) -> None:
        """Adds steps that run one after another; what repeats becomes a loop."""
        try:
            steps, loops = rolled(steps)
        except DependsOnSize:  # how far iterations lie apart
            loops = ()
        self._append(steps, loops)

    def _append(self, steps: Sequence[Step], loops: Sequence[Rolled]) -> None:
        at = len(self.steps)
        self.steps += steps
        self.loops += [replace(loop, first=loop.first + at) for loop in loops]

    def structured(self, use: Structured, place: Place) -> None:
        """Adds an If or a Loop; `place` says where what it reads, writes and keeps for itself lies."""
        block = use.bound.control
        prefix = next(iter(use.temporaries)).removesuffix("arena")
        inputs = [place(use.bound.values[name]) for name in block.inputs]
        values = dict(
            zip(dict(block.attrs)["outputs"], (use.bound.values[name] for name in block.outputs), strict=True)
        )

        def own(name: str) -> Argument:
            return place(prefix + name)

        def output(k: int) -> Argument:
            return place(values[k]) if k in values else own(f"y{k}")

        if block.meaning == "If":
            self._branch(use, inputs, [output(k) for k in range(len(use.plans[0].outputs))], own)
        else:
            self._repeat(use, inputs, output, own)

    def _branch(
        self, use: Structured, inputs: Sequence[Argument], outputs: Sequence[Argument], own: Callable[[str], Argument]
    ) -> None:
        at, first, attrs = len(self.control), len(self.steps), dict(use.bound.control.attrs)
        ends = [first] if attrs.get("only") == 0 else []
        for plan, body in zip(use.plans, use.bound.bodies, strict=True):
            self._body(plan, body, own("arena"), inputs[1:], outputs)
            ends.append(len(self.steps))
        end = len(self.steps)
        if end > first:
            self.control.insert(at, Branch(_name(use.bound), first, ends[0], end, inputs[0], attrs.get("refusal", "")))

    def _repeat(
        self,
        use: Structured,
        inputs: Sequence[Argument],
        output: Callable[[int], Argument],
        own: Callable[[str], Argument],
    ) -> None:
        (plan,), block = use.plans, use.bound.control
        attrs = dict(block.attrs)
        form = LoopForm.of(attrs)
        at, first = len(self.control), len(self.steps)
        given, made = list(plan.inputs[1:]), list(plan.outputs[form.asks :])
        carried = []
        for k, tensor in enumerate(given[: form.states]):
            places = (inputs[form.first_state + k], output(k), own(f"spare{k}"))
            carried.append(Carried(self._slot(tensor.bytes), self._slot(tensor.bytes), *places, tensor.bytes_in_run))

        def moving(tensors: Sequence[TensorInfo], starts: Iterable[Argument]) -> list[Moving]:
            return [Moving(self._slot(t.bytes), at, t.bytes_in_run) for t, at in zip(tensors, starts, strict=False)]

        parts = moving(given[form.states :][: form.parts], inputs[form.first_part :])
        handed = moving(made[form.states :], map(output, range(form.states, len(made))))
        outside, _ = captured("Loop", attrs)
        reads = [own("number"), *(Argument("slot", n) for n in (*(c.read for c in carried), *(p.slot for p in parts)))]
        writes = [own("go")] if form.asks else []
        writes += [Argument("slot", n) for n in (*(c.written for c in carried), *(h.slot for h in handed))]
        self._body(plan, use.bound.bodies[0], own("arena"), [*reads, *inputs[outside:]], writes)
        repeat = Repeat(
            name=_name(use.bound),
            first=first,
            end=len(self.steps),
            limit=form.limit,
            count=inputs[0] if form.counted else None,
            condition=inputs[int(form.counted)] if form.asked else None,
            number=own("number"),
            go=own("go") if form.asks else None,
            carried=tuple(carried),
            moving=(*parts, *handed),
        )
        self.control.insert(at, repeat)

    def _slot(self, size: int) -> int:
        self.slots.append(size)
        return len(self.slots) - 1

    def _body(
        self, plan: Plan, body: Program, arena: Argument, inputs: Sequence[Argument], outputs: Sequence[Argument]
    ) -> None:
        """Adds the steps of a body, whose arena begins at `arena` and whose inputs and outputs lie there."""
        inputs = [a for name, a in zip(body.inputs, inputs, strict=True) if name != RANDOM_STATE]
        at, slots = len(self.steps), len(self.slots)
        self.slots += plan.slots

        def there(a: Argument) -> Argument:
            if a.space in ("params", "made", "random"):
                return a
            if a.space == "slot":
                return replace(a, index=a.index + slots)
            base = arena if a.space == "arena" else (inputs if a.space == "input" else outputs)[a.index]
            return Argument(base.space, base.index, base.offset + a.offset, a.stride)

        steps = [
            replace(
                step,
                arguments=tuple(map(there, step.arguments)),
                checks=tuple(replace(check, argument=there(check.argument)) for check in step.checks),
            )
            for step in plan.steps
        ]
        self.control += [_moved(control, at, slots, there) for control in plan.control]
        self._append(steps, plan.loops)
