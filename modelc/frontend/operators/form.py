"""What becomes of one ONNX operator in the Graph, and what its forms are written with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.ir.expr import DTYPES
from modelc.ops.row import Row

Normaliser = Callable[[Builder, OnnxNode], None]


def plain(b: Builder, n: OnnxNode) -> None:
    """The node as it is."""
    b.emit(n, n.op, n.inputs, n.attrs, n.outputs)


@dataclass(frozen=True)
class Form:
    """What an operator becomes, of any operator set: that of the newest set, shapes resolved. `counted` says it where
    something that the node takes depends in its size on data (sizes.py), or is such a size, and where more is to be
    done than to let it through. `row` is what is known by the name of an operator that is not in the library."""

    name: str
    known: Normaliser = plain
    counted: Normaliser | None = None
    row: Row | None = None


@dataclass(frozen=True)
class Fused:
    """What becomes of an operator of ONNX Runtime's own, some of which it keeps in ONNX's domain; its inputs (? for an
    optional one, * for any number), its most outputs, and its attributes with their types (! for one that has to be
    there)."""

    name: str
    meaning: Normaliser
    inputs: str
    outputs: int = 1
    attributes: str = ""
    domain: str = "com.microsoft"


def forms(names: str, known: Normaliser = plain, counted: Normaliser | None = None) -> tuple[Form, ...]:
    """The same of several operators."""
    return tuple(Form(name, known, counted) for name in names.split())


def whole_numbers(b: Builder, n: OnnxNode, k: int, attr: str) -> tuple[int, ...] | None:
    """Whole numbers that are input `k` in newer operator sets and an attribute in older ones."""
    data = b.steering(n, k, attr)
    if data is not None:
        return tuple(int(i) for i in data.reshape(-1))
    numbers = n.attrs.get(attr)
    return None if numbers is None else tuple(int(i) for i in np.asarray(numbers).reshape(-1))


def axes_of(n: OnnxNode, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    if any(not -rank <= a < rank for a in axes):
        raise n.fail(f"expected axes within {rank} dimensions, found {list(axes)}")
    return tuple(a + rank if a < 0 else a for a in axes)


def without(n: OnnxNode, *names: str) -> dict[str, Any]:
    return {k: v for k, v in n.attrs.items() if k not in names}


def moved_to_inputs(*attrs: tuple[int, str, str]) -> Normaliser:
    """Attributes that newer sets have as inputs: (position, name, dtype; "like" for the dtype of the first input)."""

    def normalise(b: Builder, n: OnnxNode) -> None:
        inputs = list(n.inputs)
        for k, name, dtype in attrs:
            if name in n.attrs and not n.input(k):
                inputs += [""] * (k + 1 - len(inputs))
                kind = b.value(n.inputs[0]).dtype if dtype == "like" else dtype
                data = np.asarray(n.attrs[name]).astype(DTYPES[kind])
                inputs[k] = b.constant(data if dtype == "like" else data.reshape(-1), f"{n.outputs[0]}_{name}")
        b.emit(n, n.op, inputs, without(n, *(name for _, name, _ in attrs)), n.outputs)

    return normalise


def with_most(b: Builder, n: OnnxNode, k: int) -> tuple[OnnxNode, dict[int, str]]:
    """The node with the most that there can be in place of sizes in its input `k`, and where these were."""
    name = n.input(k)
    elements = b.sizes.elements.get(name)
    if elements is None:
        return n, {}
    marks = {at: c for at, x in enumerate(elements.reshape(-1)) if (c := b.sizes.marked(int(x))) is not None}
    inputs = list(n.inputs)
    inputs[k] = b.constant(b.sizes.bounded(elements), f"{name}_most")
    return replace(n, inputs=tuple(inputs)), marks
