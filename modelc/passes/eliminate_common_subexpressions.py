"""Computes equal things once: nodes of equal operator, inputs and attributes; constants of equal data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.ir.graph import Graph, Node, Value

PROBE = 64  # elements at either end that tell most constants apart without hashing them


@dataclass(frozen=True)
class EliminateCommonSubexpressions:
    def __call__(self, graph: Graph) -> Graph:
        same = _equal_constants(graph.values)
        outputs = frozenset(graph.outputs)
        seen: dict[tuple[object, ...], Node] = {}
        kept: list[Node] = []
        for node in graph.nodes:
            inputs = tuple(same.get(x, x) for x in node.inputs)
            node = node if inputs == node.inputs else replace(node, inputs=inputs)
            key = _key(node)
            first = seen.get(key)
            if first is None or any(out in outputs for out in node.outputs):
                seen.setdefault(key, node)
                kept.append(node)
                continue
            same |= {own: other for own, other in zip(node.outputs, first.outputs, strict=True) if own}
        return graph.with_nodes(kept)


def _key(node: Node) -> tuple[object, ...]:
    present = tuple(bool(out) for out in node.outputs)
    if node.bodies:  # no two are compared
        return (node.name,)
    return node.op, node.inputs, present, tuple(sorted((k, _hashable(v)) for k, v in node.attrs.items()))


def _hashable(value: Any) -> str:
    return repr((value.dtype, value.shape, value.tobytes())) if isinstance(value, np.ndarray) else repr(value)


def _equal_constants(values: Mapping[str, Value]) -> dict[str, str]:
    """Constant -> the first one of the same data."""
    alike: dict[tuple[object, ...], list[tuple[str, NDArray[Any]]]] = {}
    for name, value in values.items():
        if value.data is not None:
            flat = value.data.reshape(-1)
            key = (value.dtype, value.shape, flat[:PROBE].tobytes(), flat[-PROBE:].tobytes())
            alike.setdefault(key, []).append((name, flat))
    same: dict[str, str] = {}
    for group in alike.values():
        first: dict[bytes, str] = {}
        for name, flat in group if len(group) > 1 else ():
            other = first.setdefault(sha256(flat.tobytes()).digest(), name)
            if other != name:
                same[name] = other
    return same
