"""Computes equal things once: nodes of equal operator, inputs and attributes; constants of equal data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np

from modelc.ir.graph import Graph, Node, Value


@dataclass(frozen=True)
class EliminateCommonSubexpressions:
    def __call__(self, graph: Graph) -> Graph:
        same = _equal_constants(graph.values)
        seen: dict[tuple[object, ...], Node] = {}
        kept: list[Node] = []
        for node in graph.nodes:
            inputs = tuple(same.get(x, x) for x in node.inputs)
            node = node if inputs == node.inputs else replace(node, inputs=inputs)
            key = _key(node)
            first = seen.get(key)
            if first is None or any(out in graph.outputs for out in node.outputs):
                seen.setdefault(key, node)
                kept.append(node)
                continue
            same |= {own: other for own, other in zip(node.outputs, first.outputs, strict=True) if own}
        return graph.with_nodes(kept)


def _key(node: Node) -> tuple[object, ...]:
    present = tuple(bool(out) for out in node.outputs)
    return node.op, node.inputs, present, tuple(sorted((k, _hashable(v)) for k, v in node.attrs.items()))


def _hashable(value: Any) -> str:
    return repr((value.dtype, value.shape, value.tobytes())) if isinstance(value, np.ndarray) else repr(value)


def _equal_constants(values: Mapping[str, Value]) -> dict[str, str]:
    """Constant -> the first one of the same data."""
    kinds: dict[tuple[object, ...], list[str]] = {}
    for name, value in values.items():
        if value.data is not None:
            kinds.setdefault((value.dtype, value.shape), []).append(name)
    same: dict[str, str] = {}
    for names in kinds.values():
        first: dict[bytes, str] = {}
        for name in names if len(names) > 1 else ():
            data = values[name].data
            assert data is not None
            other = first.setdefault(
                sha256(np.ascontiguousarray(data).view(np.uint8).data if data.ndim else data.tobytes()).digest(), name
            )
            if other != name:
                same[name] = other
    return same
