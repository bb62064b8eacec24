"""Control flow that is left to a run: what an If and a Loop mean, whatever their bodies are made of.

    If(condition, captured...)             bodies then(captured...), else(captured...)
    Loop([count], [condition], state..., part..., captured...)
                                           body(number, state..., element..., captured...)
                                             -> ([condition], state..., handed...)

An If may have one body alone: the attribute `only` says whether it is for true (1) or false (0), and `refusal` what is
wrong with the other, which ends the run.

The attributes of a Loop: `counted` and `asked` say whether it is given a count and a condition, `asks` whether its body
computes the next one; it carries `states`, goes along the first dimension of `parts` values, and makes at most `limit`
iterations (-1: no limit). What it hands out are its last states, and of each `handed` value all of them, stacked: then
there is a limit, for which there is room; what fewer iterations leave of it is zero here, and anything in a kernel.
The limit may depend on Sizes (sizes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import InputError

Array = NDArray[Any]
Body = Callable[[Sequence[Array]], Sequence[Array]]
CONTROL = ("If", "Loop")
NO_LIMIT = -1


@dataclass(frozen=True)
class LoopForm:
    """The attributes of a Loop, and where its inputs are among each other."""

    counted: bool
    asked: bool
    asks: bool
    states: int
    parts: int
    limit: int

    @classmethod
    def of(cls, attrs: Mapping[str, Any]) -> LoopForm:
        flags = (bool(attrs[name]) for name in ("counted", "asked", "asks"))
        return cls(*flags, *(attrs[name] for name in ("states", "parts", "limit")))

    @property
    def first_state(self) -> int:
        return int(self.counted) + int(self.asked)

    @property
    def first_part(self) -> int:
        return self.first_state + self.states


def captured(op: str, attrs: Mapping[str, Any]) -> tuple[int, int]:
    """Where captured values begin: among the inputs of a Node, and of its bodies."""
    if op == "If":
        return 1, 0
    form = LoopForm.of(attrs)
    return form.first_part + form.parts, 1 + form.states + form.parts


def run_control(op: str, attrs: Mapping[str, Any], inputs: Sequence[Array], bodies: Sequence[Body]) -> list[Array]:
    """Every output of an If or a Loop. What a Loop hands out is missing where it makes no iteration: the caller knows
    the shape."""
    if op == "If":
        taken = bool(inputs[0].reshape(-1)[0])
        if "only" in attrs and taken != bool(attrs["only"]):
            raise InputError(attrs["refusal"])
        return list(bodies[0 if taken or "only" in attrs else 1](inputs[1:]))
    form = LoopForm.of(attrs)
    limits = [form.limit] if form.limit != NO_LIMIT else []
    limits += [int(inputs[0].reshape(-1)[0])] if form.counted else []
    go = bool(inputs[int(form.counted)].reshape(-1)[0]) if form.asked else True
    states = list(inputs[form.first_state : form.first_part])
    parts, outer = inputs[form.first_part :][: form.parts], inputs[form.first_part + form.parts :]
    handed: list[list[Array]] = []
    done = 0
    while go and all(done < limit for limit in limits):
        results = list(bodies[0]([np.asarray(done, np.int64), *states, *(x[done] for x in parts), *outer]))
        go = bool(results.pop(0).reshape(-1)[0]) if form.asks else True
        states = results[: form.states]
        handed.append(results[form.states :])
        done += 1
    room = form.limit - done if form.limit != NO_LIMIT else 0
    stacked: list[Array] = [np.stack(values) for values in zip(*handed, strict=True)]
    return [*states, *(np.pad(x, [(0, room)] + [(0, 0)] * (x.ndim - 1)) for x in stacked)]
